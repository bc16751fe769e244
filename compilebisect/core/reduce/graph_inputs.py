"""Makes what goes into a captured graph simpler: its numbers, layouts, dtypes and sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping

import msgspec

from compilebisect.core.reduce.graph_parts import with_changed_values, with_name_replaced, without_dead
from compilebisect.core.repro_case import Fill, Graph, Literal, TensorValue, Value

Steps = Generator[Graph, bool, Graph]
_PLAIN_DTYPE = "float32"
_SMALL = 2


def plainer_inputs(graph: Graph) -> Steps:
    """Propose graphs whose inputs are plainer: all at once, else one property after the other, else one by one."""
    properties = (_seeded, _contiguous, _without_gradient, _simply_filled)
    everything = _with_tensors(graph, lambda value: _all_of(properties, value))
    if everything != graph and (yield everything):
        return everything
    for simplify in properties:
        together = _with_tensors(graph, simplify)
        if together == graph:
            continue
        if (yield together):
            graph = together
            continue
        for item in graph.inputs:
            alone = _with_tensors(graph, simplify, only=item.name)
            if alone not in (graph, together) and (yield alone):
                graph = alone
    return graph


def plainer_dtypes(graph: Graph) -> Steps:
    """Propose graphs in which everything of another floating dtype is float32, casts included."""
    dtypes = {item.value.dtype for item in graph.inputs if isinstance(item.value, TensorValue)}
    for dtype in sorted(dtypes & {"float16", "bfloat16", "float64"}):

        def cast(value: Value, dtype: str = dtype) -> Value:
            if isinstance(value, TensorValue) and value.dtype == dtype:
                return msgspec.structs.replace(value, dtype=_PLAIN_DTYPE)
            return Literal(f"torch.{_PLAIN_DTYPE}") if value == Literal(f"torch.{dtype}") else value

        candidate = with_changed_values(_with_tensors(graph, cast), cast)
        if (yield candidate):
            graph = candidate
    return graph


def fewer_inputs(graph: Graph) -> Steps:
    """Propose graphs with the numbers among the inputs written where they are read."""
    for item in graph.inputs:
        if isinstance(item.value, Literal):
            candidate = without_dead(with_name_replaced(graph, item.name, item.value))
            if candidate != graph and (yield candidate):
                graph = candidate
    return graph


def smaller_sizes(graph: Graph) -> Steps:
    """Propose graphs with fewer dimensions and smaller sizes, the same one at all places at once.

    Sizes also stand in the operators, as arguments of `view` for example; each integer there that equals a size is
    taken for it. Multiples of a size, such as heads times channels, go with it.
    """
    graph = yield from _without_leading_dimensions(graph)
    sizes = _sizes(graph)
    together = _resized(graph, dict.fromkeys(sizes, _SMALL))
    if together is not None and sizes and (yield together):
        return together
    for size in sizes:
        multiples = {other: other // size * _SMALL for other in sizes if other % size == 0}
        for renamed in ({size: _SMALL}, multiples if len(multiples) > 1 else {}):
            candidate = _resized(graph, renamed) if renamed else None
            if candidate is not None and candidate != graph and (yield candidate):
                graph = candidate
                break
    return graph


def _without_leading_dimensions(graph: Graph) -> Steps:
    """Take away the first dimension, such as the batch, of all inputs that are no parameters and have the same one."""
    while True:
        led = [item for item in graph.inputs if not item.origin and _rank(item.value) > 1]
        leads = {item.value.shape[0] for item in led if isinstance(item.value, TensorValue)}
        for size in sorted(leads, reverse=True):
            names = {item.name for item in led if isinstance(item.value, TensorValue) and item.value.shape[0] == size}

            def drop(value: Value) -> Value:
                if not isinstance(value, TensorValue) or value.storage is not None or value.fill is Fill.SAVED:
                    return value
                stride = value.stride[1:] if value.stride is not None else None
                return _with_shape(msgspec.structs.replace(value, stride=stride), value.shape[1:])

            candidate = _with_tensors(graph, drop, only=names)
            if candidate != graph and (yield candidate):
                graph = candidate
                break
        else:
            return graph


def _rank(value: Value) -> int:
    return len(value.shape) if isinstance(value, TensorValue) else 0


def _sizes(graph: Graph) -> list[int]:
    values = [*(item.value for item in graph.inputs), *(value for _, value in graph.constants)]
    found = {size for value in values if isinstance(value, TensorValue) for size in value.shape}
    return sorted((size for size in found if size > _SMALL), reverse=True)


def _resized(graph: Graph, renamed: Mapping[int, int]) -> Graph | None:
    """Return a graph with other sizes; None where a tensor cannot have them."""
    texts = {str(old): str(new) for old, new in renamed.items()}
    is_possible = True

    def change(value: Value) -> Value:
        nonlocal is_possible
        if isinstance(value, TensorValue):
            shape = tuple(renamed.get(size, size) for size in value.shape)
            if shape != value.shape and (value.storage is not None or value.fill is Fill.SAVED):
                is_possible = False
            elif shape != value.shape:
                value = _with_shape(value, shape)
            if value.fill is Fill.RANDINT:  # indices into what became shorter
                value = msgspec.structs.replace(value, high=renamed.get(int(value.high), value.high))
            return value
        return Literal(texts[value.text]) if isinstance(value, Literal) and value.text in texts else value

    result = with_changed_values(_with_tensors(graph, change), change)
    return result if is_possible else None


def _with_shape(value: TensorValue, shape: tuple[int, ...]) -> TensorValue:
    """Return a tensor of another shape whose dimensions lie in memory in the same order."""
    stride = value.stride
    if stride is not None:
        by_stride = sorted(zip(stride, range(0, -len(shape), -1), strict=True))
        steps, step = [0] * len(shape), 1
        for _, minus_dim in by_stride:
            steps[-minus_dim], step = step, step * max(shape[-minus_dim], 1)
        is_contiguous = [-minus_dim for _, minus_dim in by_stride] == list(reversed(range(len(shape))))
        stride = None if is_contiguous else tuple(steps)
    return msgspec.structs.replace(value, shape=shape, stride=stride, values=value.values[: math.prod(shape)])


def _with_tensors(graph: Graph, change: Callable[[Value], Value], only: str | set[str] | None = None) -> Graph:
    """Return a graph with `change` made to the tensors that go in and, unless some are named, to its constants."""
    wanted = {only} if isinstance(only, str) else only
    inputs = tuple(
        msgspec.structs.replace(item, value=change(item.value))
        if isinstance(item.value, TensorValue) and (wanted is None or item.name in wanted)
        else item
        for item in graph.inputs
    )
    constants = graph.constants
    if wanted is None:
        constants = tuple((name, change(value)) for name, value in constants)  # type: ignore[misc]  # stays a tensor
    return msgspec.structs.replace(graph, inputs=inputs, constants=constants)


def _all_of(properties: tuple[Callable[[Value], Value], ...], value: Value) -> Value:
    for simplify in properties:
        value = simplify(value)
    return value


def _seeded(value: Value) -> Value:
    """Give a saved tensor numbers from the seed."""
    if not isinstance(value, TensorValue) or value.fill is not Fill.SAVED:
        return value
    fill = Fill.RANDN if "float" in value.dtype or "complex" in value.dtype else Fill.RANDINT
    fill = Fill.BOOL if value.dtype == "bool" else fill
    return msgspec.structs.replace(value, fill=fill, low=0, high=2 if fill is Fill.RANDINT else 1, key="")


def _contiguous(value: Value) -> Value:
    if not isinstance(value, TensorValue):
        return value
    return msgspec.structs.replace(value, stride=None, storage=None, offset=0, lazily="")


def _without_gradient(value: Value) -> Value:
    if not isinstance(value, TensorValue):
        return value
    return msgspec.structs.replace(value, requires_grad=False, is_parameter=False)


def _simply_filled(value: Value) -> Value:
    """Give floating numbers without shift and scale, and small integers."""
    if not isinstance(value, TensorValue):
        return value
    if value.fill in (Fill.RANDN, Fill.RAND):
        return msgspec.structs.replace(value, low=0, high=1)
    return msgspec.structs.replace(value, low=0, high=_SMALL) if value.fill is Fill.RANDINT else value
