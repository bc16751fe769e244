"""Parts of a captured graph: which names its values read, and graphs with some of them replaced or left out."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from compilebisect.core.repro_case import Call, Graph, Items, Mapping, Operator, Ref, Value, ViewValue

# What is only done for what comes after it, until it is undone.
_SWITCHES = (
    "_enter_autocast",
    "_exit_autocast",
    "set_grad_enabled",
    "inference_mode",
    "_increment_nesting",
    "_decrement_nesting",
)


def names_read(operator: Operator) -> list[str]:
    """Return the names of the operators and inputs that an operator reads."""
    return [*names_in(operator.args), *names_in(operator.kwargs)]


def names_in(value: object) -> list[str]:
    """Return the names of operators and inputs that a value reads; `x.device` reads `x`."""
    if isinstance(value, Ref):
        return [value.name.split(".")[0]]
    if isinstance(value, ViewValue):
        return [value.base.split(".")[0]]
    if isinstance(value, Items | Mapping):
        return names_in(value.items)
    if isinstance(value, Call):
        return [*names_in(value.args), *names_in(value.kwargs)]
    if isinstance(value, tuple):
        return [name for item in value for name in names_in(item)]
    return []


def changed(value: Value, change: Callable[[Value], Value]) -> Value:
    """Return a value with `change` made to all values that it holds, inner ones first."""
    if isinstance(value, Items):
        value = Items(value.kind, tuple(changed(item, change) for item in value.items))
    elif isinstance(value, Mapping):
        value = Mapping(tuple((changed(key, change), changed(item, change)) for key, item in value.items))
    elif isinstance(value, Call):
        args = tuple(changed(item, change) for item in value.args)
        value = Call(value.function, args, tuple((name, changed(item, change)) for name, item in value.kwargs))
    return change(value)


def with_changed_values(graph: Graph, change: Callable[[Value], Value]) -> Graph:
    """Return a graph with `change` made to all that its operators, their bodies and its output read."""
    operators = tuple(
        msgspec.structs.replace(
            operator,
            args=tuple(changed(item, change) for item in operator.args),
            kwargs=tuple((name, changed(item, change)) for name, item in operator.kwargs),
        )
        for operator in graph.operators
    )
    return msgspec.structs.replace(
        graph,
        operators=operators,
        output=changed(graph.output, change),
        children=tuple((name, with_changed_values(child, change)) for name, child in graph.children),
    )


def with_name_replaced(graph: Graph, name: str, value: Value) -> Graph:
    """Return a graph that reads `value` where it read `name`; its bodies, which have names of their own, stay."""

    def change(item: Value) -> Value:
        if isinstance(item, Ref) and item.name.split(".")[0] == name:
            attribute = item.name[len(name) :]
            if not attribute:
                return value
            return Ref(value.name + attribute) if isinstance(value, Ref) else item
        return item

    return msgspec.structs.replace(with_changed_values(graph, change), children=graph.children)


def without_dead(graph: Graph) -> Graph:
    """Drop what no output needs. What is only done in place stays with the tensor that it changes."""
    live = set(names_in(graph.output))
    for operator in reversed(graph.operators):
        names = set(names_read(operator))
        if operator.name in live or is_switch(operator) or (is_in_place(operator) and names & live):
            live |= {operator.name, *names}
    operators = tuple(operator for operator in graph.operators if operator.name in live)
    attributes = {operator.target for operator in operators if operator.kind == "attribute"}
    return msgspec.structs.replace(
        graph,
        inputs=tuple(item for item in graph.inputs if item.name in live),
        operators=operators,
        constants=tuple(item for item in graph.constants if item[0] in attributes),
        children=tuple(item for item in graph.children if item[0] in attributes),
    )


def is_switch(operator: Operator) -> bool:
    """Return whether an operator changes how those behind it run."""
    return operator.target.endswith(_SWITCHES)


def is_in_place(operator: Operator) -> bool:
    """Return whether an operator may change what it reads."""
    last = operator.target.rsplit(".", 1)[-1]
    if operator.target.startswith("operator.i"):
        return last in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "iand", "ior", "ixor", "imatmul")
    return last == "setitem" or (last.endswith("_") and not last.endswith("__"))
