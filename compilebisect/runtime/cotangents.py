"""Golden cotangents: the gradients that reached a module's outputs in a real backward pass of the whole model.

They are caught by hooks on the output tensors, which change nothing that is computed, and go straight to files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle, unserializable_hook

from compilebisect.runtime.figures import is_inexact
from compilebisect.runtime.observing import observe
from compilebisect.runtime.tensor_copy import is_plain
from compilebisect.runtime.values import tensors_in

#: Gradients by the path of an output, as in `output.logits`.
Cotangents = Mapping[str, torch.Tensor]


class CotangentHooks:
    """Hooks that write the gradients of outputs to files once a backward pass reaches them, until they are removed."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def keep(self, output: Any, file: Path) -> None:
        """Watch a call's outputs; their gradients go to files beside `file`."""
        distinct = {id(tensor): (path, tensor) for path, tensor in tensors_in(output, "output")}
        for number, (path, tensor) in enumerate(distinct.values()):
            if is_plain(tensor) and tensor.requires_grad and is_inexact(tensor):
                self._watch(tensor, path, file.with_suffix(f".cotangent{number}"))

    def remove(self) -> None:
        """Take the hooks off: an output may be a parameter, which lives on."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watch(self, tensor: torch.Tensor, path: str, file: Path) -> None:
        @unserializable_hook  # type: ignore[untyped-decorator] # torch left both without annotations
        def keep(gradient: torch.Tensor) -> None:
            # A model may differentiate inside its forward; what the loss sends comes last and stays.
            observe(lambda: _save(gradient, path, file), lambda why: file.unlink(missing_ok=True))

        self._handles.append(tensor.register_hook(keep))  # type: ignore[no-untyped-call]


def _save(gradient: torch.Tensor, path: str, file: Path) -> None:
    torch.save((path, gradient.detach()), file)


def made_up_cotangent(output: torch.Tensor, seed: int) -> torch.Tensor:
    """Draw a cotangent for an output: another weight for each element shows more than ones would."""
    if not is_plain(output):
        return torch.ones_like(output)
    generator = torch.Generator(device=output.device).manual_seed(seed)
    drawn = torch.randn(output.shape, generator=generator, device=output.device, dtype=torch.float32)
    return drawn.to(output.dtype)


def load_cotangents(file: Path) -> dict[str, torch.Tensor]:
    """Read the cotangents of one call; none where they are all zero or not all finite, which would tell nothing.

    Those in float16 are scaled together by a power of two, as a loss scale does, so that they do not underflow.
    """
    pairs = [torch.load(found, weights_only=False) for found in sorted(file.parent.glob(f"{file.stem}.cotangent*"))]
    found = dict(pairs)
    largest = [float(tensor.abs().max()) for tensor in found.values() if tensor.numel()]
    if not largest or max(largest) == 0.0 or not all(bool(tensor.isfinite().all()) for tensor in found.values()):
        return {}
    if any(tensor.dtype is torch.float16 for tensor in found.values()):
        _, exponent = torch.frexp(torch.tensor(max(largest), dtype=torch.float64))
        found = {path: torch.ldexp(tensor, -exponent).to(tensor.dtype) for path, tensor in found.items()}
    return found
