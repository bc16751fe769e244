"""The module tree of a live model: what each module is, and what the eager run did with it."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import linecache
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from compilebisect.attempt import attempt
from compilebisect.core.module_tree import CodeSpan, GoldenCall, ModuleRecord
from compilebisect.core.outcome import Frame
from compilebisect.runtime.observing import observe
from compilebisect.runtime.values import atom_text, attributes_of, entries_of, is_a
from compilebisect.source_files import is_user_or_library_file

# More signatures of one module than this are not probed: each costs a compile. What is left out is said.
MAX_SIGNATURES = 4
_MODULE_INTERNALS = frozenset(nn.Module().__dict__)
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def module_records(
    model: nn.Module,
    calls: dict[str, list[GoldenCall]],
    dropped: dict[str, int],
    other_methods: dict[str, set[str]] | None = None,
) -> list[ModuleRecord]:
    """Describe every module of a model, parents before children, each once.

    `calls` has the golden calls by path, `dropped` how many signatures are not among them, `other_methods` the names of
    methods besides `forward` that ran.
    """
    paths = first_paths(model)
    aliases: dict[str, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if paths[id(module)] != path:
            aliases.setdefault(paths[id(module)], []).append(path)
    records = []
    classes = class_ids(model)
    for path, module in model.named_modules():
        children = dict.fromkeys(paths[id(child)] for child in module.children())
        records.append(
            ModuleRecord(
                path=path,
                class_name=type(module).__name__,
                class_id=classes[type(module)],
                config=_config_of(path, module),
                children=tuple(children),
                aliases=tuple(aliases.get(path, ())),
                calls=tuple(calls.get(path, ())),
                dropped_signatures=dropped.get(path, 0),
                other_methods=tuple(sorted((other_methods or {}).get(path, ()))),
                methods=(*_method_spans(type(module)), *_hook_spans(module)),
                definition=_definition(type(module)),
                is_traceable=not isinstance(module, torch.jit.ScriptModule),
            )
        )
    return records


def first_paths(model: nn.Module) -> dict[int, str]:
    """Map the id of each module to the first path at which it sits."""
    return {id(module): path for path, module in model.named_modules()}


def class_ids(model: nn.Module) -> dict[type, str]:
    """Name the classes of a model's modules; those made in functions share a name and are told apart by a number."""
    classes: dict[str, list[type]] = {}
    for module in model.modules():
        same = classes.setdefault(f"{type(module).__module__}:{type(module).__qualname__}", [])
        if type(module) not in same:
            same.append(type(module))
    return {
        cls: f"{name}#{number}" if number else name for name, same in classes.items() for number, cls in enumerate(same)
    }


def _config_of(path: str, module: nn.Module) -> str:
    """Return what is equal for modules of a class that are set up alike; one that cannot be read is like no other."""
    digest = attempt(_config_digest, path, module)
    return digest.value if digest.error is None else f"#{id(module)}"


def _config_digest(path: str, module: nn.Module) -> str:
    indices = {int(part) for part in path.split(".") if part.isdecimal()}
    parts: list[str] = [_extra_repr(module), str(module.training)]
    for name, value in sorted(module.__dict__.items(), key=lambda item: item[0]):
        if name not in _MODULE_INTERNALS:
            # A number that only says where the module stands does not make it another unit; instances with other
            # numbers are run through the compiled code all the same.
            token = "<index>" if type(value) is int and value in indices else _token(value, 3)
            parts.append(f"{name}={token}")
    for hooks in _HOOKS:
        parts.extend(_token(hook, 1) for hook in module.__dict__.get(hooks, {}).values())
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    parts.extend(f"{name}:{_tensor_token(tensor)}" for name, tensor in tensors)
    return hashlib.sha256("\x1f".join(parts).encode(errors="backslashreplace")).hexdigest()


def _extra_repr(module: nn.Module) -> str:
    """Return the module's own account of itself; one without it is a unit of its own."""

    def text() -> str:
        found = module.extra_repr()
        return found if type(found) is str else _by_identity(module)

    return observe(text, lambda why: _by_identity(module))


def _token(value: Any, depth: int) -> str:
    text = atom_text(value)
    if text is not None:
        return text
    if depth < 0:
        return _by_identity(value)
    if is_a(value, torch.Tensor):
        return _tensor_token(value)
    if is_a(value, (list, tuple, dict)):
        entries = entries_of(value)
        if entries is not None and len(entries) <= 64:
            tokens = (f"{_token(key, 0)}:{_token(item, depth - 1)}" for _, key, item in entries)
            return f"{type(value).__name__}({','.join(tokens)})"
    if is_a(value, (set, frozenset)):
        members = list((set if is_a(value, set) else frozenset).__iter__(value))
        if len(members) <= 64:
            return f"{type(value).__name__}({','.join(sorted(_token(item, depth - 1) for item in members))})"
    if is_a(value, (types.FunctionType, types.BuiltinFunctionType, type)) and _is_named(value):
        return f"{value.__module__}.{value.__qualname__}"
    if dataclasses.is_dataclass(type(value)) and depth:
        own = attributes_of(value)
        fields = (_token(own.get(field.name), depth - 1) for field in dataclasses.fields(type(value)))
        return f"{type(value).__qualname__}({','.join(fields)})"
    # Other objects count as equal only where they are the same object.
    return _by_identity(value)


