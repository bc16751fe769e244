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

from compilebisect.runtime.key_text import key_texts
from compilebisect.runtime.tensor_copy import TensorCloner

#: Walking stops here, so that an object that reaches half the interpreter costs a bounded time.
MAX_NODES = 50_000

_ATOMIC = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, slice, range)
_OPAQUE = (nn.Module, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
#: Parts of the standard library and of torch whose objects hold users' values.
_WALKED_MODULES = ("collections", "types", "argparse", "torch.distributions", "torch.nn.attention")


class Node(NamedTuple):
    """One place in a nested value: `keys` is None for a leaf, else the keys of the container's entries."""

    path: str
    value: Any
    keys: tuple[Any, ...] | None


def is_atomic(value: Any) -> bool:
    """Say whether a value is immutable and holds nothing else."""
    return isinstance(value, (*_ATOMIC, enum.Enum)) and not isinstance(value, tuple)


def has_walked_attributes(value: Any) -> bool:
    """Say whether a value is a plain object whose attributes may hold tensors and state."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic, torch.Generator, *_OPAQUE)) or is_atomic(value):
        return False
    cls = type(value)
    module = cls.__module__ or ""
    root = module.partition(".")[0]
    if (root in sys.stdlib_module_names or root == "torch") and not module.startswith(_WALKED_MODULES):
        # `__main__` is listed with the standard library, yet its classes are the user's
        return module == "__main__" and (own_dict(value) is not None or bool(slot_names(cls)))
    return own_dict(value) is not None or bool(slot_names(cls))


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
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found


def attributes_of(value: Any) -> dict[str, Any]:
    """Collect the attributes that an object holds itself, those in slots included."""
    found = {name: _slot(value, name) for name in slot_names(type(value)) if _has_slot(value, name)}
    found.update(own_dict(value) or {})
    return found


def entries_of(value: Any) -> list[tuple[str, Any, Any]] | None:
    """List a container's entries as (path suffix, key, value); None for a leaf.

    A dictionary that is a dataclass too, as the outputs of transformers models are, is seen by its fields.
    """
    entries: list[tuple[str, Any, Any]]
    if isinstance(value, dict):
        dotted = type(value) not in (dict, collections.OrderedDict, collections.defaultdict)
        names = key_texts(dict.keys(value))
        entries = [
            (_key_suffix(key, name, dotted), key, item)
            for name, (key, item) in zip(names, dict.items(value), strict=True)
        ]
        seen = {key for _, key, _ in entries if isinstance(key, str)}
        if has_walked_attributes(value):
            entries += [(f".{k}", k, v) for k, v in attributes_of(value).items() if k not in seen]
        return entries
    if isinstance(value, tuple) and hasattr(type(value), "_fields"):
        fields: tuple[str, ...] = type(value)._fields  # type: ignore[attr-defined] # a named tuple
        return [(f".{name}", name, item) for name, item in zip(fields, tuple(value), strict=True)]
    if isinstance(value, (list, tuple, collections.deque)):
        entries = [(f"[{index}]", index, item) for index, item in enumerate(value)]
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
    return [(where, leaf) for where, leaf in flatten(value, path) if isinstance(leaf, torch.Tensor)]


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
        if is_atomic(value) or isinstance(value, _OPAQUE):
            return value
        key = id(value)
        if key not in self._memo:
            self._alive.append(value)
            self._memo[key] = self._rebuild_new(value, key)
        return self._memo[key]

    def _rebuild_new(self, value: Any, key: int) -> Any:
        if isinstance(value, torch.Tensor):
            return self._convert(value)
        if isinstance(value, np.ndarray):
            return value.copy()
        if isinstance(value, torch.Generator):
            return value.clone_state() if self._copy_generators else value
        if isinstance(value, (tuple, frozenset)):
            return self._rebuild_immutable(value)
        if isinstance(value, (dict, list, set, collections.deque)):
            return self._rebuild_container(value, key)
        if has_walked_attributes(value):
            return self._rebuild_object(value, key)
        return value

    def _rebuild_immutable(self, value: Any) -> Any:
        items = [self.rebuild(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        cls = type(value)
        if cls in (tuple, frozenset):
            return cls(items)
        try:
            new = (tuple if isinstance(value, tuple) else frozenset).__new__(cls, items)
        except TypeError:  # struct sequences such as torch.return_types.max refuse tuple.__new__
            return cls(items)
        if own_dict(value):
            new.__dict__.update({name: self.rebuild(item) for name, item in value.__dict__.items()})
        return new

    def _rebuild_container(self, value: Any, key: int) -> Any:
        cls: Any = type(value)
        new = cls.__new__(cls)
        self._memo[key] = new
        if isinstance(value, collections.deque):
            collections.deque.__init__(new, [self.rebuild(item) for item in value], value.maxlen)
        elif isinstance(value, dict):
            if isinstance(value, collections.defaultdict):
                new.default_factory = value.default_factory
            store = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
            for name, item in dict.items(value):
                store.__setitem__(new, self.rebuild(name), self.rebuild(item))
        elif isinstance(value, list):
            list.extend(new, [self.rebuild(item) for item in value])
        else:
            set.update(new, [self.rebuild(item) for item in value])
        self._copy_attributes(value, new)
        return new

    def _rebuild_object(self, value: Any, key: int) -> Any:
        cls: Any = type(value)
        if not attributes_of(value):  # nothing to copy, and it may be a key that equals nothing but itself
            return value
        try:
            new = cls.__new__(cls)
        except TypeError:  # its constructor insists on arguments: the object stays shared, as documented
            return value
        self._memo[key] = new
        self._copy_attributes(value, new)
        return new

    def _copy_attributes(self, value: Any, new: Any) -> None:
        if own_dict(value):
            new.__dict__.update({name: self.rebuild(item) for name, item in value.__dict__.items()})
        for name in slot_names(type(value)):
            if _has_slot(value, name):
                object.__setattr__(new, name, self.rebuild(_slot(value, name)))


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


def _has_slot(value: Any, name: str) -> bool:
    try:
        _slot(value, name)
    except AttributeError:  # a slot that was never filled
        return False
    return True


def _slot(value: Any, name: str) -> Any:
    return object.__getattribute__(value, name)
