"""Padding inputs to a few lengths, so that few compiled versions serve many sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from compilebisect.core.spec_types import CallLeaf, DictLeaf, DimLeaf, InputSpec, Leaf, SequenceLeaf, TensorLeaf

_MOST = 4
# More buckets are not worth their compile once padding adds no more than this share.
_ENOUGH = 1.25
# Beyond so many sizes not each of them is tried as a bucket.
_MOST_TRIED = 24


def leaves_of(spec: InputSpec) -> Iterator[tuple[str, Leaf]]:
    """List the leaves of a spec with their paths, as `args[0]` or `kwargs['x']['y']`."""

    def below(leaf: Leaf, path: str) -> Iterator[tuple[str, Leaf]]:
        if isinstance(leaf, SequenceLeaf):
            for index, item in enumerate(leaf.items):
                yield from below(item, f"{path}[{index}]")
        elif isinstance(leaf, DictLeaf):
            for name, item in leaf.items.items():
                yield from below(item, f"{path}[{name!r}]")
        else:
            yield path, leaf

    for index, leaf in enumerate(spec.args):
        yield from below(leaf, f"args[{index}]")
    for name, leaf in spec.kwargs.items():
        yield from below(leaf, f"kwargs[{name!r}]")


def named_dims(spec: InputSpec) -> dict[str, dict[int, str]]:
    """Return which dims of which tensors carry a name: by path, then by index."""
    return {
        path: {index: size for index, size in enumerate(leaf.shape) if isinstance(size, str)}
        for path, leaf in leaves_of(spec)
        if isinstance(leaf, TensorLeaf)
    }


def size_numbers(spec: InputSpec) -> dict[str, str]:
    """Return the arguments that are a dim's size as a number, by path."""
    return {path: leaf.dim for path, leaf in leaves_of(spec) if isinstance(leaf, DimLeaf)}


def buckets_of(spec: InputSpec) -> tuple[dict[str, tuple[int, ...]], str]:
    """Return the lengths to pad each varying dim to, or nothing and why inputs cannot be padded."""
    varying = {name: values for name, values in spec.dims.items() if len(set(values)) > 1}
    for path, leaf in leaves_of(spec):
        if isinstance(leaf, CallLeaf) and any(
            isinstance(value, DimLeaf) and value.dim in varying for value in leaf.kwargs.values()
        ):
            return {}, f"{path} comes from a function, which only knows how to pad it itself"
        if isinstance(leaf, TensorLeaf) and leaf.stride is not None and set(leaf.shape) & varying.keys():
            return {}, f"{path} has strides of its own"
    shown = {name for dims in named_dims(spec).values() for name in dims.values()}
    if unpadded := sorted(varying.keys() - shown):
        return {}, f"the dim {unpadded[0]!r} is no size of a tensor"
    if not varying:
        return {}, "no named dim has several values"
    if all(len(set(values)) < 3 for values in varying.values()):
        return {}, "with two sizes there is nothing to share: buckets would be the sizes themselves, as in static"
    return {name: bucket_lengths(values) for name, values in varying.items()}, ""


def bucket_lengths(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return two to four of the sizes, the largest among them, that all can be padded to with little added.

    Two sizes are buckets themselves. Else the fewest buckets with which padding adds at most a quarter, or four.
    """
    distinct = sorted(set(sizes))
    if len(distinct) <= 2:
        return tuple(distinct)
    step = -(-len(distinct) // _MOST_TRIED)
    inner = distinct[:-1][::-1][::step]
    best: tuple[int, ...] = ()
    for count in range(2, min(_MOST, len(distinct) - 1) + 1):
        choices = (tuple(sorted((*rest, distinct[-1]))) for rest in combinations(inner, count - 1))
        best = min(choices, key=lambda lengths: (sum(bucket_for(size, lengths) for size in sizes), lengths))
        if sum(bucket_for(size, best) for size in sizes) <= _ENOUGH * sum(sizes):
            break
    return best


def bucket_for(size: int, lengths: Sequence[int]) -> int:
    """Return the smallest length that a size fits into; the size itself where none does."""
    return next((length for length in sorted(lengths) if size <= length), size)


def padded_sizes(sizes: Mapping[str, int], buckets: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes of a variant once padded, those that change alone."""
    padded = {name: bucket_for(sizes[name], lengths) for name, lengths in buckets.items() if name in sizes}
    return {name: size for name, size in padded.items() if size != sizes[name]}
