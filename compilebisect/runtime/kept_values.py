"""Files of nested values, in which tensors stay what they were to each other: views of one base, lazy zeros."""

from __future__ import annotations

import pickle
import types
from pathlib import Path
from typing import Any

import torch

from compilebisect.attempt import attempt
from compilebisect.core.module_tree import IN_TRACE, IN_TRANSFORM
from compilebisect.runtime import torch_internals
from compilebisect.runtime.observing import NotObservedError
from compilebisect.runtime.tensor_copy import base_of, is_plain


def save_values(value: Any, file: Path) -> None:
    """Write a value to a file.

    Raises:
        BaseException: whatever pickling an object of the user's raises; no file is left.
    """
    error = attempt(torch.save, value, file, pickle_module=_PICKLE).error
    if error is not None:
        file.unlink(missing_ok=True)
        raise error


def check_can_be_kept(value: Any) -> None:
    """Pickle a value without the contents of its tensors, to nowhere.

    Raises:
        BaseException: as `save_values`.
    """
    _Rehearsal(_Nowhere(), protocol=2).dump(value)


def load_values(file: Path) -> Any:
    """Read a file of ours, which may hold any class of the user's."""
    return torch.load(file, weights_only=False)


class _Pickler(pickle.Pickler):
    """Keeps what torch's own way of pickling a tensor loses or refuses."""

    def reducer_override(self, value: Any) -> Any:
        if torch_internals.is_stand_in(value):
            raise NotObservedError(IN_TRACE)
        if not issubclass(type(value), torch.Tensor):
            return NotImplemented
        if torch_internals.is_within_function_transform(value):
            raise NotObservedError(IN_TRANSFORM)
        if type(value) is not torch.Tensor:
            return NotImplemented
        if value.is_mkldnn:
            return torch.Tensor.to_mkldnn, (value.to_dense(),)
        if value.layout is torch.strided and torch_internals.is_lazy_zero(value):
            return torch_internals.lazy_zero, (tuple(value.shape), value.dtype, value.device)
        if not is_plain(value) or value.is_inference() or value.is_conj() or value._base is None:
            return NotImplemented
        base = base_of(value)
        if base is None:
            return NotImplemented
        return _view_of, (base, tuple(value.shape), value.stride(), value.storage_offset(), value.requires_grad)


class _Rehearsal(_Pickler):
    def persistent_id(self, value: Any) -> Any:
        if not (isinstance(value, torch.storage.TypedStorage) or torch.is_storage(value)):
            return None
        if value.device.type != "meta":
            value.data_ptr()  # raises where there is no memory that could be written
        return id(value)


class _Nowhere:
    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def _view_of(
    base: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, requires_grad: bool
) -> torch.Tensor:
    with torch.no_grad():
        view = base.as_strided(shape, stride, offset)
    return view.requires_grad_(requires_grad)


_PICKLE = types.ModuleType("pickle")
vars(_PICKLE).update({name: item for name, item in vars(pickle).items() if not name.startswith("__")})
vars(_PICKLE)["Pickler"] = _Pickler
