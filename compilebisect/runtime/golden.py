"""Golden calls: what really went into each module in an eager run, watched without hooks and kept in files.

Hooks on instances change what runs (`nn.TransformerEncoderLayer` leaves its fast path when a child has one), so calls
are watched at `nn.Module.__call__`. Values go straight to files: memory stays near that of the model.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from compilebisect.core.call import CallContext
from compilebisect.core.module_tree import IN_TRACE, IN_TRANSFORM, GoldenCall
from compilebisect.runtime import torch_internals
from compilebisect.runtime.cotangents import CotangentHooks
from compilebisect.runtime.describe import MAX_SIGNATURES, first_paths
from compilebisect.runtime.frames import call_site
from compilebisect.runtime.kept_values import check_can_be_kept, load_values, save_values
from compilebisect.runtime.observing import guarded, observe, observed
from compilebisect.runtime.tensor_state import version_of
from compilebisect.runtime.values import atom_text, entries_of, is_a, own_dict, walk

_AUTOCAST_DEVICES = ("cpu", "cuda")
# Numbers are part of a signature up to this many signatures; a counter would make each call one of its own.
_LONGEST_TEXT = 120


#: Told path, module, args and kwargs before a call; what it returns is told the output, if it is a function.
OnCall = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any]], Callable[[Any], None] | None]


@contextmanager
def watch_calls(model: nn.Module, on_call: OnCall) -> Iterator[list[str]]:
    """Call `on_call(path, module, args, kwargs)` before each call of a module of `model`; what it raises is dropped.

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
        on_return = observe(lambda: on_call(path, self, args, kwargs), lambda why: None, copies=False)
        try:
            output = original(self, *args, **kwargs)
        except BaseException:
            failed_in.append(path)
            raise
        failed_in.clear()  # what failed inside was caught
        if on_return is not None:
            observe(lambda: on_return(output), lambda why: None, copies=False)
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
    for path, value, keys in walk((args, kwargs)):
        if keys is None:
            parts.append(f"{path}={_leaf_signature(value)}")
        elif type(value) not in (list, tuple, dict) or not keys:
            parts.append(f"{path}={type(value).__qualname__}")
        if is_a(value, torch.Tensor):
            size += guarded(functools.partial(_bytes_of, value), lambda why: 0)
    return ";".join(parts), size


def _leaf_signature(leaf: Any) -> str:
    if is_a(leaf, torch.Tensor):
        return guarded(lambda: _tensor_signature(leaf), lambda why: type(leaf).__qualname__)
    text = None if is_a(leaf, (float, complex, bytes)) else atom_text(leaf)
    return text[:_LONGEST_TEXT] if text is not None else type(leaf).__qualname__


def _tensor_signature(tensor: torch.Tensor) -> str:
    kind = "" if type(tensor) in (torch.Tensor, nn.Parameter) else f"{type(tensor).__qualname__}:"
    if tensor.is_nested or tensor.layout is not torch.strided:
        return f"{kind}{tensor.dtype}:{'nested' if tensor.is_nested else tensor.layout}:{tensor.device}"
    return f"{kind}{tensor.dtype}{tuple(tensor.shape)}{tuple(tensor.stride())}{tensor.device}{tensor.requires_grad}"


def _bytes_of(tensor: torch.Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return 0
    return tensor.numel() * tensor.element_size()


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
                uncaptured=why_uncaptured(args, kwargs) if path else "",
            )
        )


def _modes(module: nn.Module) -> dict[str, str | None]:
    """Return the attributes by which code switches between ways of working; counters are none of them."""
    return {
        name: atom_text(value)
        for name, value in module.__dict__.items()
        if name not in _INTERNALS and name != "training" and (value is None or is_a(value, (bool, str, Enum)))
    }


def why_uncaptured(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Say why the arguments of a call cannot be kept, nothing where they can."""

    def rehearse() -> str:
        check_can_be_kept({"args": args, "kwargs": kwargs})
        return ""

    return observe(rehearse, _not_captured)


def _not_captured(why: str) -> str:
    return why if why in (IN_TRANSFORM, IN_TRACE) else f"not captured: its arguments cannot be kept: {why}"


class Capture:
    """Writes the arguments of chosen calls, and what changed on the module since it was loaded, to files.

    If a backward pass follows, with `cotangents` the gradients of the outputs are kept as well.

    Attributes:
        failures: why calls are not kept, by path and index.
    """

    def __init__(
        self,
        model: nn.Module,
        wanted: dict[str, set[int]],
        folder: Path,
        cotangents: CotangentHooks | None = None,
    ) -> None:
        self.failures: dict[str, dict[int, str]] = {}
        self._wanted = {path: set(indices) for path, indices in wanted.items()}
        self._counts: dict[str, int] = {}
        self._folder = folder
        self._cotangents = cotangents
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
        why = observe(lambda: self._keep(path, module, args, kwargs, file), _not_captured)
        if why:
            self.failures.setdefault(path, {})[index] = why
        cotangents = self._cotangents
        return None if why or cotangents is None else lambda output: cotangents.keep(output, file)

    def _keep(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], file: Path) -> str:
        changed = _changed_attributes(module, self._fresh[path])
        save_values({"args": args, "kwargs": kwargs}, file)
        state = {name: value for name, value in changed.items() if _can_be_kept(value)}
        if state:
            save_values(state, file.with_suffix(".state"))
        return ""


def _can_be_kept(value: Any) -> bool:
    def rehearse() -> bool:
        check_can_be_kept(value)
        return True

    return guarded(rehearse, lambda why: False)


def golden_file(folder: Path, path: str, index: int) -> Path:
    """Return the file that holds the arguments of one call."""
    # A path may hold any character, and be longer than a file's name may be.
    return folder / f"{hashlib.sha256(path.encode()).hexdigest()[:24]}-{index}.golden"


def load_golden(folder: Path, path: str, index: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Read the arguments of a golden call.

    Raises:
        NotObservedError: the user's own code for that fails.
    """
    found = observed("not captured: its arguments cannot be read again", load_values, golden_file(folder, path, index))
    return found["args"], found["kwargs"]


def apply_golden_state(module: nn.Module, folder: Path, path: str, index: int) -> None:
    """Give a freshly loaded module the attributes and buffers that it had when the golden call was made."""
    file = golden_file(folder, path, index).with_suffix(".state")
    if not file.exists():
        return
    state = observed("not captured: its attributes cannot be read again", load_values, file)
    for (owner_path, name), value in state.items():
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
    if is_a(value, torch.Tensor):
        # Inference tensors have no version; their identity has to do.
        return ("tensor", id(value), version_of(value))
    text = atom_text(value)
    if text is not None:
        return text
    if depth and is_a(value, (list, tuple, dict)):
        entries = entries_of(value) or ()
        marks = ((atom_text(key) or id(key), _mark(item, depth - 1)) for _, key, item in entries)
        return (type(value).__name__, *marks)
    attributes = own_dict(value)
    if depth and attributes is not None and not is_a(value, (type, nn.Module)) and not callable(value):
        return (id(value), *((key, _mark(item, depth - 1)) for key, item in attributes.items()))
    return id(value)
