"""Everything that a run of a module may change, remembered so that it can be put back and compared.

Parameters, buffers, plain attributes, the contents of lists, dicts, sets and users' own objects reachable from them,
and the tensors held in those. Modules, functions, types and objects of torch itself are not entered.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from compilebisect.runtime.key_text import key_texts, safe_repr, same_atom
from compilebisect.runtime.observing import guarded
from compilebisect.runtime.tensor_copy import TensorCloner
from compilebisect.runtime.tensor_state import TensorState
from compilebisect.runtime.values import (
    MAX_NODES,
    attributes_of,
    entries_of,
    flatten,
    has_walked_attributes,
    is_a,
    is_atomic,
    own_dict,
    slot_names,
)

#: Parameters up to this many bytes are cloned without being asked for: it costs nothing that can be measured.
SMALL_PARAMETER_BYTES = 1 << 16
#: Bookkeeping of torch in a module's `__dict__`, which compiling may touch and no user reads.
_TORCH_ATTRIBUTES = ("_compiled_call_impl", "_is_hf_initialized")
_TORCH_PREFIXES = ("_dynamo", "_torchdynamo", "__dynamo")


class _Removed:
    """Stands for an attribute or entry that a run took away."""

    def __repr__(self) -> str:
        return "<removed>"


REMOVED = _Removed()
_HOOK_REGISTRIES = frozenset(name for name in nn.Module().__dict__ if "_hooks" in name)


class StateSnapshot:
    """What a module held when the snapshot was taken.

    Attributes:
        module: what was looked at.
        unrestorable: paths of tensors that a run changed and whose former values were not kept.
        is_truncated: more objects were reachable than are watched.
        unwatched: why what a module holds cannot be put back or compared, by path.
    """

    def __init__(
        self, module: nn.Module, extra_roots: Iterable[tuple[str, Any]] = (), *, clone_parameters: bool = False
    ) -> None:
        self.module = module
        self.unrestorable: list[str] = []
        self.is_truncated = False
        self.unwatched: dict[str, str] = {}
        self._clone_parameters = clone_parameters
        self._contents: list[_Contents] = []
        self._tensors: dict[int, tuple[str, TensorState]] = {}
        self._arrays: list[tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self._seen: set[int] = set()
        for path, submodule in module.named_modules():
            self._watch_module(path, submodule)
        for path, root in extra_roots:
            if isinstance(root, nn.Module):
                for below, submodule in root.named_modules(prefix=path):
                    self._watch_module(below, submodule)
            else:
                self._watch(path, root)

    def restore(self) -> None:
        """Put everything back in place: containers keep their identity, tensors their storage."""
        for contents in self._contents:
            contents.restore()
        self.unrestorable = [path for path, state in self._tensors.values() if not state.restore()]
        for _, array, saved in self._arrays:
            array[...] = saved
        for generator, saved_state in self._generators:
            generator.set_state(saved_state)

    def changes(self) -> dict[str, Any]:
        """Give path and present value of all that differs from the snapshot.

        Tensors come detached and cloned. A tensor replaced by another one with the same values did not change.
        """
        changed: dict[str, torch.Tensor | Any] = {}
        for contents in self._contents:
            if contents.is_of_hooks:
                continue  # put back, but no result: their keys are numbers that torch counts up with each hook
            for path, before, now in contents.changed():
                changed.update(self._replaced(path, before, now))
        for path, state in self._tensors.values():
            if path not in changed and state.is_changed():
                changed[path] = state.tensor
        for path, array, saved in self._arrays:
            if not np.array_equal(array, saved, equal_nan=array.dtype.kind in "fc"):
                changed[path] = array.copy()
        cloner = TensorCloner([value for value in changed.values() if isinstance(value, torch.Tensor)])
        return {
            path: cloner.clone(value.detach()) if isinstance(value, torch.Tensor) else value
            for path, value in changed.items()
        }

    def _replaced(self, path: str, before: Any, now: Any) -> Iterable[tuple[str, Any]]:
        if now is REMOVED:
            return [(path, REMOVED)]
        old = dict(flatten(before, path)) if before is not REMOVED else {}
        new = dict(flatten(now, path))
        changed = [(where, leaf) for where, leaf in new.items() if not self._is_same(old.get(where, REMOVED), leaf)]
        return changed + [(where, REMOVED) for where in old if where not in new]

    def _is_same(self, before: Any, now: Any) -> bool:
        if before is now:
            watched = self._tensors.get(id(now))
            return watched is None or not watched[1].is_changed()
        if isinstance(before, torch.Tensor):
            watched = self._tensors.get(id(before))
            return watched is not None and watched[1].equals_original(now)
        return is_atomic(now) and same_atom(before, now)

    def _watch_module(self, path: str, module: nn.Module) -> None:
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        prefix = f"{path}." if path else ""
        attributes = module.__dict__
        self._contents.append(_Contents(attributes, prefix, "", _keep_attribute))
        registries = ("_parameters", "_buffers", "_modules")
        for name in registries:
            registry = attributes.get(name)
            if isinstance(registry, dict):
                self._seen.add(id(registry))
                self._contents.append(_Contents(registry, prefix, ""))
                for key, item in registry.items():
                    if isinstance(item, torch.Tensor):
                        self._watch_tensor(f"{prefix}{key}", item, is_parameter=name == "_parameters")
        for name, item in attributes.items():
            if name not in registries and _keep_attribute(name):
                self._watch(f"{prefix}{name}", item)

    def _watch(self, path: str, value: Any) -> None:
        pending = collections.deque([(path, value)])
        while pending:
            where, item = pending.popleft()
            if is_atomic(item) or id(item) in self._seen:
                continue
            if len(self._seen) >= MAX_NODES:
                self.is_truncated = True
                return
            if is_a(item, torch.Tensor):
                self._watch_tensor(where, item, is_parameter=isinstance(item, nn.Parameter))
                continue
            self._seen.add(id(item))
            pending.extend(guarded(partial(self._watch_contents, where, item), partial(self._leave_out, where)))

    def _watch_contents(self, path: str, item: Any) -> list[tuple[str, Any]]:
        """Watch an object itself, and return what is to be watched of its contents."""
        if is_a(item, np.ndarray):
            self._arrays.append((path, item, item.copy()))
        elif is_a(item, torch.Generator):
            self._generators.append((item, item.get_state()))
        else:
            self._contents.extend(_contents_of(item, path))
            members = list(item) if is_a(item, (set, frozenset)) else []
            entries = [(path + suffix, entry) for suffix, _, entry in entries_of(item) or ()]
            return [*((f"{path}{{}}", member) for member in members), *entries]
        return []

    def _leave_out(self, path: str, why: str) -> list[tuple[str, Any]]:
        self.unwatched[path] = why
        return []

    def _watch_tensor(self, path: str, tensor: torch.Tensor, *, is_parameter: bool) -> None:
        def state() -> TensorState | None:
            if nn.parameter.is_lazy(tensor):
                return None
            keep = not is_parameter or self._clone_parameters or _is_small(tensor)
            return TensorState(tensor, keep_values=keep)

        if id(tensor) in self._tensors:
            return

        def leave_out(why: str) -> None:
            self.unwatched[path] = why

        watched = guarded(state, leave_out)
        if watched is not None:
            self._tensors[id(tensor)] = path, watched


class _Contents:
    """The entries of one container or the attributes of one object, as they were."""

    def __init__(self, container: Any, path: str, style: str = "[]", keep: Callable[[str], bool] | None = None) -> None:
        self._container = container
        self._path = path
        self._style = style
        self._keep = keep
        self.is_of_hooks = path.rpartition(".")[2] in _HOOK_REGISTRIES
        self._saved = self._read()
        self._keys = {_stand_in(key): key for key in dict.keys(container)} if isinstance(container, dict) else {}

    def restore(self) -> None:
        """Write the saved entries back, only where they differ."""
        container, saved = self._container, self._saved
        present = self._read()
        if list(present) == list(saved) and all(present[key] is saved[key] for key in saved):
            return
        if isinstance(container, dict):
            # An OrderedDict keeps its order apart from its items: dict's own methods would leave it inconsistent.
            kind = _dict_type(container)
            keys = {_stand_in(key): key for key in dict.keys(container)}
            for mark in [mark for mark in present if mark not in saved]:
                kind.__delitem__(container, keys[mark])
            if [mark for mark in present if mark in saved] != list(saved):
                for mark in saved:  # an order that was lost is kept by filling in anew
                    if mark in present:
                        kind.__delitem__(container, keys[mark])
            for mark, item in saved.items():
                kind.__setitem__(container, self._keys[mark], item)
        elif isinstance(container, list):
            list.__setitem__(container, slice(None), list(saved.values()))
        elif isinstance(container, (set, collections.deque)):
            container.clear()
            for item in saved.values():
                container.add(item) if isinstance(container, set) else container.append(item)
        else:
            for name in [name for name in present if name not in saved]:
                object.__delattr__(container, name)
            for name, item in saved.items():
                object.__setattr__(container, name, item)

    def changed(self) -> list[tuple[str, Any, Any]]:
        """List (path, before, now) of entries that are other objects than before."""
        present, saved = self._read(), self._saved
        if isinstance(self._container, set):  # its members have no places of their own
            members = sorted(
                safe_repr(item) if is_atomic(item) else type(item).__qualname__ for item in present.values()
            )
            return [] if present.keys() == saved.keys() else [(self._path, REMOVED, "{" + ", ".join(members) + "}")]
        if isinstance(self._container, dict) and self._style:
            # A new key object in the place of another one of its kind is no difference.
            saved = dict(zip(key_texts(self._keys.values()), saved.values(), strict=True))
            present = dict(zip(key_texts(dict.keys(self._container)), present.values(), strict=True))
        found = [
            (self._where(key), saved.get(key, REMOVED), item)
            for key, item in present.items()
            if key not in saved or saved[key] is not item
        ]
        return found + [(self._where(key), item, REMOVED) for key, item in saved.items() if key not in present]

    def _where(self, key: Any) -> str:
        return f"{self._path}{key}" if self._style == "" else f"{self._path}[{key}]"

    def _read(self) -> dict[Any, Any]:
        container = self._container
        if isinstance(container, dict):
            items = _dict_type(container).items(container)
            return {_stand_in(key): item for key, item in items if self._keep is None or self._keep(key)}
        if isinstance(container, (list, collections.deque)):
            return dict(enumerate(container))
        if isinstance(container, set):
            return {_stand_in(item): item for item in container}
        return attributes_of(container)


def _stand_in(key: Any) -> Any:
    """Return what an object is found by without asking code of the user's whether it is the same."""
    return key if is_atomic(key) and not isinstance(key, enum.Enum) else _ById(id(key))


class _ById(NamedTuple):
    address: int


def _contents_of(value: Any, path: str) -> list[_Contents]:
    found = []
    is_container = is_a(value, (dict, list, set, collections.deque))
    if is_container:
        found.append(_Contents(value, path))
    if has_walked_attributes(value):
        attributes = own_dict(value)
        if attributes is not None and (is_container or not slot_names(type(value))):
            found.append(_Contents(attributes, f"{path}.", ""))
        elif not is_container:
            found.append(_Contents(value, f"{path}.", ""))
    return found


def _dict_type(container: dict[Any, Any]) -> type[dict[Any, Any]]:
    return collections.OrderedDict if isinstance(container, collections.OrderedDict) else dict


def _keep_attribute(name: str) -> bool:
    return name not in _TORCH_ATTRIBUTES and not name.startswith(_TORCH_PREFIXES)


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() * tensor.element_size() <= SMALL_PARAMETER_BYTES
