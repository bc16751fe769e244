"""Inputs one ulp away: what eager makes of them tells how far rounding alone can carry a result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from compilebisect.runtime.figures import is_inexact
from compilebisect.runtime.tensor_copy import UNSUPPORTED, TensorCloner, is_plain, without_expanded
from compilebisect.runtime.values import map_tensors, tensors_in

#: The nudge that moves all values upward: sums whose terms cancel do not show their noise under random signs.
UPWARD = 1
_NEAR_LIMIT = 0.99


def nudged_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], *, number: int = 0, seed: int = 0
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copy inputs with each floating value moved by one ulp.

    Zeros, infinities, fill values near the dtype's limit and tensors of whole numbers (masks, positions) stay.
    Nudge number `UPWARD` moves all values up, the others have random signs of their own.
    """
    cloner = TensorCloner([tensor for _, tensor in tensors_in((args, kwargs))])
    nudger = _Nudger(number, seed)

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        copy = cloner.clone(tensor)
        if copy is not tensor:
            nudger.nudge(copy.detach())
        return copy

    moved: tuple[tuple[Any, ...], dict[str, Any]] = map_tensors((args, kwargs), convert)
    return moved


def can_nudge(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Say whether any input has values that a nudge moves."""
    return any(_is_nudged(tensor) for _, tensor in tensors_in((args, kwargs)))


@contextlib.contextmanager
def nudged_parameters(module: nn.Module, *, number: int = 0, seed: int = 0) -> Iterator[None]:
    """Move a module's parameters by one ulp for a while; for modules whose inputs are whole numbers."""
    nudger = _Nudger(number, seed)
    originals = []
    try:
        for parameter in module.parameters():
            if not nn.parameter.is_lazy(parameter) and _is_nudged(parameter):
                originals.append((parameter, parameter.data))
                moved = TensorCloner([parameter.data]).clone(parameter.data)
                nudger.nudge(moved)
                parameter.data = moved
        yield
    finally:
        for parameter, original in originals:
            parameter.data = original


class _Nudger:
    def __init__(self, number: int, seed: int) -> None:
        self._is_upward = number == UPWARD
        self._seed = 1_000_003 * (number + 1) + seed
        self._done: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()

    def nudge(self, tensor: torch.Tensor) -> None:
        """Move values in place."""
        if not _is_nudged(tensor):
            return
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if key in self._done:  # the same memory under a second name moves once
            return
        self._done.add(key)
        generator = torch.Generator(device=tensor.device).manual_seed(self._seed + len(self._done))
        with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
            target = without_expanded(tensor)
            parts = torch.view_as_real(target) if target.is_complex() else target
            try:
                parts.copy_(self._moved(parts, generator))
            except UNSUPPORTED:  # overlapping memory: left as it is
                return

    def _moved(self, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        info = torch.finfo(tensor.dtype)
        wide = tensor.to(torch.float64)
        _, exponent = torch.frexp(wide)
        ulp = torch.ldexp(torch.full_like(wide, info.eps), exponent - 1)
        if not self._is_upward:
            signs = torch.randint(0, 2, wide.shape, generator=generator, device=wide.device)
            ulp = ulp * (2 * signs - 1)
        stays = (wide == 0) | ~torch.isfinite(wide) | (wide.abs() >= _NEAR_LIMIT * info.max)
        return torch.where(stays, wide, wide + ulp).to(tensor.dtype)


def _is_nudged(tensor: torch.Tensor) -> bool:
    if not is_plain(tensor) or not is_inexact(tensor) or tensor.numel() == 0 or tensor.dtype.itemsize == 1:
        return False
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return not bool((values == values.round()).all())
