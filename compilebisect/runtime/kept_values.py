"""Files of nested values, in which tensors stay what they were to each other: views of one base, lazy zeros."""

from __future__ import annotations

import pickle
import types
from pathlib import Path
from typing import Any

import torch

from compilebisect.runtime import torch_internals
from compilebisect.runtime.tensor_copy import base_of, is_plain


def save_values(value: Any, file: Path) -> None:
    """Write a value to a file.

    Raises:
        Exception: whatever pickling an object of the user's raises.
    """
    torch.save(value, file, pickle_module=_PICKLE)


def load_values(file: Path) -> Any:
    """Read a file of ours, which may hold any class of the user's."""
    return torch.load(file, weights_only=False)


class _Pickler(pickle.Pickler):
    """Keeps what torch's own way of pickling a tensor loses."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor:
            return NotImplemented
        if value.layout is torch.strided and torch_internals.is_lazy_zero(value):
            return torch_internals.lazy_zero, (tuple(value.shape), value.dtype, value.device)
        if not is_plain(value) or value.is_inference() or value.is_conj() or value._base is None:
            return NotImplemented
        base = base_of(value)
        if base is None:
            return NotImplemented
        return _view_of, (base, tuple(value.shape), value.stride(), value.storage_offset(), value.requires_grad)


def _view_of(
    base: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, requires_grad: bool
) -> torch.Tensor:
    with torch.no_grad():
        view = base.as_strided(shape, stride, offset)
    return view.requires_grad_(requires_grad)


_PICKLE = types.ModuleType("pickle")
vars(_PICKLE).update({name: item for name, item in vars(pickle).items() if not name.startswith("__")})
vars(_PICKLE)["Pickler"] = _Pickler
