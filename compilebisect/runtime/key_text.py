"""How the keys of a mapping are called in paths: the same in every run, whatever their class makes of them."""

from __future__ import annotations

import enum
import re
import types
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from compilebisect.attempt import attempt

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
_AT_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+\b")
_LONGEST = 200


def key_texts(keys: Iterable[Any]) -> list[str]:
    """Name keys in order. Those without a value of their own go by class, and from the second on by a number too."""
    texts: list[str] = []
    counts: Counter[str] = Counter()
    for key in keys:
        text = _key_text(key)
        counts[text] += 1
        texts.append(text if counts[text] == 1 else f"{text} {counts[text]}")
    return texts


def has_identity(key: Any) -> bool:
    """Say whether a key equals nothing but itself, as plain objects do."""
    cls: Any = type(key)
    return bool(cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__)


def safe_repr(value: Any) -> str:
    """Return the `repr` of a value without addresses; its class where that fails."""
    made = attempt(repr, value)  # `__repr__` is the user's code
    if made.error is not None:
        return f"<{type(value).__qualname__}>"
    text = _AT_ADDRESS.sub("", made.value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def same_atom(one: Any, other: Any) -> bool:
    """Say whether two values that hold nothing else are equal, NaN being equal to itself."""
    if one is other:
        return True
    # an enumeration may have an `__eq__` of the user's
    same = attempt(lambda: type(one) is type(other) and bool(one == other or (one != one and other != other)))
    return same.error is None and same.value


def _key_text(key: Any) -> str:
    if type(key) in _PLAIN:
        return repr(key)
    if issubclass(type(key), (tuple, frozenset)):
        return _members_text(key)
    if issubclass(type(key), _NAMED):
        return f"<{getattr(key, '__qualname__', None) or getattr(key, '__name__', '')}>"
    # an enumeration's members are themselves alone, and yet the same in every run
    if issubclass(type(key), (torch.Tensor, torch.nn.Module)) or (
        has_identity(key) and not issubclass(type(key), enum.Enum)
    ):
        return f"<{type(key).__qualname__}>"
    return safe_repr(key)


def _members_text(key: Sequence[Any] | frozenset[Any]) -> str:
    texts = [_key_text(item) for item in key]
    if isinstance(key, frozenset):
        return f"frozenset({{{', '.join(sorted(texts))}}})"
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
