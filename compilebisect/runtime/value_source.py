"""Python objects as values of a repro case: literals, containers, tensors, configs, modules, names."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import pathlib
import re
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from compilebisect.core.quoting import attribute, literal
from compilebisect.core.repro_case import Call, Items, Literal, Mapping, Ref, Statement, Value, ViewValue
from compilebisect.error_text import error_text
from compilebisect.runtime.key_text import has_identity, key_texts, safe_repr
from compilebisect.runtime.tensor_copy import base_of, storage_key
from compilebisect.runtime.tensor_source import TensorFile, is_dense, tensor_value
from compilebisect.runtime.torch_names import Name, NotNameable, name_of

_TORCH_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis))


class NotRebuildable(Exception):
    """A value that no expression can make again."""


class _OccursTwice(Exception):
    """An object occurs a second time in a value that is not complete, so that no path leads to it yet."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class ValueBuilder:
    """Turns objects into values; remembers what was made, so that shared objects stay shared.

    Attributes:
        imports: import statements that the expressions need.
        user_names: (module, name) of what the user's or libraries' files define and the expressions use.
        statements: what has to run before, in order.
        notes: what was left out, for the report.
    """

    def __init__(self, *, device: str, file: TensorFile | None = None) -> None:
        self.device = device
        self.file = file
        self.imports: set[str] = set()
        self.user_names: set[tuple[str, str]] = set()
        self.statements: list[Statement] = []
        self.notes: list[str] = []
        self.build_module: Callable[[torch.nn.Module, str], Value] | None = None
        self._made: dict[int, str] = {}
        self._alive: list[Any] = []
        self._open: set[int] = set()
        self._pending: list[set[int]] = []
        self._variables = 0
        self._shared: dict[int, list[torch.Tensor]] = {}
        self._storages: dict[int, tuple[str, torch.Tensor]] = {}

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Give tensors seeded numbers for a while, also where a file is there: what is in the state is loaded later."""
        file, self.file = self.file, None
        try:
            yield
        finally:
            self.file = file

    def find_shared(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note which of these share memory, so that they do so in the program as well."""
        holders: dict[int, dict[int, torch.Tensor]] = {}
        for tensor in tensors:
            key = storage_key(tensor)
            if key and not isinstance(tensor, torch.nn.Parameter):
                holders.setdefault(key[1], {})[id(tensor)] = tensor
        groups = {storage: list(found.values()) for storage, found in holders.items() if len(found) > 1}
        # one expression makes a tensor of memory only where all read it alike
        self._shared = {
            storage: found
            for storage, found in groups.items()
            if set(map(_reading, found)) == {(found[0].dtype, False, False)}
        }

    def path_of(self, value: Any) -> str | None:
        """Return the expression under which `value` was made before, if it was."""
        return self._made.get(id(value))

    def remember(self, value: Any, path: str) -> None:
        """Note that `value` can be had as `path` from now on."""
        self._made[id(value)] = path
        self._alive.append(value)

    def use(self, name: Name) -> str:
        """Note what an expression needs, and return it."""
        if name.attribute:
            self.user_names.add((name.module, name.attribute))
        elif name.statement:
            self.imports.add(name.statement)
        return name.text

    def named(self, value: Any) -> str:
        """Return the expression that names a function or class.

        Raises:
            NotRebuildable: where it has none.
        """
        try:
            return self.use(name_of(value))
        except NotNameable as error:
            raise NotRebuildable(error_text(error)) from error

    def value(self, value: Any, path: str) -> Value:
        """Return the value of an object that the program will be able to reach as `path`, or not at all if empty.

        An object that occurs twice in it becomes a variable of its own first.

        Raises:
            NotRebuildable: where no expression makes it again.
        """
        while True:
            before, count = dict(self._made), len(self.statements)
            pending: set[int] = set()
            self._pending.append(pending)
            try:
                return self._inner(value, path)
            except _OccursTwice as found:
                if id(found.value) not in pending:
                    raise
                self._made = before
                del self.statements[count:]
                self._pending.pop()
                self._make_variable(found.value)
                self._pending.append(set())
            finally:
                self._pending.pop()

    def _make_variable(self, value: Any) -> None:
        self._variables += 1
        name = f"shared_{self._variables}"
        self.statements.append(Statement(name, self.value(value, name)))
        self.remember(value, name)

    def _inner(self, value: Any, path: str) -> Value:
        if type(value) in _PLAIN:
            return Literal(_plain_text(value))
        if type(value) in (float, complex):
            return Literal(_number_text(value))
        made = self.path_of(value)
        if made is not None:
            if any(id(value) in pending for pending in self._pending):
                raise _OccursTwice(value)
            if made:  # else it was an argument somewhere, where nothing can reach it any more
                return Ref(made)
        if id(value) in self._open:
            raise NotRebuildable(f"{type(value).__name__} contains itself")
        self._open.add(id(value))
        try:
            result = self._compound(value, path)
        finally:
            self._open.discard(id(value))
        if not isinstance(result, Literal | Ref):
            self.remember(value, path)
            self._pending[-1].add(id(value))
        return result

    def _compound(self, value: Any, path: str) -> Value:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, torch.nn.Module):
            if self.build_module is None:
                raise NotRebuildable("a module where none is expected")
            return self.build_module(value, path)
        for rule in (self._constant, self._container, self._object):
            result = rule(value, path)
            if result is not None:
                return result
        raise NotRebuildable(f"objects of {type(value).__module__}.{type(value).__qualname__} cannot be rebuilt")

    def _tensor(self, tensor: torch.Tensor, path: str) -> Value:
        if torch.nn.parameter.is_lazy(tensor):  # the module that would have made it was never called
            return Call(self.named(type(tensor)))
        key = storage_key(tensor)
        try:
            if key and key[1] in self._shared:
                return self._view(tensor, key[1])
            return tensor_value(tensor, path, device=self.device, file=self.file)
        except TypeError as error:
            raise NotRebuildable(error_text(error)) from error

    def _view(self, tensor: torch.Tensor, storage: int) -> Value:
        if storage not in self._storages:
            name = f"memory_{len(self._storages) + 1}"
            whole = self._memory_of(self._shared[storage])
            self._storages[storage] = name, whole
            self.statements.append(Statement(name, tensor_value(whole, name, device=self.device, file=self.file)))
        name, whole = self._storages[storage]
        if tensor is whole:
            return Ref(name)
        offset = int(tensor.storage_offset() - whole.storage_offset())
        return ViewValue(name, tuple(tensor.shape), tensor.stride(), offset)

    def _memory_of(self, sharers: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return what tensors are views of: one that they come from, since compilers look at that, or flat memory."""
        bases = {id(base): base for base in map(base_of, sharers)}
        base = next(iter(bases.values()))
        if len(bases) == 1 and base is not None and is_dense(tuple(base.shape), base.stride()):
            return base
        count = sharers[0].untyped_storage().nbytes() // sharers[0].element_size()
        return sharers[0].detach().as_strided((count,), (1,), 0)

    def _constant(self, value: Any, path: str) -> Value | None:
        if isinstance(value, _TORCH_CONSTANTS):
            return Literal(str(value))
        if isinstance(value, torch.device):
            is_chosen = value.type == torch.device(self.device).type
            return Literal("torch.device(device)" if is_chosen else f"torch.device({str(value)!r})")
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return Literal(repr(value.node.hint))
        if isinstance(value, logging.Logger):
            self.imports.add("import logging")
            return Literal(f"logging.getLogger({value.name!r})")
        if isinstance(value, re.Pattern):
            self.imports.add("import re")
            return Literal(f"re.compile({value.pattern!r}, {value.flags & ~re.UNICODE.value})")
        if isinstance(value, pathlib.PurePath):
            raise NotRebuildable("a path of this machine")
        if isinstance(value, types.MethodType):
            owner = self.path_of(value.__self__)
            if owner is None:
                raise NotRebuildable(f"a method of an object that is not part of the model: {value.__name__}")
            return Literal(attribute(owner, value.__name__))
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
            return Literal(self.named(value))
        try:  # enum members, operators and other objects that a module holds by name
            return Literal(self.use(name_of(value)))
        except NotNameable:
            return None

    def _container(self, value: Any, path: str) -> Value | None:
        kind = type(value)
        if kind is torch.Size:
            return Call("torch.Size", (Literal(repr(tuple(value))),))
        if kind in (list, tuple):
            items = tuple(self._inner(item, f"{path}[{index}]") for index, item in enumerate(value))
            return Items(kind.__name__, items)
        if kind in (set, frozenset):
            members = [item for _, item in sorted(zip(key_texts(value), value, strict=True), key=lambda pair: pair[0])]
            return Items(kind.__name__, tuple(self._key(item) for item in members))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            named = {name: getattr(value, name) for name in value._fields}
            return Call(self.named(kind), kwargs=self._attributes(named, path))
        if kind is slice:
            return Call("slice", tuple(self._inner(part, "") for part in (value.start, value.stop, value.step)))
        if kind is range:
            return Literal(repr(value))
        if kind is collections.deque:
            self.imports.add("import collections")
            held = Items("list", tuple(self._inner(item, f"{path}[{i}]") for i, item in enumerate(value)))
            return Call("collections.deque", (held,), (("maxlen", Literal(repr(value.maxlen))),))
        if kind is functools.partial:
            self.imports.add("import functools")
            args = (self._inner(value.func, ""), *(self._inner(item, "") for item in value.args))
            return Call("functools.partial", args, tuple((k, self._inner(v, "")) for k, v in value.keywords.items()))
        if kind is dict:
            return self._dict(value, path)
        if kind in (collections.OrderedDict, collections.defaultdict):
            self.imports.add("import collections")
            first = (self._inner(value.default_factory, ""),) if kind is collections.defaultdict else ()
            return Call(f"collections.{kind.__name__}", (*first, self._dict(value, path)))
        if kind is types.SimpleNamespace:
            self.imports.add("import types")
            return Call("types.SimpleNamespace", kwargs=self._attributes(vars(value), path))
        return None

    def _dict(self, value: dict[Any, Any], path: str) -> Mapping:
        return Mapping(tuple(self._entry(key, item, path) for key, item in dict.items(value)))

    def _entry(self, key: Any, item: Any, path: str) -> tuple[Value, Value]:
        name = self._key(key)
        place = name.text if isinstance(name, Literal) else name.name if isinstance(name, Ref) else ""
        return name, self._inner(item, f"{path}[{place}]" if path and place else "")

    def _key(self, key: Any) -> Value:
        """Return the value of a key; one that equals nothing but itself becomes a variable, for who else holds it."""
        if has_identity(key) and not self.path_of(key) and id(key) not in self._open:
            try:
                return Literal(self.use(name_of(key)))
            except NotNameable:
                self._make_variable(key)
        return self._inner(key, "")

    def _object(self, value: Any, path: str) -> Value | None:
        cls = type(value)
        if dataclasses.is_dataclass(value) and _rebuilds_itself(value):
            named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            return Call(self.named(cls), kwargs=self._attributes(named, path))
        if not hasattr(value, "__dict__") or not _is_plain_object(cls):
            return None
        # `new` is a function that the script defines: an object from its class and attributes, without __init__.
        return Call("new", (Literal(self.named(cls)),), self._attributes(vars(value), path))

    def _attributes(self, attributes: dict[str, Any], path: str) -> tuple[tuple[str, Value], ...]:
        if not all(isinstance(name, str) for name in attributes):
            raise NotRebuildable("an object with an attribute whose name is no text")
        return tuple((name, self._inner(item, attribute(path, name))) for name, item in attributes.items())


def _plain_text(value: Any) -> str:
    try:
        return repr(value)
    except ValueError as error:  # Python prints no integer of more than some thousand digits
        raise NotRebuildable(error_text(error)) from error


def _is_plain_object(cls: type) -> bool:
    # Instances with slots or with a base written in C hold state that their __dict__ does not.
    return all(base.__flags__ & (1 << 9) or base is object for base in cls.__mro__) and not any(
        base.__dict__.get("__slots__") for base in cls.__mro__
    )


def _rebuilds_itself(value: Any) -> bool:
    # A constructor may refuse or change what it is given; only one that gives an equal object is used.
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    try:
        again = type(value)(**fields)
    except (TypeError, ValueError, AttributeError, KeyError, RuntimeError):
        return False
    return list(vars(again)) == list(vars(value)) and all(
        item is vars(again)[name]
        or (not isinstance(item, torch.Tensor) and safe_repr(item) == safe_repr(vars(again)[name]))
        for name, item in vars(value).items()
    )


def _reading(tensor: torch.Tensor) -> tuple[torch.dtype, bool, bool]:
    return tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _number_text(value: float | complex) -> str:
    return literal(value) if isinstance(value, float) else repr(value)
