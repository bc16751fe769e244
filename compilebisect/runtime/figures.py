"""Figures of the difference between two tensors, computed where they live and piece by piece."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch

from compilebisect.core.tolerance import ErrorFigures
from compilebisect.runtime import torch_internals
from compilebisect.runtime.tensor_copy import UNSUPPORTED, is_plain

#: Elements of one piece: some five float64 temporaries of it stay below 64 MB.
PIECE = 1 << 20
_SAMPLE = 1 << 16
#: Of what may raise the scale above the median: fill values of masks are farther away than this.
_OUTLIER_TIMES, _OUTLIER_SHARE = 1e6, 1e-3
#: Values this near the dtype's limit are fill values, which rounding turns into infinity.
_NEAR_LIMIT = 0.99


def dtype_name(dtype: torch.dtype) -> str:
    """Write a dtype as the input spec does, without `torch.`."""
    return str(dtype).removeprefix("torch.")


def is_inexact(tensor: torch.Tensor) -> bool:
    """Say whether rounding applies to a tensor's values."""
    return tensor.is_floating_point() or tensor.is_complex()


def plain_parts(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]] | None:
    """Split any tensor into strided ones that can be read; None if that is not possible.

    One without values, on the meta device, has no parts. A wrapper has those that it names in `__tensor_flatten__`, as
    it has to for the compiler; what others hold is not known.
    """
    if is_plain(tensor):
        return [("", tensor.detach())]
    try:
        return _parts_of(tensor)
    except UNSUPPORTED:
        return None


def _parts_of(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]] | None:
    if tensor.device.type == "meta":
        return []
    if tensor.is_nested:
        return [(f".unbind()[{i}]", part) for i, part in enumerate(tensor.detach().unbind()) if is_plain(part)]
    if torch_internals.is_lazy_zero(tensor):
        return [("", tensor.detach().clone().contiguous())]
    if torch_internals.is_within_function_transform(tensor):
        return None
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return _inner_parts(tensor)
    tensor = tensor.detach()
    if type(tensor) is not torch.Tensor:
        tensor = tensor.as_subclass(torch.Tensor)
    if tensor.layout is torch.sparse_coo:
        merged = tensor.coalesce()
        return [(".indices()", merged.indices()), (".values()", merged.values())]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        indices = [(".crow_indices()", tensor.crow_indices()), (".col_indices()", tensor.col_indices())]
        return [*indices, (".values()", tensor.values())]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        indices = [(".ccol_indices()", tensor.ccol_indices()), (".row_indices()", tensor.row_indices())]
        return [*indices, (".values()", tensor.values())]
    if tensor.is_quantized:
        return [(".int_repr()", tensor.int_repr())]
    return [("", tensor)] if is_plain(tensor) else [("", tensor.to_dense())]


