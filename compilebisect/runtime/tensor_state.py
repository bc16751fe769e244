"""One watched tensor of a module's state: what it was, whether a run changed it, how to put it back."""

from __future__ import annotations

from typing import Any

import torch

from compilebisect.runtime.tensor_copy import UNSUPPORTED, TensorCloner, is_plain, without_expanded


def bits_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Say whether two tensors of one shape and dtype hold the same values, NaN being equal to itself."""
    if left.shape != right.shape or left.dtype != right.dtype or left.device != right.device:
        return False
    try:
        if left.numel() == 0 or torch.equal(left, right):
            return True
    except UNSUPPORTED:  # a dtype without comparison, such as float8 on some devices: bytes tell
        pass
    if not (left.is_floating_point() or left.is_complex()):
        return False
    as_bytes = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right)]
    return torch.equal(*as_bytes)


def version_of(tensor: torch.Tensor) -> int | None:
    """Give the counter of in-place writes; None for tensors that do not keep one."""
    try:
        return tensor._version
    except UNSUPPORTED:  # inference tensors
        return None


class TensorState:
    """Remembers a tensor; with `keep_values` also its values, so that in-place writes can be undone."""

    def __init__(self, tensor: torch.Tensor, *, keep_values: bool, cloner: TensorCloner | None = None) -> None:
        self.tensor = tensor
        self._requires_grad = tensor.requires_grad
        self._had_history = tensor.grad_fn is not None
        self._version = version_of(tensor)
        # shares the storage: puts back what `.data = ...`, `set_` or `resize_` swapped
        self._alias = tensor.detach() if is_plain(tensor) else None
        self._address = tensor.data_ptr() if self._alias is not None else 0
        self._values = self._copy(cloner) if keep_values else None
        self.grad = tensor.grad if tensor.is_leaf else None
        self._grad_values = self.grad.detach().clone() if keep_values and self.grad is not None else None

    def _copy(self, cloner: TensorCloner | None) -> torch.Tensor | None:
        if self._alias is not None:
            return (cloner or TensorCloner([self._alias])).clone(self._alias)
        try:
            return self.tensor.detach().clone()
        except UNSUPPORTED:
            return None

    @property
    def is_restorable(self) -> bool:
        """Whether the values from before are known."""
        return self._values is not None

    def is_touched(self) -> bool:
        """Say whether the tensor was written to, resized or moved, whatever it holds now."""
        return self._version != version_of(self.tensor) or self._is_moved()

    def is_changed(self) -> bool:
        """Say whether it holds other values now; by its version alone where no values were kept."""
        if self._values is None or self._alias is None:
            return self.is_touched()
        if self._is_moved() and self.tensor.shape != self._alias.shape:
            return True
        return not bits_equal(self.tensor.detach(), self._values)

    def equals_original(self, other: Any) -> bool:
        """Say whether another tensor, put in this one's place, holds what this one held."""
        before = self._values if self._values is not None else self._alias
        if before is None or not isinstance(other, torch.Tensor) or not is_plain(other):
            return False
        return bits_equal(other.detach(), before)

    def restore(self) -> bool:
        """Put values, storage, flags and `.grad` back; False where that is not possible."""
        with torch.no_grad():
            self._drop_new_history()
            if self._is_moved() and self._alias is not None:
                self.tensor.data = self._alias
            done = self._restore_values()
            if self.tensor.is_leaf and self.tensor.requires_grad != self._requires_grad:
                self.tensor.requires_grad_(self._requires_grad)
            if self.tensor.is_leaf and (self.tensor.grad is not None or self.grad is not None):
                self.tensor.grad = self.grad
                if self.grad is not None and self._grad_values is not None:
                    self.grad.detach().copy_(self._grad_values)
        self._version = version_of(self.tensor)
        return done

    def _restore_values(self) -> bool:
        if self._values is None:
            return not self.is_touched()
        if self._alias is None:
            if not self.is_touched():
                return True
            try:
                self.tensor.detach().copy_(self._values)
            except UNSUPPORTED:
                return False
            return True
        if not bits_equal(self._alias, self._values):
            _write(self._alias, self._values)
        return True

    def _drop_new_history(self) -> None:
        """Cut the graph that an in-place write in grad mode hung onto a tensor that had none."""
        if self._had_history or self.tensor.grad_fn is None:
            return
        try:
            self.tensor.detach_()
        except UNSUPPORTED:  # views cannot be detached in place; their values are put back all the same
            return

    def _is_moved(self) -> bool:
        if self._alias is None:
            return False
        now = self.tensor
        if not is_plain(now) or now.dtype != self._alias.dtype or now.device != self._alias.device:
            return True
        return now.data_ptr() != self._address or now.shape != self._alias.shape or now.stride() != self._alias.stride()


def _write(target: torch.Tensor, values: torch.Tensor) -> None:
    with torch.inference_mode(target.is_inference()):
        without_expanded(target).copy_(without_expanded(values))
