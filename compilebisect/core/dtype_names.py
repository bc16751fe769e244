"""The dtypes that an input spec may name, with what each can hold; the names are torch's own."""

from __future__ import annotations

from typing import Literal

import msgspec

Family = Literal["float", "complex", "int", "bool"]


class Dtype(msgspec.Struct, frozen=True):
    """A dtype by its canonical name; `low` and `high` are the least and greatest integer that it holds."""

    name: str
    family: Family
    low: int = 0
    high: int = 0


_FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2")
_MORE_FLOATS = ("float8_e5m2fnuz", "float8_e8m0fnu")
_COMPLEX = ("complex32", "complex64", "complex128")
_SIGNED = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_UNSIGNED = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}

DTYPES: dict[str, Dtype] = {
    **{name: Dtype(name, "float") for name in (*_FLOATS, *_MORE_FLOATS)},
    **{name: Dtype(name, "complex") for name in _COMPLEX},
    **{name: Dtype(name, "int", -(2**bits), 2**bits - 1) for name, bits in _SIGNED.items()},
    **{name: Dtype(name, "int", 0, 2**bits - 1) for name, bits in _UNSIGNED.items()},
    "bool": Dtype("bool", "bool", 0, 1),
}

# Second names that torch itself has for some of them.
ALIASES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "short": "int16",
    "int": "int32",
    "long": "int64",
}


def dtype_from_name(name: str) -> Dtype | None:
    """Look up a dtype by the name that torch gives it, with or without `torch.`; None if there is no such dtype."""
    bare = name.removeprefix("torch.")
    return DTYPES.get(ALIASES.get(bare, bare))
