"""From the JSON of an input spec to `InputSpec`: tells the short forms apart and checks everything that needs no torch.

Every fault is a `SpecError` whose `where` is the JSON path in the user's document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compilebisect.core.json_checks import check_values, child_path, natural_number, object_with_keys, type_name
from compilebisect.core.nearest import did_you_mean, quoted
from compilebisect.core.spec_leaves import LEAF_KINDS, TENSOR_KEYS, LeafParser
from compilebisect.core.spec_types import (
    CallLeaf,
    ConstantLeaf,
    DictLeaf,
    DimLeaf,
    DimOptions,
    FileLeaf,
    InputSpec,
    Leaf,
    SequenceLeaf,
    TensorLeaf,
    Train,
)
from compilebisect.errors import SpecError

__all__ = [
    "CallLeaf",
    "ConstantLeaf",
    "DictLeaf",
    "DimLeaf",
    "DimOptions",
    "FileLeaf",
    "InputSpec",
    "Leaf",
    "SequenceLeaf",
    "TensorLeaf",
    "Train",
    "parse_spec",
]

_TOP_KEYS = ("args", "kwargs", "dims", "train", "tolerances")
_DIM_KEYS = ("values", "dynamic", "min", "max")
_ROOT = "input spec"
_FORMS = 'Give an object {"args": [...], "kwargs": {...}, "dims": {...}}, an object of keyword arguments, or a list.'


def parse_spec(raw: Any) -> InputSpec:
    """Parse an input spec.

    An object with `args`, `kwargs`, `dims` or a `train` section is the long form; any other object is the keyword
    arguments, and a list is the positional ones.

    Args:
        raw: the parsed JSON document.

    Raises:
        SpecError: at the first fault.
    """
    check_values(raw)
    if isinstance(raw, list):
        return InputSpec(args=_args(raw, "", LeafParser({})))
    if not isinstance(raw, dict):
        raise SpecError(f"the spec must be an object or a list, not {type_name(raw)}", where=_ROOT, fix=_FORMS)
    if not _is_long_form(raw):
        return _short_form(raw)
    for key in raw:
        if key not in _TOP_KEYS:
            raise _unknown_top_key(key)
    dims = _dims(raw.get("dims", {}))
    parser = LeafParser(dims)
    args = raw.get("args", [])
    if not isinstance(args, list):
        raise SpecError(f"must be a list of leaves, not {type_name(args)}", where="args", fix='Write {"args": [...]}.')
    kwargs = raw.get("kwargs", {})
    if not isinstance(kwargs, dict):
        raise SpecError(
            f"must be an object of leaves, not {type_name(kwargs)}", where="kwargs", fix='Write {"kwargs": {...}}.'
        )
    return InputSpec(
        args=_args(args, "args", parser),
        kwargs=_kwargs(kwargs, "kwargs", parser),
        dims=dims,
        dim_options=_dim_options(raw.get("dims", {}), dims),
        train=_train(raw["train"]) if "train" in raw else None,
        tolerances=_tolerances(raw.get("tolerances", {})),
    )


def _short_form(raw: Mapping[str, Any]) -> InputSpec:
    try:
        return InputSpec(kwargs=_kwargs(raw, "", LeafParser({})))
    except SpecError as error:
        # a misspelt section is taken for a parameter, whose leaf then makes no sense
        near = [(key, did_you_mean(key, _TOP_KEYS, cutoff=0.7)) for key in raw]
        text = "".join(f"; {key!r} is taken for a parameter of forward{hint}" for key, hint in near if hint)
        raise SpecError(f"{error.what}{text}", where=error.where, fix=error.fix) from error


def _is_long_form(raw: Mapping[str, Any]) -> bool:
    """Tell the long form from bare keyword arguments.

    `train` is a likely name of a parameter too: it is the section of that name unless its content is a leaf.
    """
    if any(key in raw for key in ("args", "kwargs", "dims")):
        return True
    train = raw.get("train")
    return isinstance(train, dict) and not any(key in train for key in LEAF_KINDS)


def _unknown_top_key(key: str) -> SpecError:
    return SpecError(
        f"unknown key {key!r}{did_you_mean(key, _TOP_KEYS)}",
        where=child_path("", key),
        fix=f"At the top there are {quoted(_TOP_KEYS)}; if {key!r} is a parameter of forward, move it into 'kwargs'.",
    )


def _args(raw: list[Any], where: str, parser: LeafParser) -> tuple[Leaf, ...]:
    if raw and all(isinstance(item, (int, str)) and not isinstance(item, bool) for item in raw):
        raise SpecError(
            "a list of sizes is one tensor, where a list of leaves is needed",
            where=where or _ROOT,
            fix="Put the shape into a list of its own: [[2, 3]].",
        )
    return tuple(parser.parse(item, child_path(where, index)) for index, item in enumerate(raw))


def _kwargs(raw: Mapping[str, Any], where: str, parser: LeafParser) -> dict[str, Leaf]:
    if not where and "shape" in raw and any(key in TENSOR_KEYS for key in raw if key != "shape"):
        raise SpecError(
            "this is a single leaf, where the arguments of forward are needed",
            where=_ROOT,
            fix='Wrap it: {"args": [{"shape": ...}]}, or name the parameter: {"x": {"shape": ...}}.',
        )
    return {name: parser.parse(item, child_path(where, name)) for name, item in raw.items()}


def _dims(raw: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(raw, dict):
        raise SpecError(
            f"must be an object of named sizes, not {type_name(raw)}", where="dims", fix='Write {"batch": [2, 4]}.'
        )
    return {name: _dim_values(name, item) for name, item in raw.items()}


def _dim_values(name: str, raw: Any) -> tuple[int, ...]:
    where = child_path("dims", name)
    if not name:
        raise SpecError("a dim needs a name", where=where, fix='Write {"batch": [2, 4]}.')
    if isinstance(raw, dict):
        object_with_keys(raw, _DIM_KEYS, where, required=("values",))
        raw, where = raw["values"], child_path(where, "values")
        if not isinstance(raw, list):
            raise SpecError(f"must be a list of sizes, not {type_name(raw)}", where=where, fix="Write [2, 4].")
    if not isinstance(raw, list):
        return (natural_number(raw, where),)
    if not raw:
        raise SpecError(f"dim {name!r} has no values", where=where, fix="Give at least one size: [2].")
    return tuple(natural_number(item, child_path(where, index)) for index, item in enumerate(raw))


def _dim_options(raw: Mapping[str, Any], dims: Mapping[str, tuple[int, ...]]) -> dict[str, DimOptions]:
    """Parse what is said of dims besides their values, which are known to be well-formed."""
    found = {}
    for name, item in raw.items():
        if isinstance(item, dict) and item.keys() - {"values"}:
            found[name] = _options_of_dim(item, child_path("dims", name), dims[name])
    return found


def _options_of_dim(raw: Mapping[str, Any], where: str, values: tuple[int, ...]) -> DimOptions:
    dynamic = raw.get("dynamic")
    if "dynamic" in raw and not isinstance(dynamic, bool):
        raise SpecError(
            f"must be true or false, not {type_name(dynamic)}", where=child_path(where, "dynamic"), fix="Write true."
        )
    bounds = {key: natural_number(raw[key], child_path(where, key)) for key in ("min", "max") if key in raw}
    low, high = bounds.get("min"), bounds.get("max")
    if bounds and dynamic is False:
        raise SpecError(
            "a size that is not dynamic has no bounds",
            where=child_path(where, next(iter(bounds))),
            fix='Leave it out, or write "dynamic": true.',
        )
    if low is not None and high is not None and low > high:
        raise SpecError(f"{low} is above max, which is {high}", where=child_path(where, "min"), fix="Swap them.")
    for index, value in enumerate(values):
        if (low is not None and value < low) or (high is not None and value > high):
            raise SpecError(
                f"{value} is not between min and max",
                where=child_path(child_path(where, "values"), index),
                fix="Widen the bounds, or leave the value out.",
            )
    return DimOptions(dynamic=dynamic, min=low, max=high)


def _tolerances(raw: Any) -> dict[str, tuple[float, float]]:
    fix = 'Write {"encoder.*": [1e-3, 1e-5]}, or one number for both.'
    if not isinstance(raw, dict):
        text = f"must be an object of module paths with their tolerances, not {type_name(raw)}"
        raise SpecError(text, where="tolerances", fix=fix)
    found = {}
    for pattern, item in raw.items():
        where = child_path("tolerances", pattern)
        numbers = item if isinstance(item, list) else [item]
        is_numeric = all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in numbers)
        if len(numbers) not in (1, 2) or not is_numeric or not all(0 <= n < float("inf") for n in numbers):
            raise SpecError("must be a number, or [rtol, atol], none of them negative", where=where, fix=fix)
        found[pattern] = (float(numbers[0]), float(numbers[-1]))
    return found


def _train(raw: Any) -> Train:
    if not isinstance(raw, dict):
        raise SpecError(f"must be an object, not {type_name(raw)}", where="train", fix='Write {"loss": "sum"}.')
    object_with_keys(raw, ("loss",), "train")
    loss = raw.get("loss", "sum")
    fix = "Give 'sum', 'mean', an output path such as 'logits', or 'file.py:func'."
    if not isinstance(loss, str) or not loss.strip():
        raise SpecError(f"must be a string, not {type_name(loss)}", where="train.loss", fix=fix)
    if ":" in loss:
        file, _, function = loss.rpartition(":")
        if not file.endswith(".py") or not all(part.isidentifier() for part in function.split(".")):
            raise SpecError(f"{loss!r} does not name a function", where="train.loss", fix=fix)
    return Train(loss=loss)
