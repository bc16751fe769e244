"""The scalar that a model's backward pass starts from, as `train.loss` of the input spec says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from compilebisect.error_text import error_line
from compilebisect.errors import CannotTestError, CompilebisectError, SpecError
from compilebisect.runtime.cotangents import made_up_cotangent
from compilebisect.runtime.figures import is_inexact
from compilebisect.runtime.target import existing_file, import_user_file, lookup
from compilebisect.runtime.tensor_copy import is_plain
from compilebisect.runtime.user_code import user_code
from compilebisect.runtime.values import tensors_in

#: From a model's output to a scalar; None where nothing in the output takes part in autograd.
Loss = Callable[[Any], torch.Tensor | None]

#: Where the spec names no loss: a sum with random weights. A plain one has no gradient behind a normalisation, and
#: equal cotangents do not show gradients that change places.
DEFAULT_LOSS = "weighted sum"
_WHERE = "train.loss"
_STEP = re.compile(r"[^.\[\]'\"]+")


def load_loss(text: str, spec_dir: str | Path) -> Loss:
    """Return the function that a spec names.

    Args:
        text: `sum` or `mean` of all outputs, `DEFAULT_LOSS`, the path of an output such as `logits` or `out[0]` (which
            is summed up unless it is a scalar), or `file.py:func`, a function that takes the model's output.
        spec_dir: the folder that the file is relative to.

    Raises:
        SpecError: there is no such function. What the returned function raises besides the user's own errors is a
            `SpecError` (no such output, no scalar) or a `CannotTestError` (the user's function fails).
    """
    if text in ("sum", "mean", DEFAULT_LOSS):
        return lambda output: _total(output, text)
    file, separator, name = text.rpartition(":")
    if not separator:
        return lambda output: _required(_total(_output_at(output, text), "sum"), text)
    path = existing_file(str(Path(spec_dir) / file), SpecError, where=_WHERE)
    module = import_user_file(path, SpecError, where=_WHERE)
    function = lookup(module, name, str(path), SpecError, where=_WHERE)
    if not callable(function):
        raise SpecError(f"{name!r} in {path.name!r} is no function", where=_WHERE, fix="Name a function.")

    def failed(error: BaseException, trace: str) -> CompilebisectError:
        text = f"the loss function {name!r} fails: {error_line(error)}"
        return CannotTestError(text, where=_WHERE, fix="It is given the model's output.", detail=trace)

    def call(output: Any) -> torch.Tensor | None:
        with user_code(failed):
            loss = function(output)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise SpecError(f"{name!r} returns no scalar tensor but {got}", where=_WHERE, fix="Return a scalar.")
        return _required(loss.reshape(()), text)

    return call


def _total(output: Any, how: str) -> torch.Tensor | None:
    distinct = {id(tensor): tensor for _, tensor in tensors_in(output)}.values()
    parts = [
        torch.view_as_real(tensor) if tensor.is_complex() else tensor
        for tensor in distinct
        if tensor.requires_grad and is_inexact(tensor) and is_plain(tensor) and tensor.numel()
    ]
    if not parts:
        return None
    if how == DEFAULT_LOSS:
        parts = [part * made_up_cotangent(part.detach(), seed) for seed, part in enumerate(parts, start=1)]
    scalars = [part.mean() if how == "mean" else part.sum() for part in parts]
    total = scalars[0]
    for scalar in scalars[1:]:
        total = total + scalar.to(total.device)
    return total


def _output_at(output: Any, path: str) -> Any:
    value = output
    for step in _STEP.findall(path):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, (list, tuple)) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        elif hasattr(value, step) and not isinstance(value, torch.Tensor):
            value = getattr(value, step)
        else:
            there = ", ".join(repr(where.lstrip(".")) for where, _ in tensors_in(output)[:12] if where)
            fix = f"The output has {there}." if there else "The output is a single tensor: write 'sum' or 'mean'."
            raise SpecError(f"the model's output has no {path!r}", where=_WHERE, fix=fix)
    return value


def _required(loss: torch.Tensor | None, name: str) -> torch.Tensor:
    if loss is None or not loss.requires_grad:
        raise SpecError(
            f"{name!r} depends on nothing that requires a gradient", where=_WHERE, fix="Name another output."
        )
    return loss
