"""Inputs of a run whose gradients are wanted: fresh leaves, handed over as tensors that may be written in place."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from compilebisect.runtime.tensor_copy import TensorCloner, base_of, extent, is_dense, is_plain, storage_key
from compilebisect.runtime.values import map_tensors, tensors_in


class GradLeaves:
    """Copies the inputs of one call and keeps the leaves that collect the gradients.

    Attributes:
        args: copied positional arguments.
        kwargs: copied keyword arguments.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._named = [*tensors_in(args, "inputs.args"), *tensors_in(kwargs, "inputs.kwargs")]
        distinct = {id(tensor): tensor for _, tensor in self._named}
        self._cloner = TensorCloner(list(distinct.values()))
        keys = [(storage_key(tensor), tensor) for tensor in distinct.values()]
        self._sharers = Counter(key for key, _ in keys)
        self._grouped = {
            key
            for key, tensor in keys
            if key is not None and tensor.requires_grad and (self._sharers[key] > 1 or not is_dense(tensor))
        }
        self._members = keys
        self._groups: dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor, int]] = {}
        self._leaves: dict[int, torch.Tensor] = {}
        self.args, self.kwargs = map_tensors((args, kwargs), self._convert)

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """Give the gradient of each input that requires one, by path."""
        found: dict[str, torch.Tensor | None] = {}
        for path, tensor in self._named:
            if not tensor.requires_grad:
                continue
            key = storage_key(tensor)
            if key in self._groups and id(tensor) not in self._leaves:
                leaf, _, first = self._groups[key]
                offset = tensor.storage_offset() - first
                grad = leaf.grad
                if grad is not None:
                    # laid out like the leaf, in whose memory the tensor's place is known
                    grad = torch.empty_like(leaf).copy_(grad).as_strided(tensor.shape, tensor.stride(), offset)
                found[path] = grad
            elif id(tensor) in self._leaves:
                found[path] = self._leaves[id(tensor)].grad
        return found

    def _convert(self, tensor: torch.Tensor) -> torch.Tensor:
        key = storage_key(tensor)
        if key in self._grouped and self._has_one_dtype(key):
            leaf, written, first = self._group(key, tensor)
            source = written if tensor.requires_grad else written.detach()
            is_base = (tensor.shape, tensor.stride(), first) == (leaf.shape, leaf.stride(), tensor.storage_offset())
            if is_base and tensor.requires_grad:
                return source
            return source.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - first)
        copy = self._cloner.clone(tensor)
        if not copy.requires_grad:
            return copy
        self._leaves[id(tensor)] = copy
        # autograd forbids in-place writes to a leaf, and inside a model the input is none
        return copy.clone() if is_plain(copy) else copy

    def _group(self, key: tuple[str, int], tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Make one leaf for all tensors of a storage, so that writes through one are seen by the others.

        It is a copy of the one that all others are views of, or flat memory where there is none.
        """
        if key not in self._groups and (base := self._common_base(key)) is not None:
            leaf = base.detach().clone().requires_grad_()
            self._groups[key] = leaf, leaf.clone(), int(base.storage_offset())
        if key not in self._groups:
            ranges = [extent(member) for other, member in self._members if other == key]
            size = tensor.element_size()
            first, end = min(low for low, _ in ranges) // size, max(high for _, high in ranges) // size
            flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            flat.set_(tensor.untyped_storage(), first, (end - first,), (1,))
            leaf = flat.clone().requires_grad_()
            self._groups[key] = leaf, leaf.clone(), first
        return self._groups[key]

    def _common_base(self, key: tuple[str, int]) -> torch.Tensor | None:
        bases = {id(base): base for other, member in self._members if other == key for base in [base_of(member)]}
        base = next(iter(bases.values()))
        if len(bases) > 1 or base is None or not is_dense(base) or base.is_conj() or base.is_neg():
            return None
        return base

    def _has_one_dtype(self, key: tuple[str, int] | None) -> bool:
        return len({member.dtype for other, member in self._members if other == key}) == 1
