"""Descriptions of tensors: how to make one with the same metadata, from a seed where that is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from compilebisect.core.repro_case import Fill, TensorValue
from compilebisect.runtime.torch_internals import is_lazy_zero, size_hint, with_other_sign_bit

# Largest number of elements whose values are looked at to choose a likeness; beyond it a prefix is.
_SCAN_LIMIT = 1 << 22
# Tensors of up to that many integers are written out.
_WRITTEN_OUT = 16
_PLAIN_TYPES = ("Tensor", "Parameter", "Buffer")


class TensorFile:
    """Collects tensors by key and writes them once, in safetensors' format, without sharing of storage."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors: dict[str, torch.Tensor] = {}

    def add(self, key: str, tensor: torch.Tensor) -> None:
        """Keep a copy of `tensor`, contiguous and on the CPU."""
        self._tensors[key] = tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format)

    def write(self) -> bool:
        """Write the file; returns False where there was nothing to write."""
        if not self._tensors:
            return False
        from safetensors.torch import save_file  # loaded late: most cases need no file

        self.path.parent.mkdir(parents=True, exist_ok=True)
        save_file(self._tensors, str(self.path))
        return True


def keep_tensors(path: Path, keys: Sequence[str]) -> None:
    """Drop from a file of tensors those that are not among `keys`; a key that ends in a dot stands for all below it."""
    from safetensors.torch import load_file, save_file

    prefixes = tuple(key for key in keys if key.endswith("."))
    tensors = load_file(str(path))
    kept = {key: tensor for key, tensor in tensors.items() if key in keys or key.startswith(prefixes)}
    if len(kept) < len(tensors):
        save_file(kept, str(path))


def tensor_value(
    tensor: torch.Tensor, key: str, *, device: str, file: TensorFile | None = None, keep_layout: bool = True
) -> TensorValue:
    """Describe `tensor`; with `file` its values are saved there under `key`, else a seeded likeness is chosen.

    Args:
        tensor: a real or a fake tensor; nothing is scanned in a fake one.
        device: the device that the script will be asked for; tensors on another keep theirs by name.
        keep_layout: False describes it as contiguous.

    Raises:
        TypeError: for tensor subclasses and layouts that a script cannot make from shape and dtype.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"tensors of layout {tensor.layout} cannot be rebuilt")
    is_fake = type(tensor).__name__ not in _PLAIN_TYPES
    if is_fake and type(tensor).__name__ not in ("FakeTensor", "FunctionalTensor"):
        raise TypeError(f"tensors of class {type(tensor).__name__} cannot be rebuilt")
    if not is_fake and is_lazy_zero(tensor):
        shape = tuple(tensor.shape)
        return TensorValue(shape=shape, dtype=str(tensor.dtype).removeprefix("torch."), fill=Fill.FULL, lazily="zero")
    if not is_fake and (tensor.is_conj() or tensor.is_neg()):
        turned = tensor.detach().conj() if tensor.is_conj() else with_other_sign_bit(tensor.detach())
        plain = tensor_value(turned, key, device=device, file=file, keep_layout=keep_layout)
        return msgspec.structs.replace(plain, lazily="conj" if tensor.is_conj() else "neg")
    shape = tuple(size_hint(size) for size in tensor.shape)
    stride = tuple(size_hint(step) for step in tensor.stride())
    common = {
        "shape": shape,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": "" if tensor.device.type == torch.device(device).type else tensor.device.type,
        "requires_grad": tensor.requires_grad,
        "is_parameter": isinstance(tensor, torch.nn.Parameter),
    }
    if keep_layout and stride != _contiguous(shape):
        common["stride"] = stride
        if not is_dense(shape, stride):
            common["storage"] = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
            if 0 in shape:
                common["storage"] = 0
    if file is not None and not is_fake:
        file.add(key, tensor)
        return TensorValue(fill=Fill.SAVED, key=key, **common)  # type: ignore[arg-type]  # fields of mixed types
    if not is_fake and _is_short(tensor):
        written = tuple(int(item) for item in tensor.detach().reshape(-1).tolist())
        return TensorValue(fill=Fill.VALUES, values=written, **common)  # type: ignore[arg-type]  # see above
    fill, low, high = _default_fill(tensor.dtype) if is_fake or tensor.is_meta else _likeness(tensor)
    return TensorValue(fill=fill, low=low, high=high, **common)  # type: ignore[arg-type]  # fields of mixed types


def _is_short(tensor: torch.Tensor) -> bool:
    # Lengths, sizes and the like: few integers whose values say what the rest means.
    if tensor.is_meta or tensor.is_floating_point() or tensor.is_complex():
        return False
    return 1 < tensor.numel() <= _WRITTEN_OUT and _likeness(tensor)[0] in (Fill.RANDINT, Fill.BOOL)


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether the elements fill one block without gaps and overlaps, in some order of the dimensions."""
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return 0 not in shape


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _default_fill(dtype: torch.dtype) -> tuple[Fill, float | int, float | int]:
    if dtype is torch.bool:
        return Fill.BOOL, 0, 1
    if dtype.is_floating_point or dtype.is_complex:
        return Fill.RANDN, 0, 1
    return Fill.RANDINT, 0, 2


def _likeness(tensor: torch.Tensor) -> tuple[Fill, float | int, float | int]:
    if tensor.numel() == 0 or tensor.dtype.is_complex:
        return _default_fill(tensor.dtype)
    with torch.no_grad():
        values = tensor.detach().reshape(-1)[:_SCAN_LIMIT].cpu()
        if tensor.dtype is torch.bool:
            first = bool(values[0])
            return (Fill.FULL, int(first), 0) if bool((values == first).all()) else (Fill.BOOL, 0, 1)
        if not tensor.dtype.is_floating_point:
            return _integer_likeness(values.to(torch.int64))
        return _float_likeness(values.double())


def _integer_likeness(values: torch.Tensor) -> tuple[Fill, float | int, float | int]:
    low, high = int(values.min()), int(values.max())
    if low == high:
        return Fill.FULL, low, 0
    steps = values.diff()
    if len(values) > 2 and bool((steps == steps[0]).all()):
        return Fill.ARANGE, low if steps[0] > 0 else high, int(steps[0])
    return Fill.RANDINT, low, high + 1


def _float_likeness(values: torch.Tensor) -> tuple[Fill, float | int, float | int]:
    first = float(values[0])
    if bool((values == first).all()) and math.isfinite(first):
        return Fill.FULL, first, 0
    finite = values[values.isfinite()]
    if len(finite) < 2:
        return Fill.RANDN, 0, 1
    low, high = float(finite.min()), float(finite.max())
    if low >= 0 and len(values) > 1:
        return Fill.RAND, _short(low), _short(high)
    if len(finite) < 16:
        return Fill.RANDN, 0, 1  # too few to say what they are like
    spread, middle = float(finite.std()), float(finite.mean())
    scale = 1.0 if 0.5 < spread < 2 else _short(spread)
    shift = _short(middle) if abs(middle) > 2 * spread else 0.0
    return Fill.RANDN, shift, scale


def _short(number: float) -> float:
    return float(f"{number:.2g}")
