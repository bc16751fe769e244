"""Guesses of input shapes from the layers of a model, for the starter spec."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import nn

# A spec's tensor: a shape, or the object form.
TensorSpec = list[int | str] | dict[str, Any]

_FEATURES = 64
_IMAGE_SIDE = 64
_VOLUME_SIDE = 16
_SEQUENCE_CLASS = re.compile(r"attention|transformer|encoderlayer|decoderlayer|LSTM|GRU", re.IGNORECASE)


def shape_for_layers(model: nn.Module | None, wanted: tuple[type[nn.Module], ...] = ()) -> TensorSpec | None:
    """Return the tensor that the first layer of a model takes.

    Args:
        model: None where only a class is known.
        wanted: only layers of these types are looked at; all known ones where empty.

    Returns:
        A shape or tensor object of the input spec; None where no layer tells.
    """
    if model is None:
        return None
    for layer in model.modules():
        for types, describe in _LAYERS:
            if isinstance(layer, types) and (not wanted or isinstance(layer, wanted)):
                return describe(layer, model)
    return None


def image_shape(channels: int, model: nn.Module | None) -> list[int | str]:
    """Return the shape of a batch of images, of the side that the model or its config names."""
    side: Any = None
    for owner in (model, getattr(model, "config", None)):
        for name in ("image_size", "img_size"):
            side = side if side is not None else getattr(owner, name, None)
    sides = list(side) if isinstance(side, (list, tuple)) else [side, side]
    if len(sides) != 2 or not all(isinstance(value, int) and not isinstance(value, bool) for value in sides):
        sides = [_IMAGE_SIDE, _IMAGE_SIDE]
    return ["batch", channels, *sides]


def ids_of(high: int) -> dict[str, Any]:
    """Return a batch of integers below `high`."""
    return {"shape": ["batch", "seq"], "dtype": "int64", "high": high}


def _rows(features: int, model: nn.Module) -> TensorSpec:
    """Return a batch of vectors, or of sequences of them where the model has layers that go with sequences."""
    is_sequence = any(isinstance(m, nn.LayerNorm) or _SEQUENCE_CLASS.search(type(m).__name__) for m in model.modules())
    return ["batch", "seq", features] if is_sequence else ["batch", features]


def _sequence(features: int, *, batch_first: bool) -> TensorSpec:
    return ["batch", "seq", features] if batch_first else ["seq", "batch", features]


# Attributes of a layer that stay 0 until the first call of a lazy module take the default of this file.
_LAYERS: tuple[tuple[tuple[type[nn.Module], ...], Callable[[Any, nn.Module], TensorSpec]], ...] = (
    ((nn.Embedding,), lambda layer, model: ids_of(layer.num_embeddings)),
    ((nn.EmbeddingBag,), lambda layer, model: ids_of(layer.num_embeddings)),
    ((nn.Conv1d,), lambda layer, model: ["batch", layer.in_channels or 3, "length"]),
    ((nn.Conv2d,), lambda layer, model: image_shape(layer.in_channels or 3, model)),
    ((nn.Conv3d,), lambda layer, model: ["batch", layer.in_channels or 3, *[_VOLUME_SIDE] * 3]),
    ((nn.RNNBase,), lambda layer, model: _sequence(layer.input_size, batch_first=layer.batch_first)),
    ((nn.MultiheadAttention,), lambda layer, model: _sequence(layer.embed_dim, batch_first=layer.batch_first)),
    ((nn.Linear,), lambda layer, model: _rows(layer.in_features or _FEATURES, model)),
    ((nn.LayerNorm,), lambda layer, model: ["batch", "seq", *layer.normalized_shape]),
    ((nn.BatchNorm1d,), lambda layer, model: ["batch", layer.num_features or _FEATURES]),
    ((nn.BatchNorm2d,), lambda layer, model: image_shape(layer.num_features or 3, model)),
)
