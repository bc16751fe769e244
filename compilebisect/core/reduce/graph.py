"""Makes a captured graph smaller: fewer operators, each cut replaced by an input with the values seen in eager mode."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

import msgspec

from compilebisect.core.reduce.search import smallest_subset
from compilebisect.core.repro_case import (
    Call,
    Fill,
    Graph,
    GraphInput,
    Items,
    Mapping,
    Operator,
    Ref,
    TensorValue,
    Value,
    ViewValue,
)


def smaller_graphs(graph: Graph) -> Generator[Graph, bool, Graph]:
    """Propose smaller and smaller graphs; send back whether the fault still shows with each.

    Operators first: what is left out and still read becomes an input, whose description was recorded for
    `Operator.output`. What is computed and read by nobody becomes an output. Then saved tensors give way to seeded
    numbers. The bodies of higher-order operators are kept as they are.

    Returns:
        The smallest graph that showed the fault.
    """
    names = [operator.name for operator in graph.operators if operator.kind != "attribute"]
    best = graph
    tried = {graph}
    search = smallest_subset(names)
    try:
        kept = next(search)
        while True:
            candidate = with_operators(graph, kept)
            shows = False
            if candidate not in tried:
                tried.add(candidate)
                shows = yield candidate
            if shows and _size(candidate) < _size(best):
                best = candidate
            kept = search.send(shows)
    except StopIteration:
        pass
    best = yield from _fewer_outputs(best)
    return (yield from _without_saved_values(best))


def with_operators(graph: Graph, kept: Iterable[str]) -> Graph:
    """Return the part of a graph that computes some of its operators, and what is needed to compute them.

    Operators that are left out become inputs where their results can be described; where they cannot, such as tuples
    and sizes, they stay.
    """
    wanted = _closure(graph, set(kept))
    inputs = {item.name: item for item in graph.inputs}
    operators = [operator for operator in graph.operators if operator.name in wanted]
    read = [name for operator in operators for name in _names(operator)]
    outputs = {operator.name: operator.output for operator in graph.operators}
    taken: list[GraphInput] = []
    for name in dict.fromkeys(read):
        if name in inputs:
            taken.append(inputs[name])
        elif name in outputs and name not in wanted:
            value = outputs[name]
            assert value is not None  # the closure keeps those that cannot be described
            taken.append(GraphInput(name=name, value=value))
    order = {name: position for position, name in enumerate([*inputs, *outputs])}
    constants = {operator.target for operator in operators if operator.kind == "attribute"}
    return Graph(
        inputs=tuple(sorted(taken, key=lambda item: order[item.name])),
        operators=tuple(operators),
        output=_output(graph, operators, set(read)),
        constants=tuple(item for item in graph.constants if item[0] in constants),
        children=tuple(item for item in graph.children if item[0] in constants),
    )


def _closure(graph: Graph, kept: set[str]) -> set[str]:
    """Add what the kept operators read and what cannot become an input."""
    wanted: set[str] = set()
    for operator in reversed(graph.operators):
        if operator.name in kept or operator.name in wanted:
            wanted.add(operator.name)
            needed = set(_names(operator))
            wanted |= {other.name for other in graph.operators if other.name in needed and other.output is None}
    return wanted


def _output(graph: Graph, operators: Sequence[Operator], read: set[str]) -> Value:
    """Return what the part gives back: what the graph gave back of it, and results that nothing reads."""
    present = {operator.name for operator in operators if operator.kind != "attribute"}
    original = {name for name in _names_in(graph.output) if name in present}
    unread = {operator.name for operator in operators if operator.output is not None and operator.name not in read}
    given = [operator.name for operator in operators if operator.name in original | (unread & present)]
    if original == set(given) and set(_names_in(graph.output)) == original:
        return graph.output
    return Ref(given[0]) if len(given) == 1 else Items("tuple", tuple(Ref(name) for name in given))


def _fewer_outputs(graph: Graph) -> Generator[Graph, bool, Graph]:
    if not isinstance(graph.output, Items) or len(graph.output.items) < 2:
        return graph
    best = graph
    search = smallest_subset(graph.output.items)
    try:
        kept = next(search)
        while True:
            output = kept[0] if len(kept) == 1 else Items("tuple", kept)
            candidate = _without_dead(msgspec.structs.replace(graph, output=output))
            shows = yield candidate
            best = candidate if shows else best
            kept = search.send(shows)
    except StopIteration:
        return best


def _without_dead(graph: Graph) -> Graph:
    """Drop what no output needs. What is only done in place stays with the tensor that it changes."""
    live = set(_names_in(graph.output))
    for operator in reversed(graph.operators):
        names = set(_names(operator))
        if operator.name in live or (_is_in_place(operator) and names & live):
            live |= {operator.name, *names}
    return msgspec.structs.replace(
        graph,
        inputs=tuple(item for item in graph.inputs if item.name in live),
        operators=tuple(operator for operator in graph.operators if operator.name in live),
    )


def _is_in_place(operator: Operator) -> bool:
    last = operator.target.rsplit(".", 1)[-1]
    return last == "setitem" or (last.endswith("_") and not last.endswith("__"))


def _without_saved_values(graph: Graph) -> Generator[Graph, bool, Graph]:
    for number, item in enumerate(graph.inputs):
        if not isinstance(item.value, TensorValue) or item.value.fill is not Fill.SAVED:
            continue
        fill = Fill.RANDN if "float" in item.value.dtype or "complex" in item.value.dtype else Fill.RANDINT
        fill = Fill.BOOL if item.value.dtype == "bool" else fill
        value = msgspec.structs.replace(item.value, fill=fill, low=0, high=2 if fill is Fill.RANDINT else 1, key="")
        inputs = list(graph.inputs)
        inputs[number] = msgspec.structs.replace(item, value=value)
        candidate = msgspec.structs.replace(graph, inputs=tuple(inputs))
        if (yield candidate):
            graph = candidate
    return graph


def _size(graph: Graph) -> tuple[int, int]:
    return len(graph.operators), len(graph.inputs)


def _names(operator: Operator) -> list[str]:
    return [*_names_in(operator.args), *_names_in(operator.kwargs)]


def _names_in(value: object) -> list[str]:
    """Return the names of operators and inputs that a value reads; `x.device` reads `x`."""
    if isinstance(value, Ref):
        return [value.name.split(".")[0]]
    if isinstance(value, ViewValue):
        return [value.base.split(".")[0]]
    if isinstance(value, Items | Mapping):
        return _names_in(value.items)
    if isinstance(value, Call):
        return [*_names_in(value.args), *_names_in(value.kwargs)]
    if isinstance(value, tuple):
        return [name for item in value for name in _names_in(item)]
    return []
