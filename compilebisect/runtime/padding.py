"""Pads the arguments of a model to the lengths of buckets, as a user would before each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from compilebisect.runtime.values import entries_of

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Padding:
    """What to pad: sizes by dim, where these dims stand in tensors, and which arguments are such a size themselves."""

    def __init__(
        self, sizes: Mapping[str, int], tensors: Mapping[str, Mapping[int, str]], numbers: Mapping[str, str]
    ) -> None:
        """Args: new sizes by dim; dims of tensors by path and index; dims that are arguments, by path."""
        self._sizes, self._tensors, self._numbers = sizes, tensors, numbers

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return padded arguments; what is added is zero, or False."""
        return (
            tuple(self._padded(item, f"args[{index}]") for index, item in enumerate(args)),
            {name: self._padded(item, f"kwargs[{name!r}]") for name, item in kwargs.items()},
        )

    def _padded(self, value: Any, path: str) -> Any:
        if path in self._numbers:
            return self._sizes.get(self._numbers[path], value)
        if isinstance(value, torch.Tensor):
            for index, name in self._tensors.get(path, {}).items():
                value = _filled_up(value, index, self._sizes.get(name, value.shape[index]))
            return value
        if type(value) in (list, tuple, dict):
            items = [(key, self._padded(item, f"{path}{suffix}")) for suffix, key, item in entries_of(value) or ()]
            return dict(items) if type(value) is dict else type(value)(item for _, item in items)
        return value


def _filled_up(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    missing = size - tensor.shape[dim]
    if missing <= 0:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(*tensor.shape[:dim], missing, *tensor.shape[dim + 1 :])], dim)
