"""Walking and copying of nested values: what goes into a module, what comes out, what it keeps.

Containers, dataclasses, named tuples and plain objects with attributes are walked; tensors, scalars and everything
opaque (modules, functions, types, torch's and the standard library's own objects) are leaves.
"""

from __future__ import annotations

import collections
import enum
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from compilebisect.attempt import attempt
from compilebisect.runtime.key_text import key_texts
from compilebisect.runtime.observing import guarded
from compilebisect.runtime.tensor_copy import TensorCloner

#: Walking stops here, so that an object that reaches half the interpreter costs a bounded time.
MAX_NODES = 50_000

_ATOMIC = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, slice, range)
_OPAQUE = (nn.Module, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
_WRITTEN = (bool, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)
#: Containers whose own methods are used, past those of classes that are derived from them.
_BUILTINS: tuple[Any, ...] = (
    collections.OrderedDict,
    collections.defaultdict,
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
)
#: Parts of the standard library and of torch whose objects hold users' values.
_WALKED_MODULES = ("collections", "types", "argparse", "torch.distributions", "torch.nn.attention")


class Node(NamedTuple):
    """One place in a nested value: `keys` is None for a leaf, else the keys of the container's entries."""

    path: str
    value: Any
    keys: tuple[Any, ...] | None


def is_a(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Say what a value is without asking it: `isinstance` looks up `__class__`, which may be code of the user's."""
    return issubclass(type(value), kinds)


def is_atomic(value: Any) -> bool:
    """Say whether a value is immutable and holds nothing else."""
    return is_a(value, (*_ATOMIC, enum.Enum)) and not is_a(value, tuple)


def atom_text(value: Any) -> str | None:
    """Write an immutable value so that equal ones read alike, whatever its class makes of `repr`; None for others."""
    cls = type(value)
    if cls is int:
        return repr(value) if value.bit_length() < 1000 else hex(value)  # Python refuses the decimal text of long ones
    if value is None or cls in _WRITTEN:
        return repr(value)
    if issubclass(cls, enum.Enum):
        return f"{cls.__qualname__}.{object.__getattribute__(value, '_name_')}"
    for base in (int, float, complex, str, bytes):
        if issubclass(cls, base):
            parts: tuple[Any, ...] = getattr(base, "__getnewargs__")(value)  # noqa: B009 - typeshed lacks some of them
            return f"{cls.__qualname__}({', '.join(str(atom_text(part)) for part in parts)})"
    return None


def has_walked_attributes(value: Any) -> bool:
    """Say whether a value is a plain object whose attributes may hold tensors and state."""
    if is_a(value, (torch.Tensor, np.ndarray, np.generic, torch.Generator, *_OPAQUE)) or is_atomic(value):
        return False
    cls = type(value)
    module = cls.__module__ if isinstance(cls.__module__, str) else ""
    root = module.partition(".")[0]
    has_attributes = own_dict(value) is not None or bool(slot_names(cls))
    if (root in sys.stdlib_module_names or root == "torch") and not module.startswith(_WALKED_MODULES):
        # `__main__` is listed with the standard library, yet its classes are the user's
        return module == "__main__" and has_attributes
    return has_attributes


def slot_names(cls: type) -> tuple[str, ...]:
    """Give the names of all `__slots__` of a class and its bases that hold values."""
    names: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name in ("__dict__", "__weakref__"):
                continue
            mangled = f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and name[-2:] != "__" else name
            names.append(mangled)
    return tuple(names)


def own_dict(value: Any) -> dict[str, Any] | None:
    """Return the `__dict__` of an object, None where it has none, without asking the user's `__getattr__` for it."""
    found = attempt(object.__getattribute__, value, "__dict__")  # there is none, or its class has code in this place
    return found.value if found.error is None and type(found.value) is dict else None


def attributes_of(value: Any) -> dict[str, Any]:
    """Collect the attributes that an object holds itself, those in slots included."""
    found = {}
    for name in slot_names(type(value)):
        held = attempt(object.__getattribute__, value, name)  # never filled, or code of the user's in its place
        if held.error is None:
            found[name] = held.value
    found.update(own_dict(value) or {})
    return found


def entries_of(value: Any) -> list[tuple[str, Any, Any]] | None:
    """List a container's entries as (path suffix, key, value); None for a leaf.

    A dictionary that is a dataclass too, as the outputs of transformers models are, is seen by its fields. What
    does not let itself be listed is a leaf.
    """
    return guarded(lambda: _entries_of(value), lambda why: None)  # keys and fields of the user's may raise anything


def _entries_of(value: Any) -> list[tuple[str, Any, Any]] | None:
    entries: list[tuple[str, Any, Any]]
    if is_a(value, dict):
        dotted = type(value) not in (dict, collections.OrderedDict, collections.defaultdict)
        names = key_texts(dict.keys(value))
        entries = [
            (_key_suffix(key, name, dotted), key, item)
            for name, (key, item) in zip(names, dict.items(value), strict=True)
        ]
        seen = {key for _, key, _ in entries if type(key) is str}
        if has_walked_attributes(value):
            entries += [(f".{k}", k, v) for k, v in attributes_of(value).items() if k not in seen]
        return entries
    if is_a(value, tuple) and hasattr(type(value), "_fields"):
        fields = zip(type(value)._fields, tuple.__iter__(value), strict=True)
        return [(f".{name}", name, item) for name, item in fields]
    if is_a(value, (list, tuple, collections.deque)):
        entries = [(f"[{index}]", index, item) for index, item in enumerate(_builtin(type(value)).__iter__(value))]
        if type(value) not in (list, tuple, collections.deque) and has_walked_attributes(value):
            entries += [(f".{k}", k, v) for k, v in attributes_of(value).items()]
        return entries
    if has_walked_attributes(value):
        return [(f".{name}", name, item) for name, item in attributes_of(value).items()]
    return None


def walk(value: Any, path: str = "") -> Iterator[Node]:
    """Visit a nested value depth first, containers before their entries; a reference cycle is a leaf."""
    budget = [MAX_NODES]
    yield from _walk(value, path, frozenset(), budget)


def flatten(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """List the leaves of a nested value with their paths, written as Python would reach them."""
    return [(node.path, node.value) for node in walk(value, path) if node.keys is None]


def tensors_in(value: Any, path: str = "") -> list[tuple[str, torch.Tensor]]:
    """List the tensors of a nested value with their paths."""
    return [(where, leaf) for where, leaf in flatten(value, path) if is_a(leaf, torch.Tensor)]


def clone_value(value: Any) -> Any:
    """Copy a nested value so that writes to the copy do not reach the original.

    Strides, views of one storage and aliasing between the tensors and containers of one call are kept. Tensors with
    a history become leaves. What cannot be copied (modules, functions, locks, objects that refuse) is shared.
    """
    cloner = TensorCloner([tensor for _, tensor in tensors_in(value)])
    return _Rebuilder(cloner.clone, copy_generators=True).rebuild(value)


def map_tensors(value: Any, convert: Callable[[torch.Tensor], Any]) -> Any:
    """Rebuild a nested value with each tensor replaced by what `convert` makes of it, once per tensor."""
    return _Rebuilder(convert, copy_generators=False).rebuild(value)


class _Rebuilder:
    """Copies containers and plain objects by their contents, without running their constructors."""

    def __init__(self, convert: Callable[[torch.Tensor], Any], *, copy_generators: bool) -> None:
        self._convert = convert
        self._copy_generators = copy_generators
        self._memo: dict[int, Any] = {}
        self._alive: list[Any] = []  # keeps the ids of the memo valid

    def rebuild(self, value: Any) -> Any:
        if is_atomic(value) or is_a(value, _OPAQUE):
            return value
        key = id(value)
        if key not in self._memo:
            self._alive.append(value)
            self._memo[key] = self._rebuild_new(value, key)
        return self._memo[key]

    def _rebuild_new(self, value: Any, key: int) -> Any:
        if is_a(value, torch.Tensor):
            return self._convert(value)
        if is_a(value, np.ndarray):
            return value.copy()
        if is_a(value, torch.Generator):
            return value.clone_state() if self._copy_generators else value
        if is_a(value, (tuple, frozenset)):
            return self._rebuild_immutable(value)
        if is_a(value, (dict, list, set, collections.deque)):
            return self._rebuild_container(value, key)
        if has_walked_attributes(value):
            return self._rebuild_object(value, key)
        return value

    def _rebuild_immutable(self, value: Any) -> Any:
        cls = type(value)
        old_items = list(_builtin(cls).__iter__(value))
        items = [self.rebuild(item) for item in old_items]
        if all(new is old for new, old in zip(items, old_items, strict=True)):
            return value
        if cls in (tuple, frozenset):
            return cls(items)
        try:
            new = (tuple if is_a(value, tuple) else frozenset).__new__(cls, items)
        except TypeError:  # struct sequences such as torch.return_types.max refuse tuple.__new__
            return cls(items)
        self._copy_attributes(value, new)
        return new

    def _rebuild_container(self, value: Any, key: int) -> Any:
        builtin = _builtin(type(value))
        new = builtin.__new__(type(value))
        self._memo[key] = new
        if is_a(value, collections.deque):
            items = [self.rebuild(item) for item in collections.deque.__iter__(value)]
            collections.deque.__init__(new, items, value.maxlen)
        elif is_a(value, dict):
            if is_a(value, collections.defaultdict):
                new.default_factory = value.default_factory
            store = collections.OrderedDict if is_a(value, collections.OrderedDict) else dict
            for name, item in dict.items(value):
                store.__setitem__(new, self.rebuild(name), self.rebuild(item))
        elif is_a(value, list):
            list.extend(new, [self.rebuild(item) for item in list.__iter__(value)])
        else:
            set.update(new, [self.rebuild(item) for item in set.__iter__(value)])
        self._copy_attributes(value, new)
        return new

    def _rebuild_object(self, value: Any, key: int) -> Any:
        cls: Any = type(value)
        if not attributes_of(value):  # nothing to copy, and it may be a key that equals nothing but itself
            return value
        made = attempt(cls.__new__, cls)
        if made.error is not None:  # it insists on arguments, say: the object stays shared, as documented
            return value
        new = made.value
        self._memo[key] = new
        self._copy_attributes(value, new)
        return new

    def _copy_attributes(self, value: Any, new: Any) -> None:
        attributes, target = own_dict(value), own_dict(new)
        if attributes and target is not None:
            target.update({name: self.rebuild(item) for name, item in attributes.items()})
        for name, item in attributes_of(value).items():
            if attributes is None or name not in attributes:
                object.__setattr__(new, name, self.rebuild(item))


def _walk(value: Any, path: str, above: frozenset[int], budget: list[int]) -> Iterator[Node]:
    budget[0] -= 1
    entries = entries_of(value) if budget[0] > 0 and id(value) not in above else None
    if entries is None:
        yield Node(path, value, None)
        return
    yield Node(path, value, tuple(key for _, key, _ in entries))
    for suffix, _, item in entries:
        yield from _walk(item, path + suffix, above | {id(value)}, budget)


def _key_suffix(key: Any, name: str, dotted: bool) -> str:
    return f".{key}" if dotted and type(key) is str and key.isidentifier() else f"[{name}]"


def _builtin(cls: type) -> Any:
    """Return the container of Python's that a class is or is derived from: its methods are not the user's."""
    return next(base for base in _BUILTINS if issubclass(cls, base))
