"""Parsing of a tensor leaf: shape, dtype, init and layout, and whether they fit together in every variant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from compilebisect.core.dtype_names import ALIASES, DTYPES, Dtype, dtype_from_name
from compilebisect.core.json_checks import child_path, natural_number, string, type_name
from compilebisect.core.nearest import did_you_mean, quoted
from compilebisect.core.spec_types import Size, TensorLeaf, size_value
from compilebisect.errors import SpecError

Dims = Mapping[str, tuple[int, ...]]

TENSOR_KEYS = (
    "shape",
    "dtype",
    "init",
    "low",
    "high",
    "value",
    "requires_grad",
    "memory_format",
    "stride",
    "device",
)
INITS = ("randn", "rand", "randint", "zeros", "ones", "full", "arange", "eye")
# The rank that each memory format asks for; None is any.
MEMORY_FORMATS: dict[str, int | None] = {"channels_last": 4, "channels_last_3d": 5, "contiguous_format": None}
# Without a dtype these give what torch's own functions of that name give; all others take the model's dtype.
_INTEGER_INITS = ("randint", "arange")
# As many bytes as an address can tell apart today, and so more than any machine holds.
_MOST_ELEMENTS = 2**47
_SPECIAL_FLOATS = ("inf", "-inf", "nan")


def known_dim(name: str, where: str, dims: Dims) -> str:
    """Return a dim's name if there is such a dim.

    Raises:
        SpecError: with the nearest name.
    """
    if name not in dims:
        known = f"Known dims: {quoted(dims)}." if dims else f'Add "dims": {{"{name}": [2, 3]}} to the spec.'
        raise SpecError(f"unknown dim {name!r}{did_you_mean(name, dims)}", where=where, fix=known)
    return name


def parse_tensor(raw: Mapping[str, Any], where: str, dims: Dims, *, shape_where: str) -> TensorLeaf:
    """Parse the object form of a tensor, whose keys are known ones.

    Raises:
        SpecError: at the first fault.
    """
    shape = _sizes(raw["shape"], shape_where, dims)
    dtype = _dtype(raw, where)
    init = _init(raw, where, dtype)
    if dtype is None and init in _INTEGER_INITS:
        dtype = DTYPES["int64"]
    if init == "eye" and len(shape) != 2:
        raise SpecError(
            f"init 'eye' needs 2 dimensions, not {len(shape)}",
            where=child_path(where, "init"),
            fix="Give a shape of two sizes.",
        )
    value: bool | int | float = 0
    if init == "full":
        value = _value(raw, where, dtype)
        if dtype is None and isinstance(value, bool):
            dtype = DTYPES["bool"]
    elif "value" in raw:
        raise _belongs_to("value", "full", where)
    low, high = _range(raw, where, dims, dtype, init)
    stride = _stride(raw, where, dims, shape)
    _check_extent(shape, stride, shape_where, dims)
    return TensorLeaf(
        where=where,
        shape=shape,
        dtype=dtype.name if dtype else None,
        init=init,
        low=low,
        high=high,
        value=value,
        requires_grad=_requires_grad(raw, where, dtype),
        memory_format=_memory_format(raw, where, shape),
        stride=stride,
        device=_device(raw, where),
    )


def _sizes(raw: Any, where: str, dims: Dims) -> tuple[Size, ...]:
    if not isinstance(raw, list):
        raise SpecError(f"must be a list of sizes, not {type_name(raw)}", where=where, fix='Write [2, "seq", 64].')
    return tuple(_size(item, child_path(where, index), dims) for index, item in enumerate(raw))


def _check_extent(shape: tuple[Size, ...], stride: tuple[Size, ...] | None, where: str, dims: Dims) -> None:
    """Check that some machine could hold the tensor in every variant."""
    for variant in range(max((len(values) for values in dims.values()), default=1)):
        at = {name: values[min(variant, len(values) - 1)] for name, values in dims.items()}
        sizes = [size_value(size, at) for size in shape]
        count = math.prod(sizes)
        if stride is not None and count:
            steps = [size_value(step, at) for step in stride]
            count = 1 + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        if count > _MOST_ELEMENTS:
            raise SpecError(
                f"a tensor of shape {sizes} takes the room of {count:.3g} elements, more than any machine has",
                where=where,
                fix="Give smaller sizes.",
            )


def _size(raw: Any, where: str, dims: Dims) -> Size:
    return known_dim(raw, where, dims) if isinstance(raw, str) else natural_number(raw, where)


def _dtype(raw: Mapping[str, Any], where: str) -> Dtype | None:
    if "dtype" not in raw:
        return None
    inner = child_path(where, "dtype")
    name = string(raw["dtype"], inner, fix="Name a dtype as torch does, e.g. 'int64'.")
    dtype = dtype_from_name(name)
    if dtype is None:
        near = did_you_mean(name.removeprefix("torch."), (*DTYPES, *ALIASES))
        raise SpecError(f"unknown dtype {name!r}{near}", where=inner, fix=f"Known: {quoted(DTYPES, limit=30)}.")
    return dtype


def _init(raw: Mapping[str, Any], where: str, dtype: Dtype | None) -> str:
    is_number_line = dtype is None or dtype.family in ("float", "complex")
    if "init" not in raw:
        return "randn" if is_number_line else "randint"
    inner = child_path(where, "init")
    init = string(raw["init"], inner, fix=f"Known: {quoted(INITS)}.")
    if init not in INITS:
        raise SpecError(
            f"unknown init {init!r}{did_you_mean(init, INITS)}", where=inner, fix=f"Known: {quoted(INITS)}."
        )
    if init in ("randn", "rand") and dtype is not None and not is_number_line:
        raise SpecError(
            f"init {init!r} needs a floating dtype, not {dtype.name!r}", where=inner, fix="Use init 'randint'."
        )
    if init == "randint" and dtype is not None and dtype.family == "complex":
        raise SpecError(f"init 'randint' cannot make {dtype.name!r}", where=inner, fix="Use init 'randn'.")
    return init


def _belongs_to(key: str, init: str, where: str) -> SpecError:
    fix = f'Add "init": "{init}", or leave {key!r} out.'
    if init == "randint":
        fix = f'Add an integer dtype such as "dtype": "int64", or leave {key!r} out.'
    return SpecError(f"{key!r} belongs to init {init!r}", where=child_path(where, key), fix=fix)


def _value(raw: Mapping[str, Any], where: str, dtype: Dtype | None) -> bool | int | float:
    if "value" not in raw:
        raise SpecError("init 'full' needs a value", where=where, fix='Add "value".')
    inner = child_path(where, "value")
    value: Any = raw["value"]
    family = dtype.family if dtype else "float"
    if isinstance(value, str) and value in _SPECIAL_FLOATS and family in ("float", "complex"):
        return float(value)
    if not isinstance(value, (bool, int, float)):
        raise SpecError(f"must be a number, not {type_name(value)}", where=inner, fix="Give a number or a bool.")
    number: bool | int | float = value
    if dtype is None:
        return number
    if family == "bool":
        if value not in (0, 1):
            raise SpecError(f"{value} is no bool", where=inner, fix="Give true or false.")
        return bool(value)
    if isinstance(value, bool):
        raise SpecError(
            f"must be a number, not {type_name(value)}", where=inner, fix='Give a number, or "dtype": "bool".'
        )
    if family == "int":
        if not isinstance(value, int):
            raise SpecError(f"{value} is no integer", where=inner, fix="Give an integer, or a floating dtype.")
        _check_fits(value, dtype.low, dtype.high, inner, dtype)
    return number


def _check_fits(value: int, low: int, high: int, where: str, dtype: Dtype) -> None:
    if not low <= value <= high:
        raise SpecError(f"{value} does not fit {dtype.name!r}", where=where, fix=f"Stay within {low} ... {high}.")


def _range(raw: Mapping[str, Any], where: str, dims: Dims, dtype: Dtype | None, init: str) -> tuple[Size, Size]:
    """Return `low` and `high` of `randint`, checked for every variant."""
    bounds: dict[str, Size] = {"low": 0, "high": 2}
    for key in bounds:
        if key not in raw:
            continue
        if init != "randint":
            raise _belongs_to(key, "randint", where)
        bounds[key] = _bound(raw[key], child_path(where, key), dims)
    if init != "randint":
        return bounds["low"], bounds["high"]
    # torch draws with 64 signed bits whatever the dtype is
    int64 = DTYPES["int64"]
    limit = dtype if dtype is not None and dtype.family in ("int", "bool") else int64
    for variant in range(max((len(values) for values in dims.values()), default=1)):
        at = {name: values[min(variant, len(values) - 1)] for name, values in dims.items()}
        low, high = size_value(bounds["low"], at), size_value(bounds["high"], at)
        _check_fits(low, max(limit.low, int64.low), min(limit.high, int64.high - 1), child_path(where, "low"), limit)
        _check_fits(high, limit.low, min(limit.high + 1, int64.high), child_path(where, "high"), limit)
        if low >= high:
            raise SpecError(
                f"'low' {low} is not below 'high' {high}",
                where=child_path(where, "low" if "low" in raw else "high"),
                fix="Values run from 'low' (0 if left out) to 'high' - 1 ('high' is 2 if left out).",
            )
    return bounds["low"], bounds["high"]


def _bound(raw: Any, where: str, dims: Dims) -> Size:
    if isinstance(raw, str):
        return known_dim(raw, where, dims)
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise SpecError(f"must be an integer, not {type_name(raw)}", where=where, fix="Give an integer.")
    return raw


def _requires_grad(raw: Mapping[str, Any], where: str, dtype: Dtype | None) -> bool:
    value = raw.get("requires_grad", False)
    inner = child_path(where, "requires_grad")
    if not isinstance(value, bool):
        raise SpecError(f"must be true or false, not {type_name(value)}", where=inner, fix="Give true or false.")
    if value and dtype is not None and dtype.family not in ("float", "complex"):
        raise SpecError(f"{dtype.name!r} tensors have no gradient", where=inner, fix="Leave 'requires_grad' out.")
    return value


def _memory_format(raw: Mapping[str, Any], where: str, shape: tuple[Size, ...]) -> str | None:
    if "memory_format" not in raw:
        return None
    inner = child_path(where, "memory_format")
    known = f"Known: {quoted(MEMORY_FORMATS)}."
    name = string(raw["memory_format"], inner, fix=known).removeprefix("torch.")
    if name not in MEMORY_FORMATS:
        raise SpecError(f"unknown memory format {name!r}{did_you_mean(name, MEMORY_FORMATS)}", where=inner, fix=known)
    rank = MEMORY_FORMATS[name]
    if rank is not None and rank != len(shape):
        raise SpecError(
            f"{name!r} needs {rank} dimensions, not {len(shape)}", where=inner, fix=f"Give a shape of {rank} sizes."
        )
    if "stride" in raw:
        raise SpecError("'memory_format' and 'stride' exclude each other", where=inner, fix="Keep one of them.")
    return name


def _stride(raw: Mapping[str, Any], where: str, dims: Dims, shape: tuple[Size, ...]) -> tuple[Size, ...] | None:
    if "stride" not in raw:
        return None
    inner = child_path(where, "stride")
    stride = _sizes(raw["stride"], inner, dims)
    if len(stride) != len(shape):
        raise SpecError(
            f"{len(stride)} strides for {len(shape)} dimensions", where=inner, fix="Give one stride for each size."
        )
    return stride


def _device(raw: Mapping[str, Any], where: str) -> str | None:
    if "device" not in raw:
        return None
    inner = child_path(where, "device")
    fix = "Give 'cpu', 'cuda' or 'cuda:N'."
    name = string(raw["device"], inner, fix=fix)
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (":" in name and not (index.isascii() and index.isdigit())):
        raise SpecError(f"unknown device {name!r}{did_you_mean(kind, ('cpu', 'cuda'))}", where=inner, fix=fix)
    return name
