"""Moving of nested values between devices, for what a file or a function of the user gave."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

_NO_PARTS = (torch.Tensor, type, ModuleType, FunctionType, MethodType, str, bytes, int, float, complex)


def move_to_device(value: Any, device: torch.device | str) -> Any:
    """Return a value with all its tensors on the device; it is returned untouched if they are there already.

    Objects with a `to` method of their own are moved by it. Lists, dicts, dataclasses and the attributes of other
    objects are changed in place, tuples are made anew. A tensor that occurs twice stays one tensor; two views of one
    memory become two memories.
    """
    device = torch.device(device)
    return _Mover(device).move(value) if _is_elsewhere(value, device, {}) else value


def _is_elsewhere(value: Any, device: torch.device, seen: dict[int, Any]) -> bool:
    """Tell whether a value holds a tensor that is not on the device. `seen` keeps what was visited alive."""
    if id(value) in seen:
        return False
    seen[id(value)] = value
    if isinstance(value, torch.Tensor):
        return not _is_on(value, device)
    return any(_is_elsewhere(part, device, seen) for part in _parts(value))


def _is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)


def _parts(value: Any) -> Iterable[Any]:
    if value is None or isinstance(value, _NO_PARTS):
        return
    if isinstance(value, dict):
        yield from list(value.values())
    elif isinstance(value, (list, tuple)):
        yield from list(value)
    for name in _attributes(value):
        yield getattr(value, name, None)
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()


def _attributes(value: Any) -> list[str]:
    """Return the names of an object's attributes: of its dict, and of a dataclass the fields that may be slots."""
    names = dict.fromkeys(getattr(value, "__dict__", {}))
    if dataclasses.is_dataclass(value):
        names.update(dict.fromkeys(field.name for field in dataclasses.fields(value)))
    return list(names)


class _Mover:
    """Remembers what it moved, so that shared values stay shared and cycles end."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # each original is kept with its result, so that its id is not used again
        self._moved: dict[int, tuple[Any, Any]] = {}

    def move(self, value: Any) -> Any:
        if id(value) not in self._moved:
            self._moved[id(value)] = (value, value)
            self._moved[id(value)] = (value, self._move(value))
        return self._moved[id(value)][1]

    def _move(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if _is_on(value, self._device):
                return value
            return value.detach().to(self._device).requires_grad_(value.requires_grad)
        if value is None or isinstance(value, _NO_PARTS) or not _is_elsewhere(value, self._device, {}):
            return value
        if callable(getattr(value, "to", None)):
            try:
                moved = value.to(self._device)
            except (TypeError, ValueError, AttributeError):  # a `to` that means something else: walked instead
                pass
            else:
                return value if moved is None else moved
        return self._walked(value)

    def _walked(self, value: Any) -> Any:
        if isinstance(value, tuple):
            items = [self.move(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, list):
            for index, item in enumerate(list(value)):
                value[index] = self.move(item)
        elif isinstance(value, dict):
            for key, item in list(value.items()):
                value[key] = self.move(item)
        for name in _attributes(value):
            if hasattr(value, name):
                # not setattr: the dataclass may be frozen
                object.__setattr__(value, name, self.move(getattr(value, name)))
        return value
