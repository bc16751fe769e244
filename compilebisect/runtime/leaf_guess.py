"""A guess at one parameter of forward for the starter spec: by its type hint, its name, and the model's layers."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from compilebisect.runtime.layer_shapes import ids_of, image_shape, shape_for_layers

_VOCABULARY = 100
_TENSOR_TYPES: dict[Any, str] = {
    torch.LongTensor: "int64",
    torch.IntTensor: "int32",
    torch.ShortTensor: "int16",
    torch.CharTensor: "int8",
    torch.ByteTensor: "uint8",
    torch.BoolTensor: "bool",
    torch.FloatTensor: "float32",
    torch.DoubleTensor: "float64",
    torch.HalfTensor: "float16",
    torch.BFloat16Tensor: "bfloat16",
}
_CONSTANTS: dict[Any, Any] = {bool: False, int: 1, float: 1.0, str: "", type(None): None}

_IDS = re.compile(r"(^|_)(ids?|idx|tokens?)$")
# these stand for integers only in a model that looks something up
_IDS_OF_LOOKUP = re.compile(r"(^|_)(captions?|labels?|targets?|index|indices|words?|texts?|tgt|src)$")
_MASKS = re.compile(r"(^|_)mask$")
_BOOL_MASKS = re.compile(r"padding_mask$")
_EDGES = re.compile(r"^edge_index$")
_LENGTHS = re.compile(r"(^|_)lengths?$")
_STEPS = re.compile(r"^timesteps?$")
_IMAGES = re.compile(r"(^|_)(images?|imgs?|pixels?|pixel_values)$")
_WAVES = re.compile(r"(^|_)(audio|waveform|mel|input_features)$")
_FLAGS = re.compile(r"^(return|use|is|do|output|with)_|_only$")


def guess_leaf(name: str, hint: Any, model: nn.Module | None) -> Any:
    """Return a leaf of the input spec for a parameter.

    Args:
        name: the parameter's name.
        hint: its type hint, `inspect.Parameter.empty` where there is none.
        model: whose first layers tell sizes; None where only the class is known.
    """
    hint = _without_none(hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in _CONSTANTS:
        return {"value": _CONSTANTS[hint]}
    if origin is typing.Literal:
        return {"value": inner[0]}
    if hint is list or _is_a(origin, list) or _is_sequence(origin):
        return {"list": [guess_leaf(_singular(name), inner[0] if inner else None, model)]}
    if origin is tuple:
        return {"tuple": [guess_leaf(_singular(name), item, model) for item in inner if item is not Ellipsis]}
    if typing.is_typeddict(hint):
        return {"dict": {key: guess_leaf(key, item, model) for key, item in typing.get_type_hints(hint).items()}}
    if hint is dict or _is_a(origin, dict) or origin is Mapping:
        return {"dict": {}}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return {"call": f"inputs.py:make_{name}"}
    return _tensor(name, hint, model)


def _without_none(hint: Any) -> Any:
    """Return what is left of `X | None`, and of a union that allows a tensor, the tensor."""
    if typing.get_origin(hint) is typing.Annotated:
        return _without_none(typing.get_args(hint)[0])
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
    tensors = [choice for choice in choices if _is_a(choice, torch.Tensor) or choice in _TENSOR_TYPES]
    return (tensors or choices)[0]


def _is_a(hint: Any, base: type) -> bool:
    return isinstance(hint, type) and issubclass(hint, base)


def _is_sequence(origin: Any) -> bool:
    return getattr(origin, "__module__", "") == "collections.abc" and origin.__name__ in ("Sequence", "Iterable")


def _singular(name: str) -> str:
    return name.removesuffix("s")


def _tensor(name: str, hint: Any, model: nn.Module | None) -> Any:
    dtype = _TENSOR_TYPES.get(hint) if isinstance(hint, type) else None
    if dtype is None and hint is not torch.Tensor and _FLAGS.search(name):
        return {"value": False}
    leaf = _by_name(name, model) or shape_for_layers(model) or ["batch", "seq", 64]
    if dtype in (None, "float32"):
        return leaf
    if isinstance(leaf, list):
        return {"shape": leaf, "dtype": dtype}
    kept = {key: value for key, value in leaf.items() if key != "high" or dtype not in ("bool", "int8", "uint8")}
    return {**kept, "dtype": dtype}


def _by_name(name: str, model: nn.Module | None) -> Any:
    """Return the tensor that usually goes by this name, None where the name tells nothing."""
    name = name.lower()
    if _BOOL_MASKS.search(name):
        return {"shape": ["batch", "seq"], "dtype": "bool", "init": "zeros"}
    if _MASKS.search(name):
        return {"shape": ["batch", "seq"], "dtype": "int64", "init": "ones"}
    if _EDGES.search(name):
        return {"shape": [2, "edges"], "dtype": "int64", "high": "nodes"}
    if _STEPS.search(name):
        return {"shape": ["batch"], "dtype": "int64", "high": _VOCABULARY}
    if name == "position_ids":
        return {"shape": ["batch", "seq"], "dtype": "int64", "init": "zeros"}
    if _LENGTHS.search(name):
        return {"shape": ["batch"], "dtype": "int64", "init": "randint", "low": 1, "high": "seq"}
    lookup = shape_for_layers(model, (nn.Embedding, nn.EmbeddingBag))
    if _IDS.search(name) or (_IDS_OF_LOOKUP.search(name) and (lookup or model is None)):
        return lookup or ids_of(_VOCABULARY)
    if _IMAGES.search(name):
        return shape_for_layers(model, (nn.Conv2d,)) or image_shape(3, model)
    if _WAVES.search(name):
        return shape_for_layers(model, (nn.Conv1d,))
    return None
