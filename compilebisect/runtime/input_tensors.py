"""One tensor of the input spec, of any dtype and layout, from a random generator of its own.

Values are made on the CPU and then moved, so that they are the same on every device.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import torch

from compilebisect.core.spec_types import TensorLeaf, size_value
from compilebisect.error_text import error_line
from compilebisect.errors import CannotTestError

_MEMORY_FORMATS = {
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
    "contiguous_format": torch.contiguous_format,
}
# Dtypes in which torch draws and fills directly; all others are cast from the nearest of these.
_NATIVE = (torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int64)


def make_tensor(
    leaf: TensorLeaf,
    *,
    dims: Mapping[str, int],
    device: torch.device,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> torch.Tensor:
    """Make the tensor of a leaf.

    Args:
        leaf: what to make.
        dims: the size of each named dim.
        device: where the tensor goes if the leaf names no device.
        dtype: the dtype if the leaf names none.
        generator: a CPU generator; its state advances.

    Raises:
        CannotTestError: there is not enough memory, or no such device.
    """
    sizes = [size_value(size, dims) for size in leaf.shape]
    own_dtype = getattr(torch, leaf.dtype) if leaf.dtype else dtype
    try:
        _check_memory(math.prod(sizes) * own_dtype.itemsize)
        tensor = _laid_out(leaf, sizes, own_dtype, dims, generator).to(leaf.device or device)
    except (RuntimeError, AssertionError, MemoryError) as exc:  # torch without CUDA raises AssertionError
        raise CannotTestError(
            f"cannot make a tensor of shape {sizes} and dtype {str(own_dtype).removeprefix('torch.')} "
            f"on {leaf.device or device}: {error_line(exc)}",
            where=leaf.where,
            fix="Give a smaller shape, or a device and dtype that this machine has.",
        ) from exc
    return tensor.requires_grad_() if leaf.requires_grad else tensor


def _check_memory(needed_bytes: int) -> None:
    """Check that the machine has so much memory; the system promises more, and kills whoever takes it at its word.

    Raises:
        MemoryError: it has less.
    """
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed_bytes > there:
        raise MemoryError(f"it takes {needed_bytes / 2**30:.1f} GiB, and this machine has {there / 2**30:.1f} GiB")


def _laid_out(
    leaf: TensorLeaf, sizes: list[int], dtype: torch.dtype, dims: Mapping[str, int], generator: torch.Generator
) -> torch.Tensor:
    """Make the values in the memory layout that the leaf asks for."""
    if leaf.memory_format:
        values = _filled(leaf, sizes, dtype, dims, generator)
        return values.contiguous(memory_format=_MEMORY_FORMATS[leaf.memory_format])
    if leaf.stride is None:
        return _filled(leaf, sizes, dtype, dims, generator)
    stride = [size_value(step, dims) for step in leaf.stride]
    # a dim of stride 0 holds one slice only, which is seen many times
    held = [min(size, 1) if step == 0 else size for size, step in zip(sizes, stride, strict=True)]
    if _overlaps(held, stride):
        # reading order has no meaning here: the memory is filled, and the tensor is a view of it
        extent = 1 + sum((size - 1) * step for size, step in zip(sizes, stride, strict=True))
        return _filled(leaf, [extent], dtype, dims, generator).as_strided(sizes, stride)
    memory = torch.empty_strided(held, stride, dtype=dtype)
    memory.copy_(_filled(leaf, held, dtype, dims, generator))
    return memory.as_strided(sizes, stride)


def _overlaps(sizes: Sequence[int], stride: Sequence[int]) -> bool:
    """Tell whether several indices may share one place in memory; no such pair is missed."""
    extent = 0
    for step, size in sorted((step, size) for step, size in zip(stride, sizes, strict=True) if size > 1):
        if step <= extent:
            return True
        extent += step * (size - 1)
    return False


def _filled(
    leaf: TensorLeaf, sizes: Sequence[int], dtype: torch.dtype, dims: Mapping[str, int], generator: torch.Generator
) -> torch.Tensor:
    """Make a contiguous tensor by the leaf's `init`."""
    if leaf.init == "zeros":
        return torch.zeros(sizes, dtype=torch.uint8).to(dtype)
    if leaf.init == "ones":
        return torch.ones(sizes, dtype=torch.uint8).to(dtype)
    if leaf.init == "full":
        return torch.full(sizes, leaf.value, dtype=_working_dtype(dtype, leaf.value)).to(dtype)
    if leaf.init == "arange":
        return torch.arange(math.prod(sizes)).reshape(tuple(sizes)).to(dtype)
    if leaf.init == "eye":
        return torch.eye(*sizes).to(dtype)
    if leaf.init == "randint":
        low, high = size_value(leaf.low, dims), size_value(leaf.high, dims)
        return torch.randint(low, high, tuple(sizes), generator=generator).to(dtype)
    draw = torch.rand if leaf.init == "rand" else torch.randn
    return draw(tuple(sizes), dtype=_working_dtype(dtype), generator=generator).to(dtype)


def _working_dtype(dtype: torch.dtype, value: float = 0) -> torch.dtype:
    """Return the dtype in which values are made before the cast."""
    if dtype in _NATIVE or (dtype is torch.uint64 and value > torch.iinfo(torch.int64).max):
        return dtype
    if dtype.is_complex:
        return torch.complex64
    return torch.float32 if dtype.is_floating_point else torch.int64
