"""Gathers the recompiles of a compiled module, in terms of the user's modules, attributes and arguments."""

from __future__ import annotations

import ast
import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from compilebisect.attempt import attempt
from compilebisect.core.guard_text import Cause, Guard, parse_guard
from compilebisect.core.outcome import Frame
from compilebisect.core.recompile import RecompileEvent
from compilebisect.runtime import torch_internals
from compilebisect.runtime.attribute_writes import write_place
from compilebisect.runtime.describe import first_paths
from compilebisect.runtime.frames import frames_of
from compilebisect.runtime.torch_internals import FailedGuards, without_resume_prefix
from compilebisect.runtime.values import flatten
from compilebisect.source_files import is_user_or_library_file

_LONGEST_VALUE = 60
_STACK_VALUE = "___stack"
_LOCAL = re.compile(r"^L\['(\w+)'\]")
_REGISTRY = re.compile(r"^\.(?:_buffers|_parameters|__dict__)\['([^']+)'\]")
# A function, the module that it runs for, what is looked at, and which dim of it.
_Place = tuple[Any, str | None, str, int | None]


class RecompileLog:
    """What was compiled again while `watching`, and in which call.

    Attributes:
        events: in the order in which they came.
    """

    def __init__(self, model: nn.Module, unit: str) -> None:
        """Args: the whole model, and the path of the module that is compiled."""
        self.events: list[RecompileEvent] = []
        self._model, self._unit = model, unit
        self._paths = first_paths(model)
        self._during = ""
        self._instances: dict[str, str | None] = {}
        # Sizes and numbers of arguments, as each function was first compiled for, and which of them changed since.
        self._numbers: dict[_Place, float] = {}
        self._changed: set[_Place] = set()
        # Where a size that was to be dynamic was made a constant, by its source.
        self._constants: dict[str, tuple[Frame, ...]] = {}

    def empty(self) -> RecompileLog:
        """Return a log about the same module that has seen nothing."""
        return RecompileLog(self._model, self._unit)

    @contextmanager
    def watching(self, during: str) -> Iterator[None]:
        """Take note of recompiles, which come in the call that `during` names."""
        self._during = during
        with (
            torch_internals.watch_recompiles(self._note_compile, self._note_recompile),
            torch_internals.watch_specializations(self._note_constant),
        ):
            yield

    def _note_compile(self, frame: Any, compile_id: str) -> None:
        instance = self._instance(frame)
        self._instances[compile_id] = instance
        for source, dim, number in _numbers_in(frame):
            place = (frame.f_code, instance, source, dim)
            if self._numbers.setdefault(place, number) != number:
                self._changed.add(place)

    def _note_constant(self, sources: list[str], stack: list[traceback.FrameSummary]) -> None:
        for source in sources:
            self._constants.setdefault(_LOCAL.sub(r"\1", source), frames_of(stack))

    def _note_recompile(self, failed: FailedGuards) -> None:
        frame = failed.frame
        code = frame.f_code
        if code.co_filename.startswith("<") and not is_user_or_library_file(code.co_filename):
            return
        instance = self._instance(frame)
        guards = [parse_guard(reason) for reason in failed.reasons]
        # The version made for the same module tells what changed; one of another instance only that they differ.
        own = [guard for guard in guards if self._instances.get(guard.compile_id, instance) == instance]
        guard = (own or guards)[0]
        self.events.append(self._event(guard, frame, instance, failed.versions))

    def _event(self, guard: Guard, frame: Any, instance: str | None, versions: int) -> RecompileEvent:
        scope = dict(frame.f_locals)
        held = _holder(guard.source, scope, frame.f_globals)
        owner, subject = self._owner(held, guard.source)
        is_attribute = owner is not None
        after = guard.actual or _actual(guard, scope, frame.f_globals)
        frames = self._frames(guard, frame)
        if is_attribute and owner is not None:
            place = write_place(self._model.get_submodule(owner), subject)
            frames = (place,) if place else frames
        elif instance is not None and instance != self._unit:
            owner = instance  # its frame was compiled apart
        code = frame.f_code
        number = (code, instance, guard.source, guard.dim)
        is_first = _turns_dynamic(guard, after) and number not in self._changed
        self._changed.add(number)
        return RecompileEvent(
            frame=Frame(file=code.co_filename, line=code.co_firstlineno, function=without_resume_prefix(code.co_name)),
            instance=instance,
            owner=owner,
            cause=guard.cause,
            subject=subject,
            dim=guard.dim,
            before=guard.expected[:_LONGEST_VALUE],
            after=after[:_LONGEST_VALUE],
            during=self._during,
            made_for=self._instances.get(guard.compile_id, instance),
            is_first_change=is_first,
            is_attribute=is_attribute,
            entries=versions,
            frames=frames,
            guard=guard.text,
            marks=guard.marks,
        )

    def _instance(self, frame: Any) -> str | None:
        """Return the module that a frame works for: one of its arguments, else that of the nearest caller."""
        code = frame.f_code
        names = (*code.co_varnames[: code.co_argcount], *code.co_freevars)
        for name in names:
            path = self._path_of(frame.f_locals.get(name))
            if path is not None:
                return path
        caller = sys._getframe(1)
        while caller is not None:
            code = caller.f_code
            if code.co_argcount and is_user_or_library_file(code.co_filename):
                path = self._path_of(caller.f_locals.get(code.co_varnames[0]))
                if path is not None:
                    return path
            caller = caller.f_back  # type: ignore[assignment]
        return None

    def _path_of(self, value: Any) -> str | None:
        return self._paths.get(id(value)) if isinstance(value, nn.Module) else None

    def _owner(self, held: tuple[nn.Module, str] | None, source: str) -> tuple[str | None, str]:
        """Return the module with code of its own that holds what changed, and what that is called there."""
        if held is None or id(held[0]) not in self._paths or not held[1]:
            return None, _argument_name(source)
        path, rest = self._paths[id(held[0])], _REGISTRY.sub(r".\1", held[1])
        # What is torch's own does not change itself: whoever holds it does that.
        while path != self._unit and path and type(self._model.get_submodule(path)).__module__.startswith("torch."):
            path, _, name = path.rpartition(".")
            rest = f".{name}{rest}"
        return path, f"self{rest}"

    def _frames(self, guard: Guard, frame: Any) -> tuple[Frame, ...]:
        if guard.cause is Cause.SIZE and (frames := self._constants.get(f"{guard.source}.size()[{guard.dim}]")):
            return frames
        if guard.stack:
            summaries = [
                traceback.FrameSummary(file, line, function, lookup_line=False, line=code or None)
                for file, line, function, code in guard.stack
            ]
            return frames_of(summaries)
        file = _whole_name(guard.file, frame.f_code.co_filename) if guard.file else None
        if file is None or not is_user_or_library_file(file):
            return ()
        code = linecache.getline(file, guard.line).strip() or guard.code
        return (Frame(file=file, line=guard.line, function=without_resume_prefix(guard.function), code=code),)