def _inner_parts(wrapper: Any) -> list[tuple[str, torch.Tensor]] | None:
    if not hasattr(type(wrapper), "__tensor_flatten__"):
        return None
    found: list[tuple[str, torch.Tensor]] = []
    for name in wrapper.__tensor_flatten__()[0]:
        inner = getattr(wrapper, name)
        if not isinstance(inner, torch.Tensor):  # a distributed tensor names its mesh as well
            continue
        parts = plain_parts(inner)
        if parts is None:
            return None
        found += [(f".{name}{suffix}", part) for suffix, part in parts]
    return found


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Cut tensors of one shape into equal views of at most `PIECE` elements, without copying."""
    first = tensors[0]
    if first.numel() <= PIECE:
        yield tensors
        return
    dim = max(range(first.dim()), key=lambda d: first.shape[d])
    length = max(1, PIECE * first.shape[dim] // first.numel())
    for start in range(0, first.shape[dim], length):
        size = min(length, first.shape[dim] - start)
        yield from pieces(*(tensor.narrow(dim, start, size) for tensor in tensors))


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _on_one_thread(measure: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Let what goes piece by piece do so on one thread of the CPU.

    To wake the others costs more than the work on one piece: 7 ms a call were seen, and on a busy machine 10 s for
    256 MB. The runs that are compared keep their threads, whose number may change the last bits of a sum.
    """

    @functools.wraps(measure)
    def measured(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return measure(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return measured


@_on_one_thread
def robust_scale(tensor: torch.Tensor, *, sample: int = _SAMPLE) -> float:
    """Give a magnitude that stands for the tensor: its median, raised where most values are tiny.

    Zeros and fill values of masks do not count. 0.0 for a tensor of zeros.
    """
    if tensor.numel() == 0:
        return 0.0
    values = _wide(_sampled(tensor, sample)).abs()
    values = values[torch.isfinite(values) & (values > 0)]
    if values.numel() == 0:
        return 0.0
    median = float(values.median())
    near = values[values <= _OUTLIER_TIMES * median]
    return max(median, _OUTLIER_SHARE * float(near.max()))


@_on_one_thread
def error_figures(value: torch.Tensor, reference: torch.Tensor, scale: float) -> tuple[ErrorFigures, float]:
    """Measure `value` against `reference` where both are finite; gives relative figures and the largest absolute one.

    Two scalars per piece stay on the device; the host waits for them once, at the end.
    """
    largest, squares, absolute, counted = [], [], [], []
    for left, right in pieces(value, reference):
        error, magnitude, both = _piece_error(left, right)
        relative = torch.where(error > 0, error / (magnitude + scale), error)
        largest.append(relative.max())
        absolute.append(error.max())
        squares.append(relative.square().sum())
        counted.append(both.sum())
    if value.numel() == 0:
        return ErrorFigures(), 0.0
    figures = torch.stack([torch.stack(largest).max(), torch.stack(squares).sum(), torch.stack(absolute).max()])
    top, square_sum, top_absolute = figures.tolist()
    count = max(1, int(torch.stack(counted).sum()))
    return ErrorFigures(top, math.sqrt(square_sum / count)), top_absolute


@_on_one_thread
def count_exceeding(value: torch.Tensor, reference: torch.Tensor, rtol: float, atol: float) -> int:
    """Count elements with |value - reference| > atol + rtol * |reference|, where both are finite."""
    counts = []
    for left, right in pieces(value, reference):
        error, magnitude, _ = _piece_error(left, right)
        counts.append((error > atol + rtol * magnitude).sum())
    return int(torch.stack(counts).sum()) if counts else 0


@_on_one_thread
def beyond(value: torch.Tensor, reference: torch.Tensor, scale: float, limit: float) -> torch.Tensor:
    """Mark elements whose relative error is above `limit`; one byte for each element stays in memory."""
    mask = torch.empty(value.shape, dtype=torch.bool, device=value.device)
    for marked, left, right in pieces(mask, value, reference):
        error, magnitude, _ = _piece_error(left, right)
        marked.copy_(error > limit * (magnitude + scale))
    return mask


@_on_one_thread
def worst_position(value: torch.Tensor, reference: torch.Tensor, scale: float) -> tuple[int, ...]:
    """Give the index of the largest relative error."""
    best, place = -1.0, (0,) * value.dim()
    for offset, (left, right) in _located_pieces(value, reference):
        error, magnitude, _ = _piece_error(left, right)
        relative = torch.where(error > 0, error / (magnitude + scale), error)
        top = float(relative.max())
        if top > best:
            best = top
            index = torch.unravel_index(relative.argmax(), relative.shape)
            place = tuple(int(i) + start for i, start in zip(index, offset, strict=True))
    return place


@_on_one_thread
def is_close(value: torch.Tensor, reference: torch.Tensor, limit: float, scale: float) -> bool:
    """Say whether no element differs by more than `limit` times |reference| + scale; equal NaN and inf do not.

    Stops at the first piece that does; needs a few temporaries of one piece, in the tensors' own dtype.
    """
    for left, right in pieces(value, reference):
        error = (left - right).abs()
        far = ~((error <= limit * (right.abs() + scale)) & (error < math.inf))
        if bool(far.any()) and bool((far & (left != right) & ~(left.isnan() & right.isnan())).any()):
            return False
    return True


@_on_one_thread
def is_equal(value: torch.Tensor, reference: torch.Tensor) -> bool:
    """Say whether all elements are equal, piece by piece: on a GPU `torch.equal` alone fills a mask of the whole."""
    return all(torch.equal(left, right) for left, right in pieces(value, reference))


@_on_one_thread
def mark_class_mismatches(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Mark elements that differ in being finite, NaN, inf or -inf; one byte for each element stays in memory."""
    mask = torch.empty(value.shape, dtype=torch.bool, device=value.device)
    for marked, left, right in pieces(mask, value, reference):
        wide = torch.promote_types(left.dtype, right.dtype)
        marked.copy_(class_mismatch(left.to(wide), right.to(wide)))
    return mask


def count_marked(mask: torch.Tensor) -> int:
    """Count the elements that are marked; a sum would first widen the mask to 8 bytes for each."""
    return int(torch.count_nonzero(mask))


def first_marked(mask: torch.Tensor) -> tuple[int, ...]:
    """Give the index of the first element that is marked, in the order in which the tensor is indexed."""
    place: list[int] = []
    for _ in range(mask.dim()):
        rows = mask.flatten(1).any(1) if mask.dim() > 1 else mask
        place.append(int(rows.to(torch.uint8).argmax()))
        mask = mask[place[-1]]
    return tuple(place)


def class_mismatch(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Mark elements of which one is NaN, inf or -inf and the other is not the same."""
    return _classes(left) != _classes(right)


@_on_one_thread
def count_class_mismatches(value: torch.Tensor, reference: torch.Tensor) -> int:
    """Count elements that differ in being finite, NaN, inf or -inf."""
    counts = [class_mismatch(left, right).sum() for left, right in pieces(value, reference)]
    return int(torch.stack(counts).sum()) if counts and value.numel() else 0


@_on_one_thread
def is_constant(tensor: torch.Tensor) -> bool:
    """Say whether all elements are equal."""
    if tensor.numel() == 0:
        return True
    first = tensor[(0,) * tensor.dim()] if tensor.dim() else tensor
    last = tensor[(-1,) * tensor.dim()] if tensor.dim() else tensor
    if bool((first != last) & (first == first) & (last == last)):
        return False  # as nearly always, and without a look at the rest
    return all(bool(((piece == first) | ((piece != piece) & (first != first))).all()) for (piece,) in pieces(tensor))


def _located_pieces(
    left: torch.Tensor, right: torch.Tensor, offset: tuple[int, ...] | None = None
) -> Iterator[tuple[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]]]:
    offset = offset or (0,) * left.dim()
    if left.numel() <= PIECE:
        yield offset, (left, right)
        return
    dim = max(range(left.dim()), key=lambda d: left.shape[d])
    length = max(1, PIECE * left.shape[dim] // left.numel())
    for start in range(0, left.shape[dim], length):
        size = min(length, left.shape[dim] - start)
        moved = (*offset[:dim], offset[dim] + start, *offset[dim + 1 :])
        yield from _located_pieces(left.narrow(dim, start, size), right.narrow(dim, start, size), moved)


def _piece_error(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Give |left - right|, |right| and where both are finite; zeros elsewhere."""
    both = (_classes(left) == 0) & (_classes(right) == 0)
    wide_left, wide_right = _wide(left), _wide(right)
    zero = torch.zeros((), dtype=torch.float64, device=left.device)
    error = torch.where(both, (wide_left - wide_right).abs(), zero)
    return error, torch.where(both, wide_right.abs(), zero), both


def _classes(tensor: torch.Tensor) -> torch.Tensor:
    """Map elements to 0 (finite), 1 (NaN), 2 (inf) or 3 (-inf); fill values near the dtype's limit count as inf."""
    if tensor.is_complex():
        return torch.where(torch.isnan(tensor), 1, torch.where(torch.isinf(tensor), 2, 0))
    wide = tensor if tensor.dtype in (torch.float64, torch.float32) else tensor.to(torch.float32)
    limit = _NEAR_LIMIT * min(torch.finfo(tensor.dtype).max, torch.finfo(torch.float32).max)
    code = torch.where(wide >= limit, 2, torch.where(wide <= -limit, 3, 0))
    return torch.where(torch.isnan(wide), 1, code)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _sampled(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Take evenly spread elements without copying the rest."""
    if tensor.numel() <= count:
        return tensor.reshape(-1)
    picks = torch.linspace(0, tensor.numel() - 1, count, dtype=torch.float64, device=tensor.device).to(torch.int64)
    index, stride = [], tensor.numel()
    for size in tensor.shape:  # torch.unravel_index checks each element in Python
        stride //= size
        index.append((picks // stride) % size)
    return tensor[tuple(index)]