def _by_identity(value: Any) -> str:
    return f"{type(value).__qualname__}#{id(value)}"


def _is_named(value: Any) -> bool:
    """Say whether a function's name stands for its code: those made in functions share a name."""
    return "<" not in value.__qualname__ and not getattr(value, "__closure__", None)


def _tensor_token(tensor: torch.Tensor) -> str:
    def text() -> str:
        if nn.parameter.is_lazy(tensor):
            return "uninitialised"
        stride = tuple(tensor.stride()) if tensor.layout is torch.strided and not tensor.is_nested else ()
        shape = "nested" if tensor.is_nested else tuple(tensor.shape)
        kind = "" if type(tensor) in (torch.Tensor, nn.Parameter) else type(tensor).__qualname__
        return f"{kind}{tensor.dtype}{shape}{stride}{tensor.layout}{tensor.device}{tensor.requires_grad}"

    return observe(text, lambda why: _by_identity(tensor), copies=False)


def _method_spans(cls: type) -> Iterable[CodeSpan]:
    seen = set()
    for base in cls.__mro__:
        if base is nn.Module or base is object:
            continue
        for name, attribute in vars(base).items():
            for function in _functions_of(attribute):
                code = function.__code__
                if code not in seen and is_user_or_library_file(code.co_filename):
                    seen.add(code)
                    yield CodeSpan(
                        code.co_filename,
                        code.co_firstlineno,
                        _last_line(code),
                        name,
                        name in ("forward", "__call__"),
                        base.__qualname__,
                    )


def _hook_spans(module: nn.Module) -> Iterable[CodeSpan]:
    """Yield the code of hooks: they run as part of the module's call."""
    for hooks in _HOOKS:
        for hook in module.__dict__.get(hooks, {}).values():
            for function in _functions_of(hook):
                code = function.__code__
                if is_user_or_library_file(code.co_filename):
                    yield CodeSpan(code.co_filename, code.co_firstlineno, _last_line(code), code.co_name, True)


def _definition(cls: type) -> Frame | None:
    functions = _functions_of(inspect.getattr_static(cls, "forward", None))
    if not functions:
        return None
    code = functions[-1].__code__  # the user's own function, below its decorators
    if not is_user_or_library_file(code.co_filename):
        return None
    # The first line of a decorated function is that of its decorator.
    for line in range(code.co_firstlineno, _last_line(code) + 1):
        text = linecache.getline(code.co_filename, line).strip()
        if text.startswith(("def ", "async def ")):
            return Frame(code.co_filename, line, code.co_name, text)
    return None


def _functions_of(attribute: Any) -> list[types.FunctionType]:
    if is_a(attribute, (staticmethod, classmethod)):
        attribute = attribute.__func__
    if is_a(attribute, property):
        attribute = attribute.fget
    found: list[types.FunctionType] = []
    while callable(attribute):
        if is_a(attribute, types.FunctionType):
            found.append(attribute)
        wrapped = inspect.getattr_static(attribute, "__wrapped__", None)
        if wrapped is None or any(wrapped is known for known in found):
            break
        attribute = wrapped
    return found


def _last_line(code: types.CodeType) -> int:
    lines = [line for _, _, line in code.co_lines() if line]
    nested = [_last_line(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return max([code.co_firstlineno, *lines, *nested])


@contextmanager
def watch_methods(model: nn.Module) -> Iterator[dict[str, set[str]]]:
    """Note by path which methods of the model's classes run besides `forward`: a module may never be called itself."""
    names: dict[types.CodeType, str] = {}
    for module in model.modules():
        for base in type(module).__mro__:
            if base is nn.Module or base is object or base.__module__.split(".")[0] == "torch":
                continue
            for name, attribute in vars(base).items():
                if name != "forward" and not name.startswith("_"):
                    names.update({function.__code__: name for function in _functions_of(attribute)})
    paths = first_paths(model)
    seen: dict[str, set[str]] = {}

    def profile(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in names and frame.f_code.co_argcount:
            owner = frame.f_locals.get(frame.f_code.co_varnames[0])
            if id(owner) in paths:
                seen.setdefault(paths[id(owner)], set()).add(names[frame.f_code])

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(previous)
