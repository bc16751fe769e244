"""Golden calls: what really went into each module in an eager run, watched without hooks and kept in files.

Hooks on instances change what runs (`nn.TransformerEncoderLayer` leaves its fast path when a child has one), so calls
are watched at `nn.Module.__call__`. Values go straight to files: memory stays near that of the model.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from compilebisect.core.call import CallContext
from compilebisect.core.module_tree import GoldenCall
from compilebisect.error_text import error_line
from compilebisect.runtime import torch_internals
from compilebisect.runtime.cotangents import keep_cotangents
from compilebisect.runtime.describe import MAX_SIGNATURES, first_paths
from compilebisect.runtime.frames import call_site
from compilebisect.runtime.kept_values import load_values, save_values
from compilebisect.runtime.key_text import safe_repr
from compilebisect.runtime.values import flatten, own_dict

_AUTOCAST_DEVICES = ("cpu", "cuda")
# Numbers are part of a signature up to this many signatures; a counter would make each call one of its own.
_LONGEST_TEXT = 120
# What pickling a user's object may raise.
_UNPICKLABLE = (pickle.PicklingError, TypeError, AttributeError, RuntimeError, NotImplementedError, ValueError)


#: Told path, module, args and kwargs before a call; what it returns is told the output, if it is a function.
OnCall = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any]], Callable[[Any], None] | None]


@contextmanager
def watch_calls(model: nn.Module, on_call: OnCall) -> Iterator[list[str]]:
    """Call `on_call(path, module, args, kwargs)` before each call of a module of `model`.

    Yields a list that names, after an exception, the modules that it went through, the innermost first.
    """
    paths = first_paths(model)
    original = nn.Module.__call__
    failed_in: list[str] = []

    @functools.wraps(original)
    def watched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        path = paths.get(id(self))
        if path is None:
            return original(self, *args, **kwargs)
        on_return = on_call(path, self, args, kwargs)
        try:
            output = original(self, *args, **kwargs)
        except BaseException:
            failed_in.append(path)
            raise
        if on_return is not None:
            on_return(output)
        return output

    nn.Module.__call__ = watched  # type: ignore[method-assign]
    try:
        yield failed_in
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def present_context(module: nn.Module) -> CallContext:
    """Return grad mode, autocast and training flag as they are now."""
    autocast = tuple(
        (device, str(torch.get_autocast_dtype(device)).removeprefix("torch."))
        for device in _AUTOCAST_DEVICES
        if torch.is_autocast_enabled(device)
    )
    if torch.is_inference_mode_enabled():
        return CallContext("inference", autocast, module.training)
    return CallContext("grad" if torch.is_grad_enabled() else "no_grad", autocast, module.training)


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, int]:
    """Return a text that is equal for calls that compile alike, and the bytes of all tensors in the arguments."""
    parts: list[str] = []
    size = 0
    for path, leaf in flatten((args, kwargs)):
        parts.append(f"{path}={_leaf_signature(leaf)}")
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested:
            size += leaf.numel() * leaf.element_size()
    return ";".join(parts), size


def _leaf_signature(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        if leaf.is_nested or leaf.layout is not torch.strided:
            return f"{leaf.dtype}:{'nested' if leaf.is_nested else leaf.layout}:{leaf.device}"
        return f"{leaf.dtype}{tuple(leaf.shape)}{tuple(leaf.stride())}{leaf.device}{leaf.requires_grad}"
    if leaf is None or isinstance(leaf, (bool, int, str, torch.dtype, torch.device)):
        return safe_repr(leaf)[:_LONGEST_TEXT]
    return type(leaf).__qualname__


class CallLog:
    """Golden calls by path, one for each signature of a module, counted while the model runs.

    `last_signatures` has the arguments of each module's latest call, for the case that it fails.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._modes = {id(module): _modes(module) for module in model.modules()} if model is not None else {}
        self.calls: dict[str, list[GoldenCall]] = {}
        self.dropped: dict[str, int] = {}
        self.last_signatures: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._known: dict[str, dict[tuple[str, CallContext], int]] = {}
        self._of_forward: set[tuple[str, str, CallContext]] = set()

    def note(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take in one call."""
        index = self._counts.get(path, 0)
        self._counts[path] = index + 1
        signature, size = signature_of(args, kwargs)
        self.last_signatures[path] = signature
        modes = _modes(module)
        if modes != self._modes.get(id(module), modes):
            signature += f";self={modes}"  # a parent switched it over since it was loaded
        key = (signature, present_context(module))
        in_backward = torch_internals.is_in_backward()
        if not in_backward:
            self._of_forward.add((path, *key))
        elif (path, *key) in self._of_forward:
            return  # a checkpoint makes the call again, for what it computes inside: no gradient reaches that output
        known = self._known.setdefault(path, {})
        calls = self.calls.setdefault(path, [])
        if key in known:
            position = known[key]
            if position >= 0:
                call = calls[position]
                calls[position] = msgspec.structs.replace(call, count=call.count + 1, last=index)
            return
        if len(calls) >= MAX_SIGNATURES:
            if len(known) < 1000:
                known[key] = -1
                self.dropped[path] = self.dropped.get(path, 0) + 1
            return
        known[key] = len(calls)
        calls.append(
            GoldenCall(
                index=index,
                signature=signature,
                count=1,
                context=key[1],
                call_site=call_site(),
                input_bytes=size,
            )
        )


def _modes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes by which code switches between ways of working; counters are none of them."""
    return {
        name: value
        for name, value in module.__dict__.items()
        if name not in _INTERNALS and name != "training" and (value is None or isinstance(value, (bool, str, Enum)))
    }


class Capture:
    """Writes the arguments of chosen calls, and what changed on the module since it was loaded, to files.

    If a backward pass follows, the gradients of the outputs are kept as well.
    """

    def __init__(self, model: nn.Module, wanted: dict[str, set[int]], folder: Path) -> None:
        self.failures: dict[str, str] = {}
        self._wanted = {path: set(indices) for path, indices in wanted.items()}
        self._counts: dict[str, int] = {}
        self._folder = folder
        self._fresh = {path: _attribute_marks(model.get_submodule(path)) for path in wanted}

    def note(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None] | None:
        """Keep the call if it is wanted; returns what is to be told its output."""
        index = self._counts.get(path, 0)
        self._counts[path] = index + 1
        if index not in self._wanted.get(path, ()):
            return None
        file = golden_file(self._folder, path, index)
        self._keep_inputs(path, module, args, kwargs, file)
        return lambda output: keep_cotangents(output, file)

    def _keep_inputs(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], file: Path
    ) -> None:
        state = _changed_attributes(module, self._fresh[path])
        try:
            save_values({"args": args, "kwargs": kwargs}, file)
        except _UNPICKLABLE as error:
            file.unlink(missing_ok=True)
            self.failures[path] = f"its arguments cannot be kept: {error_line(error)}"
            return
        kept = {}
        for name, value in state.items():
            try:
                pickle.dumps(value)
                kept[name] = value
            except _UNPICKLABLE:
                continue
        if kept:
            save_values(kept, file.with_suffix(".state"))


