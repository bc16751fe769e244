"""The parsed input spec: frozen data, complete and consistent, so that whoever builds from it need not check it.

`where` of a leaf is its JSON path in the user's document, for messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

# A natural number, or the name of a dim.
Size = int | str


def size_value(size: Size, dims: Mapping[str, int]) -> int:
    """Return the number that a size stands for; `dims` gives each named dim its value."""
    return dims[size] if isinstance(size, str) else size


class TensorLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor to make.

    `dtype` None is the model's floating dtype; `randint` draws from `low` to `high` - 1.
    """

    where: str
    shape: tuple[Size, ...]
    dtype: str | None = None
    init: str = "randn"
    low: Size = 0
    high: Size = 2
    value: bool | int | float = 0
    requires_grad: bool = False
    memory_format: str | None = None
    stride: tuple[Size, ...] | None = None
    device: str | None = None


class ConstantLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """A Python constant: number, string, bool, None, list or dict."""

    where: str
    value: Any


class DimLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a dim as a Python integer."""

    where: str
    dim: str


class SequenceLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """A list or tuple of leaves."""

    where: str
    items: tuple[Leaf, ...]
    is_tuple: bool = False


class DictLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """A dict of leaves."""

    where: str
    items: dict[str, Leaf]


class FileLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor from a `.pt`, `.safetensors` or `.npy` file; `file` is relative to the spec."""

    where: str
    file: str
    key: str | None = None


class CallLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """What a Python function returns; `kwargs` are JSON values, or dims where they are `DimLeaf`."""

    where: str
    file: str
    function: str
    kwargs: dict[str, Any] = {}


Leaf = TensorLeaf | ConstantLeaf | DimLeaf | SequenceLeaf | DictLeaf | FileLeaf | CallLeaf


class Train(msgspec.Struct, frozen=True, kw_only=True):
    """How the backward pass starts: `loss` is `sum`, `mean`, an output path such as `logits`, or `file.py:func`."""

    loss: str = "sum"


class DimOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a spec says of a named size besides its values.

    `dynamic` None means: if it varies. `min` and `max` bound the sizes that compiled code has to serve.
    """

    dynamic: bool | None = None
    min: int | None = None
    max: int | None = None


class InputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the model's forward, for each variant of the named sizes.

    `dim_options` has an entry for those dims alone of which more is said than their values.
    `tolerances` has (rtol, atol) by glob over module paths; the first one that fits counts.
    """

    args: tuple[Leaf, ...] = ()
    kwargs: dict[str, Leaf] = {}
    dims: dict[str, tuple[int, ...]] = {}
    dim_options: dict[str, DimOptions] = {}
    train: Train | None = None
    tolerances: dict[str, tuple[float, float]] = {}

    @property
    def variant_count(self) -> int:
        """Number of variants, at least 1."""
        return max((len(values) for values in self.dims.values()), default=1)

    def dims_of_variant(self, variant: int) -> dict[str, int]:
        """Return the size of each dim in a variant, counted from 0; a shorter list repeats its last value."""
        return {name: values[min(variant, len(values) - 1)] for name, values in self.dims.items()}