def _numbers_in(frame: Any) -> Iterator[tuple[str, int | None, float]]:
    """List the sizes of tensors and the numbers in a frame's arguments: source, dim (None for a number), value."""
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        for source, leaf in flatten(frame.f_locals.get(name), name):
            if isinstance(leaf, torch.Tensor) and not leaf.is_nested:
                yield from ((source, dim, int(size)) for dim, size in enumerate(leaf.shape))
            elif type(leaf) in (int, float):
                yield source, None, leaf


def _turns_dynamic(guard: Guard, after: str) -> bool:
    """Return whether Dynamo makes what changed dynamic when that happens for the first time."""
    if guard.is_of_first_sizes:
        return True
    if guard.cause is not Cause.VALUE or guard.is_static_integer:
        return False
    kind = _number_type(guard.expected)
    return kind is not None and (not after or _number_type(after) is kind)


def _number_type(text: str) -> type | None:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return None
    return type(value) if type(value) in (int, float) else None


def _holder(source: str, scope: dict[str, Any], names: dict[str, Any]) -> tuple[nn.Module, str] | None:
    """Return the innermost module on the way to a source, and the way from there: `.cfg.step`; None without one."""
    try:
        node = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    rest = ""
    while True:
        value = _value_of(ast.unparse(node), scope, names)
        if isinstance(value, nn.Module):
            return getattr(value, "_orig_mod", value), rest
        if isinstance(node, ast.Attribute):
            rest, node = f".{node.attr}{rest}", node.value
        elif isinstance(node, ast.Subscript):
            rest, node = f"[{ast.unparse(node.slice)}]{rest}", node.value
        else:
            return None


def _value_of(expression: str, scope: dict[str, Any], names: dict[str, Any]) -> Any:
    found = attempt(eval, expression, {"__builtins__": {"len": len, "type": type}, "G": names}, scope)
    return None if found.error is not None else found.value  # none for a source that only Dynamo can evaluate


def _actual(guard: Guard, scope: dict[str, Any], names: dict[str, Any]) -> str:
    """Return what a value is now, where it can be said in a few words that hold no address."""
    if guard.cause is Cause.LENGTH:
        value = _value_of(f"len({guard.source})", scope, names)
        return "" if value is None else str(value)
    if guard.cause is Cause.TYPE:
        return type(_value_of(guard.source, scope, names)).__name__
    if guard.cause is Cause.SIZE:
        value = _value_of(f"{guard.source}.size()[{guard.dim}]", scope, names)
        return "" if value is None else str(int(value))
    if guard.cause is not Cause.VALUE:
        return ""
    value = _value_of(guard.source, scope, names)
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value)
    return f"a {type(value).__name__}"


def _argument_name(source: str) -> str:
    """Return what a user calls something that no module holds."""
    if source.startswith("G['"):
        return f"global {source[3:].replace(chr(39) + ']', '', 1)}"
    return "an intermediate result" if source.startswith(_STACK_VALUE) else source


def _whole_name(tail: str, file: str) -> str | None:
    """Return the file that ends in `tail`, the compiled frame's own first."""
    if file.endswith(tail):
        return file
    loaded = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    return next((name for name in loaded if name.endswith(f"/{tail}")), None)
