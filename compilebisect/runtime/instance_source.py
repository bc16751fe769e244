"""Module instances as statements that build them again from their state, without unknown constructor arguments."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.utils import parametrize

from compilebisect.attempt import attempt
from compilebisect.core.quoting import attribute, is_name, literal
from compilebisect.core.repro_case import Call, Items, Literal, Ref, Statement, Value
from compilebisect.error_text import error_text
from compilebisect.runtime.parametrised import before_parametrisation, computed_tensors
from compilebisect.runtime.value_source import NotRebuildable, ValueBuilder

# What nn.Module.__init__ sets; the rest of an instance's __dict__ is the user's own.
_BASE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))
# What a lazy module holds until its first call.
_LAZY_HOOKS = frozenset({"_load_hook", "_initialize_hook"})
_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
_HOOKS = (("_forward_pre_hooks", "register_forward_pre_hook"), ("_forward_hooks", "register_forward_hook"))


class InstanceBuilder:
    """Adds to a `ValueBuilder` the statements that make a module and everything below it."""

    def __init__(self, values: ValueBuilder) -> None:
        self.values = values
        values.build_module = self.build_loose
        self._loose = 0

    def build(self, module: torch.nn.Module, path: str) -> None:
        """Append the statements after which the variable or attribute `path` holds a copy of `module`.

        Raises:
            NotRebuildable: where the class has no name.
        """
        made = self.values.path_of(module)
        if made is not None:
            self._add(path, Ref(made))
            return
        self.values.remember(module, path)
        if computed_tensors(module):
            self._parametrised(module, path)
            return
        call = self._constructor(module)
        if call is not None:
            self._add(path, call)
            for name, child in module.named_modules():
                self.values.remember(child, _child_path(module, path, name))
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                self.values.remember(tensor, _child_path(module, path, name))
            self._requires_grad(module, path)
            return
        self._from_state(module, path)
        for name, child in module._modules.items():
            self._child(module, path, name, child)
        self._hooks(module, path)

    def _from_state(self, module: torch.nn.Module, path: str) -> None:
        if type(module) in _CONTAINERS:
            self._add(path, Call(self.values.named(type(module))))
        else:
            self._add(path, Call("new_module", (Literal(self.values.named(type(module))),)))
            self._state(module, path)

    def _parametrised(self, module: torch.nn.Module, path: str) -> None:
        """Build a module as it was before some of its tensors were computed, and then what computes them as it is now.

        To register a parametrisation is to compute its tensors from the module's, so one that does nothing makes room.
        """
        computed = attempt(before_parametrisation, module)
        if computed.error is not None:
            reason = f"its parametrised tensors cannot be computed: {error_text(computed.error)}"
            raise NotRebuildable(reason) from computed.error
        plain = computed.value
        children = {name: child for name, child in module._modules.items() if name != "parametrizations"}
        call = None if children else self._constructor(plain)
        if call is None:
            self._from_state(plain, path)
        else:
            self._add(path, call)
            for name, tensor in (*plain.named_parameters(), *plain.named_buffers()):
                self.values.remember(tensor, _child_path(module, path, name))
            self._requires_grad(plain, path)
        for name, child in children.items():
            self._child(module, path, name, child)
        for name, computing in computed_tensors(module).items():
            register = self.values.named(parametrize.register_parametrization)
            arguments = (Literal(path), Literal(literal(name)), Call("torch.nn.Identity"))
            self._add("", Call(register, arguments, (("unsafe", Literal("True")),)))
            self._child(module.get_submodule("parametrizations"), f"{path}.parametrizations", name, computing)
        self._hooks(plain, path)

    def build_loose(self, module: torch.nn.Module, path: str) -> Value:
        """Build a module that no parent registers, such as one in a plain list, and return how to reach it."""
        made = self.values.path_of(module)
        if made is None:
            self._loose += 1
            made = f"module_{self._loose}"
            self.build(module, made)
        return Ref(made)

    def set_modes(self, module: torch.nn.Module, path: str) -> None:
        """Append what gives each module the training flag that it has; a new module is in training mode."""
        if not module.training:
            self._add("", Call(f"{path}.eval"))
        for name, child in module.named_modules():
            if name and child.training != module.training:
                self._add(f"{_child_path(module, path, name)}.training", Literal(repr(child.training)))

    def _add(self, target: str, value: Value) -> None:
        self.values.statements.append(Statement(target, value))

    def _child(self, module: torch.nn.Module, path: str, name: str, child: torch.nn.Module | None) -> None:
        if child is None:
            self._add(attribute(path, name), Literal("None"))
            return
        target = _child_path(module, path, name)
        if is_name(name) and not isinstance(module, torch.nn.ModuleDict):
            self.build(child, target)
            return
        # Names such as `0` cannot be assigned to: the statement that makes the child is wrapped instead.
        first = len(self.values.statements)
        self.build(child, target)
        made = self.values.statements[first]
        value: Value = Call(f"{path}.add_module", (Literal(literal(name)), made.value))
        if isinstance(module, torch.nn.Sequential | torch.nn.ModuleList) and name == _next_name(module, name):
            value = Call(f"{path}.append", (made.value,))
        self.values.statements[first] = Statement("", value)

    def _state(self, module: torch.nn.Module, path: str) -> None:
        for name, item in vars(module).items():
            if name in _BASE_ATTRIBUTES or name in _LAZY_HOOKS:
                continue
            if not isinstance(name, str):
                self.values.notes.append(f"an attribute of {path} whose name is no text was left out")
                continue
            self._set(path, name, item)
        for name, parameter in module._parameters.items():
            with self.values.seeded():
                self._set(path, name, parameter, register=f"{path}.register_parameter")
        for name, buffer in module._buffers.items():
            is_saved = name not in module._non_persistent_buffers_set
            extra = () if is_saved else (("persistent", Literal("False")),)
            try:
                with self.values.seeded() if is_saved else nullcontext():
                    value = self.values.value(buffer, attribute(path, name))
            except NotRebuildable as error:
                self.values.notes.append(f"{path}.{name} was left out: {error_text(error)}")
                continue
            self._add("", Call(f"{path}.register_buffer", (Literal(literal(name)), value), extra))

    def _set(self, path: str, name: str, item: Any, register: str = "") -> None:
        target = attribute(path, name)
        try:
            value = self.values.value(item, target)
        except NotRebuildable as error:
            self.values.notes.append(f"{target} was left out: {error_text(error)}")
            return
        if register and item is None:
            self._add("", Call(register, (Literal(literal(name)), value)))
        else:
            self._add(target, value)

    def _hooks(self, module: torch.nn.Module, path: str) -> None:
        for hooks, register in _HOOKS:
            for hook in _own_hooks(module, hooks):
                try:
                    value = self.values.value(hook, "")
                except NotRebuildable as error:
                    self.values.notes.append(f"a hook of {path} was left out: {error_text(error)}")
                    continue
                self._add("", Call(f"{path}.{register}", (value,)))

    def _requires_grad(self, module: torch.nn.Module, path: str) -> None:
        flags = {parameter.requires_grad for parameter in module.parameters()}
        if flags == {False}:
            self._add("", Call(f"{path}.requires_grad_", (Literal("False"),)))
        elif len(flags) > 1:
            for name, parameter in module.named_parameters():
                if not parameter.requires_grad:
                    self._add(f"{_child_path(module, path, name)}.requires_grad", Literal("False"))

    def _constructor(self, module: torch.nn.Module) -> Call | None:
        # torch's own modules keep their arguments as attributes of the same name. The call is used only if it makes
        # a module that cannot be told from this one.
        cls = type(module)
        if not cls.__module__.startswith("torch.nn.modules.") or any(_own_hooks(module, hooks) for hooks, _ in _HOOKS):
            return None
        if any(self.values.path_of(tensor) for tensor in (*module.parameters(), *module.buffers())):
            return None
        if isinstance(module, _CONTAINERS):
            return self._sequential(module)
        arguments = _arguments_read_back(module)
        if arguments is None:
            return None
        try:
            with torch.device("meta"):
                again = cls(**arguments)
        except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError):
            return None
        dtypes = {tensor.dtype for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point()}
        if len(dtypes) > 1:
            return None
        dtype = dtypes.pop() if dtypes else torch.float32
        again.to(dtype)
        if not _same_module(again, module):
            return None
        try:
            args, kwargs = self._shortest(cls, arguments)
        except NotRebuildable:
            return None
        call = Call(self.values.named(cls), args, kwargs)
        if dtype is not torch.float32:
            return Call("cast", (call, Literal(str(dtype))))
        return call

    def _shortest(
        self, cls: type, arguments: dict[str, Any]
    ) -> tuple[tuple[Value, ...], tuple[tuple[str, Value], ...]]:
        args: list[Value] = []
        kwargs: list[tuple[str, Value]] = []
        for name, parameter in _parameters(cls):
            if name not in arguments:
                continue
            value = self.values.value(arguments[name], "")
            if parameter.default is inspect.Parameter.empty and not kwargs:
                args.append(value)
            else:
                kwargs.append((name, value))
        return tuple(args), tuple(kwargs)

    def _sequential(self, module: torch.nn.Module) -> Call | None:
        # One expression where every child is one, as a person would write it.
        if type(module) not in (torch.nn.Sequential, torch.nn.ModuleList):
            return None
        children = list(module._modules.items())
        if not children or [name for name, _ in children] != [str(index) for index in range(len(children))]:
            return None
        if set(vars(module)) - _BASE_ATTRIBUTES or len({id(child) for _, child in children}) < len(children):
            return None
        calls: list[Value] = []
        for _, child in children:
            call = self._constructor(child) if child is not None else None
            if call is None:
                return None
            calls.append(call)
        if len({parameter.requires_grad for parameter in module.parameters()}) > 1:
            return None
        args = tuple(calls)
        if type(module) is torch.nn.ModuleList:
            args = (Items("list", args),)
        return Call(self.values.named(type(module)), args)


def _child_path(module: torch.nn.Module, path: str, name: str) -> str:
    """Return the expression for what `module`, which is `path`, holds under a dotted name."""
    held: Any = module
    for part in name.split(".") if name else ():
        is_listed = isinstance(held, torch.nn.Sequential | torch.nn.ModuleList | torch.nn.ParameterList)
        held = getattr(held, part, None)
        if is_listed and part.isdecimal() and str(int(part)) == part:
            path = f"{path}[{part}]"
        elif is_name(part):
            path = f"{path}.{part}"
        elif isinstance(held, torch.nn.Module):
            path = f"{path}.get_submodule({literal(part)})"
        else:
            path = attribute(path, part)
    return path


def _next_name(module: torch.nn.Module, name: str) -> str:
    return str(list(module._modules).index(name))


def _arguments_read_back(module: torch.nn.Module) -> dict[str, Any] | None:
    arguments: dict[str, Any] = {}
    for name, parameter in _parameters(type(module)):
        if name in ("device", "dtype"):
            continue
        if name == "bias" and not isinstance(getattr(module, "bias", None), bool):
            arguments[name] = any(key.rpartition(".")[2].startswith("bias") for key, _ in module.named_parameters())
        elif hasattr(module, name) and not isinstance(getattr(module, name), torch.nn.Module | torch.Tensor):
            arguments[name] = getattr(module, name)
        elif parameter.default is inspect.Parameter.empty:
            return None
        if name in arguments and _is_default(arguments[name], parameter.default):
            del arguments[name]
    return arguments


def _is_default(value: Any, default: Any) -> bool:
    # Convolutions keep one number as one for each dimension.
    if isinstance(value, tuple) and value and type(default) is int:
        return all(_equal(item, default) for item in value)
    return _equal(value, default)


def _parameters(cls: type) -> list[tuple[str, inspect.Parameter]]:
    # nn.GRU and its like take anything and hand it on to their base, which they tell their mode first.
    source: Any = torch.nn.RNNBase if issubclass(cls, torch.nn.RNNBase) else cls
    found = list(inspect.signature(source.__init__).parameters.items())[1:]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [(name, item) for name, item in found if item.kind not in variable and name != "mode"]


def _same_module(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    if type(one) is not type(other) or one.extra_repr() != other.extra_repr():
        return False
    ours, theirs = _plain_state(one), _plain_state(other)
    if list(ours) != list(theirs) or not all(_equal(ours[name], theirs[name]) for name in ours):
        return False
    for kind in ("_parameters", "_buffers"):
        ours, theirs = getattr(one, kind), getattr(other, kind)
        if list(ours) != list(theirs):
            return False
        for name, tensor in ours.items():
            if (tensor is None) != (theirs[name] is None):
                return False
            if tensor is not None and _shape_of(tensor) != _shape_of(theirs[name]):
                return False
    if list(one._modules) != list(other._modules):
        return False
    for child, twin in zip(one._modules.values(), other._modules.values(), strict=True):
        if child is None or twin is None:
            if child is not twin:
                return False
        elif not _same_module(child, twin):
            return False
    return True


def _shape_of(tensor: torch.Tensor) -> tuple[Any, torch.dtype]:
    return None if torch.nn.parameter.is_lazy(tensor) else tensor.shape, tensor.dtype


def _plain_state(module: torch.nn.Module) -> dict[str, Any]:
    left_out = _BASE_ATTRIBUTES | _LAZY_HOOKS
    return {name: item for name, item in vars(module).items() if name not in left_out and name[:6] != "_flat_"}


def _own_hooks(module: torch.nn.Module, hooks: str) -> list[Any]:
    """Return the hooks of a kind without the one that makes the parameters of a lazy module in its first call."""
    lazy = vars(module).get("_initialize_hook")
    return [hook for number, hook in getattr(module, hooks).items() if number != getattr(lazy, "id", None)]


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except (RuntimeError, ValueError, TypeError):
        return False