def golden_file(folder: Path, path: str, index: int) -> Path:
    """Return the file that holds the arguments of one call."""
    # A path may hold any character, and be longer than a file's name may be.
    return folder / f"{hashlib.sha256(path.encode()).hexdigest()[:24]}-{index}.golden"


def load_golden(folder: Path, path: str, index: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Read the arguments of a golden call."""
    kept = load_values(golden_file(folder, path, index))
    return kept["args"], kept["kwargs"]


def apply_golden_state(module: nn.Module, folder: Path, path: str, index: int) -> None:
    """Give a freshly loaded module the attributes and buffers that it had when the golden call was made."""
    file = golden_file(folder, path, index).with_suffix(".state")
    if not file.exists():
        return
    for (owner_path, name), value in load_values(file).items():
        owner = module.get_submodule(owner_path)
        if name in owner._buffers:
            owner._buffers[name] = value
        else:
            owner.__dict__[name] = value


def _attribute_marks(module: nn.Module) -> dict[tuple[str, str], Any]:
    return {(path, name): _mark(value) for path, owner in module.named_modules() for name, value in _attributes(owner)}


def _changed_attributes(module: nn.Module, fresh: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    return {
        (path, name): value
        for path, owner in module.named_modules()
        for name, value in _attributes(owner)
        if fresh.get((path, name)) != _mark(value)
    }


_INTERNALS = frozenset(nn.Module().__dict__) - {"training"}


def _attributes(owner: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in owner.__dict__.items():
        if name not in _INTERNALS and not isinstance(value, nn.Module):
            yield name, value
    yield from owner._buffers.items()


def _mark(value: Any, depth: int = 3) -> Any:
    """Return something that differs once the value has changed."""
    if isinstance(value, torch.Tensor):
        # Inference tensors have no version; their identity has to do.
        return ("tensor", id(value), -1 if value.is_inference() else value._version)
    if isinstance(value, (bool, int, float, complex, str, bytes)) or value is None:
        return value
    if depth and isinstance(value, (list, tuple)):
        return (type(value).__name__, *(_mark(item, depth - 1) for item in value))
    if depth and isinstance(value, dict):
        return ("dict", *((_mark(key, 0), _mark(item, depth - 1)) for key, item in dict.items(value)))
    if depth and own_dict(value) is not None and not isinstance(value, (type, nn.Module)) and not callable(value):
        return (id(value), *((key, _mark(item, depth - 1)) for key, item in vars(value).items()))
    return id(value)
