"""Checks on parsed JSON whose errors name the JSON path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compilebisect.core.nearest import did_you_mean, quoted
from compilebisect.errors import SpecError

# The greatest size that torch can hold.
_MAX_SIZE = 2**63 - 1


def child_path(where: str, key: str | int) -> str:
    """Return the JSON path of a member: `a.b` or `a[0]`, and `a["b c"]` where the key is no plain name."""
    if isinstance(key, int):
        return f"{where}[{key}]"
    if key.isidentifier():
        return f"{where}.{key}" if where else key
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{where}["{escaped}"]'


def type_name(value: Any) -> str:
    """Return what JSON calls the type of a value, with its article and, where short, the value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the bool {str(value).lower()}"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the string {value!r}" if len(value) <= 40 else "a string"
    return "a list" if isinstance(value, list) else "an object"


def object_with_keys(raw: Mapping[str, Any], keys: Sequence[str], where: str, *, required: Sequence[str] = ()) -> None:
    """Check that an object has no keys but `keys` and all of `required`.

    Raises:
        SpecError: with the nearest key there is.
    """
    for key in raw:
        if key not in keys:
            raise SpecError(
                f"unknown key {key!r}{did_you_mean(key, keys)}",
                where=child_path(where, key),
                fix=f"Known here: {quoted(keys, limit=20)}.",
            )
    for key in required:
        if key not in raw:
            raise SpecError(f"key {key!r} is missing", where=where, fix=f"Add {key!r}.")


def natural_number(raw: Any, where: str) -> int:
    """Return a size: an integer that is not negative.

    Raises:
        SpecError: for anything else, bools and floats such as 2.0 included.
    """
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise SpecError(f"a size must be a natural number, not {type_name(raw)}", where=where, fix="Give 0, 1, 2, ...")
    if raw < 0:
        raise SpecError(f"a size must be a natural number, not {raw}", where=where, fix="Give 0, 1, 2, ...")
    if raw > _MAX_SIZE:
        raise SpecError(f"the size {raw} is greater than any tensor", where=where, fix="Give a smaller size.")
    return raw


def string(raw: Any, where: str, *, fix: str) -> str:
    """Return a string that is not empty.

    Raises:
        SpecError: for anything else.
    """
    if not isinstance(raw, str):
        raise SpecError(f"must be a string, not {type_name(raw)}", where=where, fix=fix)
    if not raw.strip():
        raise SpecError("the string is empty", where=where, fix=fix)
    return raw
