"""Starter specs: what each parameter becomes, and that the result is a spec with which the model runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Optional, TypedDict

import pytest
import torch
from torch import Tensor, nn

from compilebisect.core.input_spec import parse_spec
from compilebisect.runtime.inputs import build_inputs, check_signature
from compilebisect.runtime.starter_spec import starter_spec


def run_with_starter(model: nn.Module) -> dict[str, Any]:
    """Make a starter spec, check that the model runs with it, and return it."""
    raw = starter_spec(model)
    spec = parse_spec(raw)
    check_signature(spec, model.forward)
    args, kwargs = build_inputs(spec, variant=0, device="cpu", dtype=None, spec_dir=".", seed=0)
    with torch.no_grad():
        model.eval()(*args, **kwargs)
    return raw


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.mix = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Tensor:
        mixed: Tensor = self.mix(self.words(input_ids)) * attention_mask[..., None]
        return mixed


def test_ids_take_their_range_from_the_embedding() -> None:
    assert run_with_starter(Reader()) == {
        "kwargs": {
            "input_ids": {"shape": ["batch", "seq"], "dtype": "int64", "high": 50},
            "attention_mask": {"shape": ["batch", "seq"], "dtype": "int64", "init": "ones"},
        },
        "dims": {"batch": [2], "seq": [16]},
    }


def test_images_take_their_channels_from_the_convolution() -> None:
    class Seer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image_size = 24
            self.conv = nn.Conv2d(5, 4, 3)

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.conv(x)

    assert run_with_starter(Seer())["kwargs"] == {"x": ["batch", 5, 24, 24]}


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(7, 2), ["batch", 7]),
        (nn.LazyLinear(2), ["batch", 64]),
        (nn.Conv1d(4, 2, 3), ["batch", 4, "length"]),
        (nn.Conv3d(2, 2, 3), ["batch", 2, 16, 16, 16]),
        (nn.LSTM(6, 3), ["seq", "batch", 6]),
        (nn.GRU(6, 3, batch_first=True), ["batch", "seq", 6]),
        (nn.LayerNorm(6), ["batch", "seq", 6]),
        (nn.BatchNorm2d(3), ["batch", 3, 64, 64]),
        (nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)), ["batch", "seq", 6]),
    ],
)
def test_first_layer_tells_the_shape(layer: nn.Module, shape: list[Any]) -> None:
    raw = run_with_starter(layer)
    assert list(raw["kwargs"].values()) == [shape]


class Settings(TypedDict):
    depth: int
    x: Tensor


@dataclass
class Batch:
    x: Tensor


class Hints(nn.Module):
    def forward(
        self,
        a: bool,
        b: int,
        c: float,
        d: str,
        e: Literal["fast", "slow"],
        f: torch.BoolTensor,
        g: torch.LongTensor,
        h: Optional[Tensor],  # noqa: UP045 - the older spelling must work too
        i: Sequence[Tensor],
        j: tuple[Tensor, int],
        k: Settings,
        l: Batch,  # noqa: E741
        m: Mapping[str, Tensor],
        n: list[int],
        o: float | Tensor,
        p: None,
    ) -> None: ...


def test_hints_decide() -> None:
    raw = starter_spec(Hints)
    parse_spec(raw)
    floats = ["batch", "seq", 64]
    assert raw["kwargs"] == {
        "a": {"value": False},
        "b": {"value": 1},
        "c": {"value": 1.0},
        "d": {"value": ""},
        "e": {"value": "fast"},
        "f": {"shape": floats, "dtype": "bool"},
        "g": {"shape": floats, "dtype": "int64"},
        "h": floats,
        "i": {"list": [floats]},
        "j": {"tuple": [floats, {"value": 1}]},
        "k": {"dict": {"depth": {"value": 1}, "x": floats}},
        "l": {"call": "inputs.py:make_l"},
        "m": {"dict": {}},
        "n": {"list": [{"value": 1}]},
        "o": floats,
        "p": {"value": None},
    }


class Names(nn.Module):
    def forward(self, images, token_ids, mask, src_key_padding_mask, edge_index, timestep, lengths, return_dict, z): ...  # type: ignore[no-untyped-def]


def test_names_decide_where_there_are_no_hints() -> None:
    raw = starter_spec(Names)
    spec = parse_spec(raw)
    ids = {"shape": ["batch", "seq"], "dtype": "int64", "high": 100}
    assert raw["kwargs"] == {
        "images": ["batch", 3, 64, 64],
        "token_ids": ids,
        "mask": {"shape": ["batch", "seq"], "dtype": "int64", "init": "ones"},
        "src_key_padding_mask": {"shape": ["batch", "seq"], "dtype": "bool", "init": "zeros"},
        "edge_index": {"shape": [2, "edges"], "dtype": "int64", "high": "nodes"},
        "timestep": {"shape": ["batch"], "dtype": "int64", "high": 100},
        "lengths": {"shape": ["batch"], "dtype": "int64", "init": "randint", "low": 1, "high": "seq"},
        "return_dict": {"value": False},
        "z": ["batch", "seq", 64],
    }
    assert set(spec.dims) == {"batch", "seq", "nodes", "edges"}


def test_words_that_may_be_vectors_are_ids_only_where_something_is_looked_up() -> None:
    class Mover(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            moved: Tensor = self.layer(source) + target
            return moved

    assert run_with_starter(Mover())["kwargs"] == {"source": ["batch", 3], "target": ["batch", 3]}


def test_positional_only_and_any_number_of_arguments() -> None:
    class Placed(nn.Module):
        def forward(self, x: Tensor, /, *, flag: bool) -> Tensor:
            return x

    class Any_(nn.Module):
        def forward(self, *inputs: Tensor, **more: Tensor) -> Tensor:
            return inputs[0]

    assert run_with_starter(Placed()) == {
        "args": [["batch", "seq", 64]],
        "kwargs": {"flag": {"value": False}},
        "dims": {"batch": [2], "seq": [16]},
    }
    assert run_with_starter(Any_())["args"] == [["batch", "seq", 64]]


def test_model_whose_parameters_all_have_defaults_gets_its_main_input() -> None:
    class Library(nn.Module):
        main_input_name = "input_values"

        def forward(self, mask=None, input_values=None, use_cache=True):  # type: ignore[no-untyped-def]
            return input_values + 1

    class Plain(nn.Module):
        def forward(self, scale=2.0, x=None):  # type: ignore[no-untyped-def]
            return x * scale

    assert list(run_with_starter(Library())["kwargs"]) == ["input_values"]
    assert list(run_with_starter(Plain())["kwargs"]) == ["x"]


def test_model_without_inputs() -> None:
    class Still(nn.Module):
        def forward(self) -> int:
            return 3

    assert run_with_starter(Still()) == {"kwargs": {}}


def test_hint_that_names_nothing_is_no_obstacle() -> None:
    class Odd(nn.Module):
        def forward(self, input_ids: "NotThere") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    assert starter_spec(Odd)["kwargs"]["input_ids"]["dtype"] == "int64"
