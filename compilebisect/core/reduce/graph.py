"""Makes a captured graph smaller: fewer operators, each cut replaced by an input with the values seen in eager mode."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence

import msgspec

from compilebisect.core.reduce.graph_inputs import fewer_inputs, plainer_dtypes, plainer_inputs, smaller_sizes
from compilebisect.core.reduce.graph_parts import (
    is_in_place,
    names_in,
    names_read,
    with_name_replaced,
    without_dead,
)
from compilebisect.core.reduce.search import smallest_subset
from compilebisect.core.repro_case import Graph, GraphInput, Items, Operator, Ref, TensorValue, Value


def smaller_graphs(graph: Graph) -> Generator[Graph, bool, Graph]:
    """Propose smaller and smaller graphs; send back whether the fault still shows with each.

    Operators first: what is left out and still read becomes an input, whose description was recorded for
    `Operator.output`. What is computed and read by nobody becomes an output. Then outputs that do not matter go, and
    operators whose readers can do without, and last the inputs become plain and small.

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
    for simplify in (
        _fewer_outputs,
        _without_needless_operators,
        fewer_inputs,
        plainer_inputs,
        plainer_dtypes,
        smaller_sizes,
    ):
        best = yield from simplify(best)
    return best


def with_operators(graph: Graph, kept: Iterable[str]) -> Graph:
    """Return the part of a graph that computes some of its operators, and what is needed to compute them.

    Operators that are left out become inputs where their results can be described; where they cannot, such as tuples
    and sizes, they stay.
    """
    wanted = _closure(graph, set(kept))
    inputs = {item.name: item for item in graph.inputs}
    operators = [operator for operator in graph.operators if operator.name in wanted]
    read = [name for operator in operators for name in names_read(operator)]
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


def without_operators(graph: Graph, doomed: Collection[str]) -> Graph:
    """Return a graph without some operators: what they gave becomes an input, from where it can be described."""
    gone = set(doomed)
    if not gone:
        return graph
    outputs = {operator.name: operator.output for operator in graph.operators}
    for operator in graph.operators:
        if any(name in gone and outputs[name] is None for name in names_read(operator)):
            gone.add(operator.name)
    return with_operators(graph, [item.name for item in graph.operators if item.name not in gone])


def _closure(graph: Graph, kept: set[str]) -> set[str]:
    """Add what the kept operators read and what cannot become an input."""
    wanted: set[str] = set()
    for operator in reversed(graph.operators):
        if operator.name in kept or operator.name in wanted:
            wanted.add(operator.name)
            needed = set(names_read(operator))
            wanted |= {other.name for other in graph.operators if other.name in needed and other.output is None}
    return wanted


def _output(graph: Graph, operators: Sequence[Operator], read: set[str]) -> Value:
    """Return what the part gives back: what the graph gave back of it, and results that nothing reads."""
    present = {operator.name for operator in operators if operator.kind != "attribute"}
    original = {name for name in names_in(graph.output) if name in present}
    unread = {operator.name for operator in operators if operator.output is not None and operator.name not in read}
    given = [operator.name for operator in operators if operator.name in original | (unread & present)]
    if original == set(given) and set(names_in(graph.output)) == original:
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
            candidate = without_dead(msgspec.structs.replace(graph, output=output))
            shows = yield candidate
            best = candidate if shows else best
            kept = search.send(shows)
    except StopIteration:
        return best


def _without_needless_operators(graph: Graph) -> Generator[Graph, bool, Graph]:
    """Let what reads an operator read one of its arguments instead, first those of the same shape and dtype.

    That takes casts, layouts and the like out from between two operators that are both needed; also in bodies.
    """
    for number, (name, child) in enumerate(graph.children):
        inner = _without_needless_operators(child)
        try:
            candidate = next(inner)
            while True:
                children = list(graph.children)
                children[number] = (name, candidate)
                shows = yield (whole := msgspec.structs.replace(graph, children=tuple(children)))
                graph = whole if shows else graph
                candidate = inner.send(shows)
        except StopIteration:
            pass
    for operator in reversed(graph.operators):
        if operator.output is None or is_in_place(operator):
            continue
        known = _described(graph)
        for argument in dict.fromkeys(names_read(operator)):
            if argument not in known or known[argument].shape != operator.output.shape:
                continue
            candidate = without_dead(with_name_replaced(graph, operator.name, Ref(argument)))
            if candidate.operators and len(candidate.operators) < len(graph.operators) and (yield candidate):
                graph = candidate
                break
    return graph


def _described(graph: Graph) -> dict[str, TensorValue]:
    inputs = {item.name: item.value for item in graph.inputs if isinstance(item.value, TensorValue)}
    return inputs | {operator.name: operator.output for operator in graph.operators if operator.output is not None}


def _size(graph: Graph) -> tuple[int, int]:
    return len(graph.operators), len(graph.inputs)
