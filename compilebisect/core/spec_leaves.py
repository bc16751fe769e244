"""Parsing of one leaf of the input spec and of the containers of leaves; tensors have a module of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from compilebisect.core.json_checks import child_path, object_with_keys, string, type_name
from compilebisect.core.nearest import did_you_mean, quoted
from compilebisect.core.spec_tensors import TENSOR_KEYS, known_dim, parse_tensor
from compilebisect.core.spec_types import CallLeaf, ConstantLeaf, DictLeaf, DimLeaf, FileLeaf, Leaf, SequenceLeaf
from compilebisect.errors import SpecError

__all__ = ["LEAF_KINDS", "TENSOR_KEYS", "LeafParser"]

# The key that says what a leaf is, in the order in which they are looked for: `value` may also stand in a tensor.
LEAF_KINDS = ("shape", "list", "tuple", "dict", "file", "call", "dim", "value")
_MORE_KEYS = {"shape": TENSOR_KEYS, "file": ("file", "key"), "call": ("call", "kwargs")}
_FILE_TYPES = (".pt", ".pth", ".safetensors", ".npy")


class LeafParser(msgspec.Struct, frozen=True):
    """Parses leaves; `dims` are the named sizes with the values of each variant."""

    dims: Mapping[str, tuple[int, ...]]

    def parse(self, raw: Any, where: str) -> Leaf:
        """Parse the leaf at a JSON path.

        Raises:
            SpecError: at the first fault.
        """
        if isinstance(raw, list):
            _reject_list_of_leaves(raw, where)
            return parse_tensor({"shape": raw}, where, self.dims, shape_where=where)
        if not isinstance(raw, dict):
            raise _no_leaf(raw, where, self.dims)
        kind = _kind_of(raw, where)
        object_with_keys(raw, _MORE_KEYS.get(kind, (kind,)), where)
        if kind == "shape":
            return parse_tensor(raw, where, self.dims, shape_where=child_path(where, "shape"))
        if kind == "value":
            return ConstantLeaf(where=where, value=raw["value"])
        if kind == "dim":
            return self._dim(raw["dim"], where)
        inner = child_path(where, kind)
        if kind == "file":
            return _file(raw, where)
        if kind == "call":
            return self._call(raw, where)
        if kind == "dict":
            return DictLeaf(where=where, items=self._dict_items(raw["dict"], inner))
        return SequenceLeaf(where=where, items=self._items(raw[kind], inner), is_tuple=kind == "tuple")

    def _items(self, raw: Any, where: str) -> tuple[Leaf, ...]:
        if not isinstance(raw, list):
            raise SpecError(f"must be a list of leaves, not {type_name(raw)}", where=where, fix="Write [LEAF, ...].")
        return tuple(self.parse(item, child_path(where, index)) for index, item in enumerate(raw))

    def _dict_items(self, raw: Any, where: str) -> dict[str, Leaf]:
        if not isinstance(raw, dict):
            raise SpecError(
                f"must be an object of leaves, not {type_name(raw)}", where=where, fix='Write {"name": LEAF, ...}.'
            )
        return {name: self.parse(item, child_path(where, name)) for name, item in raw.items()}

    def _dim(self, raw: Any, where: str) -> DimLeaf:
        inner = child_path(where, "dim")
        return DimLeaf(where=where, dim=known_dim(string(raw, inner, fix="Name a dim."), inner, self.dims))

    def _call(self, raw: Mapping[str, Any], where: str) -> CallLeaf:
        inner = child_path(where, "call")
        fix = 'Write {"call": "file.py:func"}, the file relative to the spec.'
        text = string(raw["call"], inner, fix=fix)
        file, _, function = text.rpartition(":")
        if not file.endswith(".py") or not all(part.isidentifier() for part in function.split(".")):
            raise SpecError(f"{text!r} does not name a function", where=inner, fix=fix)
        kwargs = raw.get("kwargs", {})
        kwargs_where = child_path(where, "kwargs")
        if not isinstance(kwargs, dict):
            raise SpecError(f"must be an object, not {type_name(kwargs)}", where=kwargs_where, fix='Write {"n": 3}.')
        parsed = {
            name: self._dim(item["dim"], child_path(kwargs_where, name))
            if isinstance(item, dict) and set(item) == {"dim"}
            else item
            for name, item in kwargs.items()
        }
        return CallLeaf(where=where, file=file, function=function, kwargs=parsed)


def _kind_of(raw: Mapping[str, Any], where: str) -> str:
    found = [kind for kind in LEAF_KINDS if kind in raw]
    if found[:1] == ["shape"] and found[1:] in ([], ["value"]):
        return "shape"
    if len(found) > 1:
        raise SpecError(
            f"{quoted(found)} exclude each other",
            where=where,
            fix=f"Keep one of them; each of {quoted(found)} is a leaf.",
        )
    if found:
        return found[0]
    fix = f'A leaf has one of {quoted(LEAF_KINDS)}; a plain dict of leaves is written {{"dict": {{...}}}}.'
    if any(key in TENSOR_KEYS for key in raw):
        raise SpecError("key 'shape' is missing", where=where, fix='Add "shape": [...].')
    for key in raw:
        near = did_you_mean(key, LEAF_KINDS)
        if near:
            raise SpecError(f"unknown key {key!r}{near}", where=child_path(where, key), fix=fix)
    raise SpecError("this object is no leaf" if raw else "an empty object is no leaf", where=where, fix=fix)


def _reject_list_of_leaves(raw: list[Any], where: str) -> None:
    for index, item in enumerate(raw):
        if isinstance(item, (list, dict)):
            raise SpecError(
                f"a shape holds sizes, not {type_name(item)}",
                where=child_path(where, index),
                fix='For a list of leaves write {"list": [LEAF, ...]}.',
            )


def _no_leaf(raw: Any, where: str, dims: Mapping[str, tuple[int, ...]]) -> SpecError:
    fix = f'Write {{"value": {_json_text(raw)}}} for a constant, or a shape such as [2, 3] for a tensor.'
    if isinstance(raw, str) and raw in dims:
        fix = f'Write {{"dim": "{raw}"}} for the size as a number, or ["{raw}"] for a tensor of that size.'
    return SpecError(f"a leaf must be a shape or an object, not {type_name(raw)}", where=where, fix=fix)


def _json_text(raw: Any) -> str:
    return msgspec.json.encode(raw).decode()


def _file(raw: Mapping[str, Any], where: str) -> FileLeaf:
    inner = child_path(where, "file")
    file = string(raw["file"], inner, fix='Write {"file": "inputs.pt", "key": "x"}.')
    if not file.lower().endswith(_FILE_TYPES):
        raise SpecError(f"cannot read {file!r}", where=inner, fix=f"Known types: {quoted(_FILE_TYPES)}.")
    key = raw.get("key")
    if key is not None:
        key_where = child_path(where, "key")
        string(key, key_where, fix="Name the tensor in the file.")
        if file.lower().endswith(".npy"):
            raise SpecError("a .npy file holds one array and has no keys", where=key_where, fix="Leave 'key' out.")
    return FileLeaf(where=where, file=file, key=key)
