"""Copies of tensors that keep strides, offsets and which of them share memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from compilebisect.runtime import torch_internals

#: Storages above this size are only copied as far as the tensors at hand reach into them.
_WHOLE_STORAGE_BYTES = 1 << 20
#: Kernels ask whether an address is aligned, so a trimmed copy starts at a multiple of this many bytes.
_ALIGNMENT = 64

#: What is raised when a tensor has no storage, no strides or no kernel for what is asked. A class of the user's that
#: handles operators itself may raise anything, a `KeyError` from its table of them for example.
UNSUPPORTED = (Exception,)


def is_plain(tensor: torch.Tensor) -> bool:
    """Say whether a tensor is dense strided memory that can be read.

    No subclass, fake, sparse or nested one; nor what a transform of `torch.func` makes of another, or zeros without
    memory.
    """
    return (
        type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and tensor.device.type != "meta"
        and _has_memory(tensor)
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        tensor.untyped_storage().data_ptr()
    except UNSUPPORTED:  # torch has no other way to tell all kinds
        return False
    return True


def storage_key(tensor: torch.Tensor) -> tuple[str, int] | None:
    """Identify the memory behind a tensor; None where it has none."""
    if not is_plain(tensor) or tensor.numel() == 0:
        return None
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Give first byte and end of the range that a plain tensor reaches in its storage."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    span = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (int(span) + 1) * size


def is_dense(tensor: torch.Tensor) -> bool:
    """Say whether a strided tensor fills its range without gaps and overlaps, in whatever order."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def without_expanded(tensor: torch.Tensor) -> torch.Tensor:
    """Cut expanded dimensions down to the one element that is behind them, so that it can be written to."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Give the plain tensor of the same dtype that a plain one is a view of, itself where it is none."""
    base = tensor._base
    if base is None:
        return tensor
    is_same = type(base) is torch.Tensor and base.dtype == tensor.dtype and is_plain(base) and not tensor.is_neg()
    return base if is_same and base.is_conj() == tensor.is_conj() and _covers(base, tensor) else None


def share_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """Say whether two different ones of these tensors lie in one storage."""
    keys = [key for tensor in {id(tensor): tensor for tensor in tensors}.values() if (key := storage_key(tensor))]
    return len(set(keys)) < len(keys)


class TensorCloner:
    """Clones the tensors of one value; two that share a storage share one in the copy too."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._extents: dict[tuple[str, int], tuple[int, int]] = {}
        self._sharers: dict[tuple[str, int], int] = {}
        distinct = {id(tensor): tensor for tensor in tensors}.values()
        for tensor in distinct:
            key = storage_key(tensor)
            if key is not None:
                self._reach(key, tensor)
                self._sharers[key] = self._sharers.get(key, 0) + 1
        for tensor in distinct:
            key = storage_key(tensor)
            if key is not None and self._sharers[key] > 1 and (base := base_of(tensor)) is not None:
                self._reach(key, base)
        self._storages: dict[tuple[str, int], tuple[torch.Tensor, int]] = {}
        self._clones: dict[int, torch.Tensor] = {}
        self._bases: dict[int, torch.Tensor] = {}
        self._originals: list[torch.Tensor] = []  # keeps the ids of the clones valid

    def _reach(self, key: tuple[str, int], tensor: torch.Tensor) -> None:
        start, end = extent(tensor)
        low, high = self._extents.get(key, (start, end))
        self._extents[key] = min(low, start), max(high, end)

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy one tensor, as a leaf that requires grad if the original does.

        A tensor that cannot be copied (no kernel for its layout, not yet initialised) is handed back itself.
        """
        if nn.parameter.is_lazy(tensor):
            return tensor
        if id(tensor) not in self._clones:
            self._originals.append(tensor)
            # a copy of an inference tensor must be one too, since autograd treats them differently
            with torch.inference_mode(_is_inference(tensor)), torch.no_grad():
                self._clones[id(tensor)] = self._clone_new(tensor)
        return self._clones[id(tensor)]

    def _clone_new(self, tensor: torch.Tensor) -> torch.Tensor:
        key = storage_key(tensor)
        try:
            if tensor.device.type == "meta" and type(tensor) is torch.Tensor and tensor.layout is torch.strided:
                new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            elif type(tensor) is torch.Tensor and torch_internals.is_lazy_zero(tensor):
                new = torch_internals.lazy_zero(tuple(tensor.shape), tensor.dtype, tensor.device)
            elif key is None or key not in self._extents:
                new = tensor.detach().clone()
            else:
                new = self._base_view(tensor, key)
            return _with_flags(new, tensor)
        except UNSUPPORTED:
            return tensor

    def _base_view(self, tensor: torch.Tensor, key: tuple[str, int]) -> torch.Tensor:
        """Keep "is a view of" between two tensors of one value: compilers treat views of one base as a group."""
        base = base_of(tensor) if self._sharers[key] > 1 else None
        # autograd takes no writes to views of leaves: what requires a gradient is a leaf of its own here
        if base is None or tensor.requires_grad or base.requires_grad:
            return self._rebuild(tensor.detach(), key)
        if id(base) not in self._bases:
            self._originals.append(base)
            self._bases[id(base)] = self._rebuild(base.detach(), key)
        if base is tensor:
            return self._bases[id(base)]
        offset = self._storages[key][1] // tensor.element_size()
        return self._bases[id(base)].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - offset)

    def _rebuild(self, tensor: torch.Tensor, key: tuple[str, int]) -> torch.Tensor:
        if tensor.is_conj():
            return self._rebuild(tensor.conj(), key).conj()
        if tensor.is_neg():
            plain = torch_internals.with_other_sign_bit(tensor)
            return torch_internals.with_other_sign_bit(self._rebuild(plain, key))
        copied, skipped_bytes = self._copied_storage(tensor, key)
        new = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = tensor.storage_offset() - skipped_bytes // tensor.element_size()
        return new.set_(copied.untyped_storage(), offset, tensor.shape, tensor.stride())

    def _copied_storage(self, tensor: torch.Tensor, key: tuple[str, int]) -> tuple[torch.Tensor, int]:
        """Copy the storage once; gives its bytes and how many of them were left out in front."""
        if key not in self._storages:
            storage = tensor.untyped_storage()
            first, end = self._extents[key]
            start, stop = extent(tensor)
            first, end = min(first, start), max(end, stop)
            if storage.nbytes() <= _WHOLE_STORAGE_BYTES or 2 * (end - first) > storage.nbytes():
                first, end = 0, storage.nbytes()
            first -= first % _ALIGNMENT
            source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, first, (end - first,), (1,))
            self._storages[key] = source.clone(), first
        return self._storages[key]


def _with_flags(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    if type(old) is nn.Parameter:
        new = nn.Parameter(new, requires_grad=old.requires_grad)
    elif type(old) is nn.Buffer:
        new = nn.Buffer(new, persistent=getattr(old, "persistent", True))
    elif old.requires_grad and not new.requires_grad and new._base is None:
        new.requires_grad_()
    if type(old) in (torch.Tensor, nn.Parameter) and old.__dict__:
        new.__dict__.update(old.__dict__)
    return new


def _covers(base: torch.Tensor, view: torch.Tensor) -> bool:
    (first, end), (start, stop) = extent(base), extent(view)
    return first <= start and stop <= end


def _is_inference(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_inference()
    except UNSUPPORTED:
        return False
