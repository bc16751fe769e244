"""Checks on parsed JSON whose errors name the JSON path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from compilebisect.core.nearest import did_you_mean, quoted
from compilebisect.errors import SpecError

# The greatest size that torch can hold.
_MAX_SIZE = 2**63 - 1
# What fits into 64 bits, with a sign or without.
_LEAST, _MOST = -(2**63), 2**64 - 1
# Far more than anybody writes, and little enough for every reader behind us.
_MOST_LEVELS = 100


def child_path(where: str, key: str | int) -> str:
    """Return the JSON path of a member: `a.b` or `a[0]`, and `a["b c"]` where the key is no plain name."""
    if isinstance(key, int):
        return f"{where}[{key}]"
    if key.isidentifier():
        return f"{where}.{key}" if where else key
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{where}["{escaped}"]'


def integer_from_text(text: str) -> int:
    """Read an integer of JSON; one with more digits than Python reads at once becomes one that is too large anyway."""
    return int(text) if len(text) <= 1000 else 10**1000


def check_values(raw: Any, root: str = "input spec") -> None:
    """Check that parsed JSON holds nothing but what can be handed on: no matter where it is meant to go.

    Args:
        raw: any parsed JSON.
        root: what an error names where the JSON path is empty.

    Raises:
        SpecError: a number does not fit 64 bits or is infinite, a string is no Unicode, or it is nested too deeply.
    """
    waiting = [(raw, "", 0)]
    while waiting:
        value, place, level = waiting.pop()
        if level > _MOST_LEVELS:
            short = place if len(place) <= 60 else f"{place[:60]}..."
            raise SpecError(f"it is nested more than {_MOST_LEVELS} levels deep", where=short, fix="Flatten it.")
        if isinstance(value, dict):
            for key in value:
                _check_text(key, place or root)
            waiting += [(item, child_path(place, key), level + 1) for key, item in reversed(value.items())]
        elif isinstance(value, list):
            waiting += [(item, child_path(place, index), level + 1) for index, item in reversed([*enumerate(value)])]
        elif isinstance(value, str):
            _check_text(value, place or root)
        elif isinstance(value, float) and not math.isfinite(value):
            raise SpecError(
                f"the number is {'not finite' if value == value else 'no number'}",
                where=place or root,
                fix='Give a finite number, or "inf" as a string where a tensor\'s value is meant.',
            )
        elif isinstance(value, int) and not _LEAST <= value <= _MOST:
            raise SpecError(
                f"{type_name(value)} does not fit 64 bits",
                where=place or root,
                fix='Make large numbers in Python: with --inputs, {"call": ...} or a factory function.',
            )


def _check_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"the string {text if len(text) <= 40 else text[:40]!a} is no Unicode text: half of a surrogate pair",
            where=where,
            fix="Write the character itself, or both halves.",
        ) from error


def type_name(value: Any) -> str:
    """Return what JSON calls the type of a value, with its article and, where short, the value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the bool {str(value).lower()}"
    if isinstance(value, (int, float)):
        text = str(value) if not isinstance(value, int) or abs(value) < 10**40 else "of more than 40 digits"
        return f"the number {text}"
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
