"""Building of inputs: values by seed and place, every dtype and layout, files and functions of the user, devices."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from compilebisect.core.dtype_names import DTYPES
from compilebisect.core.input_spec import parse_spec
from compilebisect.errors import CannotTestError, SpecError, UsageError
from compilebisect.runtime.inputs import build_inputs, check_signature, load_inputs_function
from compilebisect.runtime.move_values import move_to_device
from compilebisect.runtime.target import load_target

pytestmark = pytest.mark.usefixtures("clean_imports")


def build(
    raw: Any,
    *,
    variant: int = 0,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    spec_dir: Path | str = ".",
    seed: int = 0,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return build_inputs(parse_spec(raw), variant=variant, device=device, dtype=dtype, spec_dir=spec_dir, seed=seed)


def tensor(raw: Any, **options: Any) -> Tensor:
    value = build({"kwargs": {"x": raw}}, **options)[1]["x"]
    assert isinstance(value, Tensor)
    return value


# the signature


class Takes:
    def some(self, x: Tensor, y: Tensor, *, flag: bool = False) -> None: ...

    def anything(self, *args: Tensor, **kwargs: Tensor) -> None: ...

    def by_place(self, x: Tensor, /, y: Tensor) -> None: ...

    def nothing(self) -> None: ...


@pytest.mark.parametrize(
    ("forward", "raw"),
    [
        (Takes().some, [[1], [1]]),
        (Takes().some, {"args": [[1]], "kwargs": {"y": [1]}}),
        (Takes().some, {"x": [1], "y": [1], "flag": {"value": True}}),
        (Takes().anything, {"args": [[1], [1]], "kwargs": {"z": [1]}}),
        (Takes().by_place, {"args": [[1]], "kwargs": {"y": [1]}}),
        (Takes().nothing, {}),
        (print, [[1]]),
    ],
)
def test_spec_that_fits_the_signature_passes(forward: Callable[..., Any], raw: Any) -> None:
    check_signature(parse_spec(raw), forward)


@pytest.mark.parametrize(
    ("forward", "raw", "where", "what"),
    [
        (Takes().some, {"x": [1], "y": [1], "flg": {"value": 1}}, "flg", "no parameter 'flg'; did you mean 'flag'?"),
        (Takes().some, {"x": [1]}, "kwargs", "needs 'y'"),
        (Takes().some, [[1], [1], [1]], "[2]", "takes 2 positional arguments, not 3"),
        (Takes().some, {"args": [[1]], "kwargs": {"x": [1], "y": [1]}}, "kwargs.x", "as a positional argument too"),
        (Takes().by_place, {"x": [1], "y": [1]}, "x", "no parameter 'x'"),
        (Takes().nothing, {"x": [1]}, "x", "no parameter 'x'"),
    ],
)
def test_spec_that_does_not_fit_names_the_parameters(
    forward: Callable[..., Any], raw: Any, where: str, what: str
) -> None:
    with pytest.raises(SpecError) as caught:
        check_signature(parse_spec(raw), forward)
    assert caught.value.where == where
    assert what in caught.value.what
    assert caught.value.fix


# values


def test_values_depend_on_seed_and_place_alone() -> None:
    raw = {"args": [[3], [3]], "kwargs": {"x": {"shape": [8], "dtype": "int64", "high": 1000}}}
    torch.manual_seed(1)
    args, kwargs = build(raw, seed=5)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again, _ = build({"args": [[3], [3], [3]]}, seed=5)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(args[0], again[0])
    assert torch.equal(args[1], again[1])
    assert not torch.equal(args[0], args[1])
    assert torch.equal(kwargs["x"], build(raw, seed=5)[1]["x"])
    assert not torch.equal(kwargs["x"], build(raw, seed=6)[1]["x"])


def test_short_and_long_forms_give_the_same_values() -> None:
    assert torch.equal(build({"x": [4]})[1]["x"], build({"kwargs": {"x": [4]}})[1]["x"])
    assert torch.equal(build([[4]])[0][0], build({"args": [[4]]})[0][0])


def test_floats_without_a_dtype_take_the_models() -> None:
    raw = {"x": [4], "y": {"shape": [4], "dtype": "float32"}, "z": {"shape": [4], "init": "ones"}}
    kwargs = build(raw, dtype=torch.bfloat16)[1]
    assert [kwargs[name].dtype for name in "xyz"] == [torch.bfloat16, torch.float32, torch.bfloat16]
    assert build(raw)[1]["x"].dtype is torch.get_default_dtype()


def test_low_precision_values_are_the_rounded_float32_ones() -> None:
    full = tensor([64], dtype=torch.float32)
    assert torch.equal(tensor([64], dtype=torch.bfloat16), full.bfloat16())


def test_variants_change_sizes() -> None:
    raw = {"args": [["n", 3], {"dim": "n"}], "dims": {"n": [2, 5]}}
    assert [(build(raw, variant=k)[0][0].shape[0], build(raw, variant=k)[0][1]) for k in (0, 1)] == [(2, 2), (5, 5)]


INITS = ["randn", "rand", "randint", "zeros", "ones", "full", "arange", "eye"]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("init", INITS)
def test_every_init_makes_every_dtype_that_it_may(init: str, dtype: str) -> None:
    raw = {"shape": [3, 3], "dtype": dtype, "init": init}
    if init == "full":
        raw["value"] = 1
    family = DTYPES[dtype].family
    if (init in ("rand", "randn") and family in ("int", "bool")) or (init == "randint" and family == "complex"):
        with pytest.raises(SpecError):
            parse_spec({"x": raw})
        return
    made = tensor(raw)
    assert made.dtype is getattr(torch, dtype)
    assert made.shape == (3, 3)
    values = made.to(torch.complex128 if family == "complex" else torch.float64)
    if init in ("ones", "full"):
        assert torch.equal(values, torch.ones_like(values))
    elif init == "arange" and family != "bool" and dtype != "float8_e8m0fnu":
        assert torch.equal(values, torch.arange(9).reshape(3, 3).to(values.dtype))
    elif init == "eye" and dtype != "float8_e8m0fnu":  # which cannot hold 0
        assert torch.equal(values, torch.eye(3).to(values.dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool", "uint16", "float32"])
def test_random_integers_stay_within_their_bounds_and_meet_them(dtype: str) -> None:
    low, high = (0, 2) if dtype == "bool" else (3, 6)
    made = tensor({"shape": [200], "dtype": dtype, "init": "randint", "low": low, "high": high}).to(torch.int64)
    assert made.unique().tolist() == list(range(low, high))


def test_whole_range_of_int64_can_be_drawn() -> None:
    made = tensor({"shape": [100], "dtype": "int64", "low": -(2**63), "high": 2**63 - 1})
    assert made.min() < -(2**60)
    assert made.max() > 2**60


def test_bound_may_be_a_dim() -> None:
    raw = {"args": [{"shape": [100], "dtype": "int64", "high": "n"}], "dims": {"n": [3, 5]}}
    assert [int(build(raw, variant=k)[0][0].max()) for k in (0, 1)] == [2, 4]


@pytest.mark.parametrize(("value", "expected"), [("inf", float("inf")), ("-inf", float("-inf")), (-2.5, -2.5)])
def test_full_takes_special_floats(value: Any, expected: float) -> None:
    assert tensor({"shape": [1], "init": "full", "value": value}).item() == expected


def test_greatest_uint64() -> None:
    assert tensor({"shape": [1], "dtype": "uint64", "init": "full", "value": 2**64 - 1}).item() == 2**64 - 1


def test_scalar_and_empty_shapes() -> None:
    assert tensor([]).shape == ()
    assert tensor([0, 3]).shape == (0, 3)
    assert tensor({"shape": [], "init": "arange"}).item() == 0


# layout


def test_memory_format_and_requires_grad() -> None:
    made = tensor({"shape": [2, 3, 4, 5], "memory_format": "channels_last", "requires_grad": True})
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert made.requires_grad
    assert made.is_leaf
    assert torch.equal(made, tensor([2, 3, 4, 5]))


@settings(max_examples=60, deadline=None)
@given(st.permutations([0, 1, 2]), st.lists(st.integers(0, 3), min_size=3, max_size=3), st.integers(1, 3))
def test_stride_changes_the_layout_and_not_the_values(order: list[int], sizes: list[int], spread: int) -> None:
    stride, step = [0, 0, 0], spread
    for dim in order:
        stride[dim], step = step, step * max(sizes[dim], 1)
    raw = {"shape": sizes, "stride": stride, "dtype": "int64", "init": "arange"}
    made = tensor(raw)
    assert made.stride() == tuple(stride)
    assert torch.equal(made, torch.arange(made.numel()).reshape(sizes))


def test_stride_may_expand_and_overlap() -> None:
    expanded = tensor({"shape": [2, 3], "stride": [0, 1]})
    assert expanded.stride() == (0, 1)
    assert torch.equal(expanded[0], expanded[1])
    windows = tensor({"shape": [3, 2], "stride": [1, 1]})
    assert windows.stride() == (1, 1)
    assert torch.equal(windows[0, 1], windows[1, 0])
    assert windows.unique().numel() == 4


def test_tensor_that_does_not_fit_into_memory_cannot_be_tested() -> None:
    with pytest.raises(CannotTestError) as caught:
        tensor([2**25, 2**20])
    assert caught.value.where == "kwargs.x"
    assert "cannot make a tensor of shape" in caught.value.what


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what happens where there is no GPU")
def test_missing_device_cannot_be_tested() -> None:
    with pytest.raises(CannotTestError) as caught:
        tensor({"shape": [2], "device": "cuda"})
    assert caught.value.exit_status == 125


# containers and constants


def test_containers_and_constants() -> None:
    raw = {"x": {"dict": {"a": {"list": [[2], {"value": {"deep": [1]}}]}, "b": {"tuple": [[1]]}}}}
    value = build(raw)[1]["x"]
    assert isinstance(value["b"], tuple)
    assert value["a"][0].shape == (2,)
    assert value["a"][1] == {"deep": [1]}


def test_constants_are_made_anew_each_time() -> None:
    spec = parse_spec({"x": {"value": [1]}})
    options: dict[str, Any] = {"variant": 0, "device": "cpu", "dtype": None, "spec_dir": ".", "seed": 0}
    build_inputs(spec, **options)[1]["x"].append(2)
    assert build_inputs(spec, **options)[1]["x"] == [1]


# files


def test_tensor_files(tmp_path: Path) -> None:
    data = torch.arange(6).reshape(2, 3)
    torch.save({"x": data, "y": data + 1}, tmp_path / "a.pt")
    torch.save(data, tmp_path / "one.pt")
    safetensors.torch.save_file({"x": data}, tmp_path / "a.safetensors")
    numpy.save(tmp_path / "a.npy", numpy.asfortranarray(data.numpy()))
    leaves = [
        {"file": "a.pt", "key": "x"},
        {"file": "one.pt"},
        {"file": "a.safetensors", "key": "x"},
        {"file": "a.safetensors"},
        {"file": "a.npy"},
    ]
    for leaf in leaves:
        assert torch.equal(tensor(leaf, spec_dir=tmp_path), data), leaf


@pytest.mark.parametrize(
    ("leaf", "where", "what"),
    [
        ({"file": "a.pth"}, ".file", "there is no file"),
        ({"file": "a.pt", "key": "mask_"}, ".key", "there is no 'mask_' in 'a.pt'; did you mean 'mask'?"),
        ({"file": "one.pt", "key": "x"}, ".key", "has no keys"),
        ({"file": "code.pt"}, ".file", "cannot read 'code.pt'"),
        ({"file": "broken.pt"}, ".file", "cannot read 'broken.pt'"),
        ({"file": "two.safetensors"}, "", "holds 2 tensors"),
        ({"file": "two.safetensors", "key": "z"}, ".key", "there is no 'z'"),
        ({"file": "broken.safetensors"}, ".file", "cannot read 'broken.safetensors'"),
        ({"file": "broken.npy"}, ".file", "cannot read 'broken.npy'"),
        ({"file": "objects.npy"}, ".file", "cannot read 'objects.npy'"),
        ({"file": "words.npy"}, ".file", "cannot read 'words.npy'"),
    ],
)
def test_wrong_file_is_named(tmp_path: Path, leaf: dict[str, str], where: str, what: str) -> None:
    torch.save({"mask": torch.ones(1)}, tmp_path / "a.pt")
    torch.save(torch.ones(1), tmp_path / "one.pt")
    torch.save(Path("x"), tmp_path / "code.pt")
    safetensors.torch.save_file({"x": torch.ones(1), "y": torch.ones(1)}, tmp_path / "two.safetensors")
    numpy.save(tmp_path / "objects.npy", numpy.array([{}], dtype=object))
    numpy.save(tmp_path / "words.npy", numpy.array(["a"]))
    for name in ("broken.pt", "broken.safetensors", "broken.npy"):
        (tmp_path / name).write_bytes(b"not such a file")
    with pytest.raises(SpecError) as caught:
        tensor(leaf, spec_dir=tmp_path)
    assert caught.value.where == "kwargs.x" + where
    assert what in caught.value.what
    assert caught.value.fix


# functions of the user


MAKE = """
import random
import torch
def cache(n=2):
    return {"k": torch.randn(n), "v": random.random()}
def fails():
    return [][1]
number = 3
"""


def test_call_gives_what_the_function_returns(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(MAKE)
    raw = {"kwargs": {"x": {"call": "make.py:cache", "kwargs": {"n": {"dim": "n"}}}}, "dims": {"n": [3, 4]}}
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    first, again = (build(raw, variant=1, spec_dir=tmp_path)[1]["x"] for _ in range(2))
    assert first["k"].shape == (4,)
    assert torch.equal(first["k"], again["k"])
    assert first["v"] == again["v"]
    assert random.getstate() == python_state
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_called_file_that_is_the_target_is_the_same_module(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "from torch import nn\nclass Net(nn.Module): pass\nclass Cache: pass\ndef cache(): return Cache()\n"
    )
    model = load_target(f"{tmp_path}/model.py:Net", {}).model
    cache = build({"x": {"call": "model.py:cache"}}, spec_dir=tmp_path)[1]["x"]
    assert type(cache).__module__ == type(model).__module__


@pytest.mark.parametrize(
    ("call", "kwargs", "what"),
    [
        ("mak.py:cache", {}, "did you mean 'make.py'?"),
        ("make.py:cach", {}, "did you mean 'cache'?"),
        ("make.py:number", {}, "is no function"),
        ("make.py:cache", {"m": 1}, "cannot be called so"),
        ("broken.py:cache", {}, "cannot be imported"),
    ],
)
def test_wrong_call_is_named(tmp_path: Path, call: str, kwargs: dict[str, Any], what: str) -> None:
    (tmp_path / "make.py").write_text(MAKE)
    (tmp_path / "broken.py").write_text("import nothing_like_it\n")
    with pytest.raises(SpecError) as caught:
        build({"x": {"call": call, "kwargs": kwargs}}, spec_dir=tmp_path)
    assert caught.value.where == "x.call"
    assert what in caught.value.what


def test_call_that_fails_shows_the_users_traceback(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(MAKE)
    with pytest.raises(CannotTestError) as caught:
        build({"x": {"call": "make.py:fails"}}, spec_dir=tmp_path)
    assert "IndexError" in caught.value.what
    assert "return [][1]" in caught.value.detail
    assert "inputs.py" not in caught.value.detail


def test_inputs_function_gives_one_pair_or_several(tmp_path: Path) -> None:
    (tmp_path / "give.py").write_text(
        "import torch\ndef one():\n    return (torch.randn(2),), {'y': 3}\n"
        "def two():\n    return [((), {'x': torch.ones(n)}) for n in (1, 2)]\n"
    )
    [(args, kwargs)] = load_inputs_function(f"{tmp_path}/give.py:one", device="cpu")
    assert kwargs == {"y": 3}
    [(again, _)] = load_inputs_function(f"{tmp_path}/give.py:one", device="cpu")
    assert torch.equal(args[0], again[0])
    assert [len(kwargs["x"]) for _, kwargs in load_inputs_function(f"{tmp_path}/give.py:two", device="cpu")] == [1, 2]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("tensor", "returns Tensor where a pair"),
        ("empty", "returns an empty list"),
        ("wrong", "returns tuple where a pair"),
        ("keys", "keyword 3, which is no string"),
        ("nothing", "there is no 'nothing'"),
        ("needs", "cannot be called so"),
    ],
)
def test_inputs_function_that_gives_something_else_is_named(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "give.py").write_text(
        "import torch\ndef tensor(): return torch.ones(1)\ndef empty(): return []\n"
        "def wrong(): return torch.ones(1), {}\ndef keys(): return (), {3: 4}\ndef needs(x): return (), {}\n"
    )
    with pytest.raises(UsageError) as caught:
        load_inputs_function(f"{tmp_path}/give.py:{name}", device="cpu")
    assert what in caught.value.what
    assert caught.value.where == "--inputs"


def test_inputs_option_without_a_function() -> None:
    with pytest.raises(UsageError):
        load_inputs_function("give.py", device="cpu")


# devices: `meta` stands for a second device


class Pair(NamedTuple):
    left: Tensor
    right: int


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    name: str


class Cache:
    def __init__(self) -> None:
        self.layers = [{"k": torch.ones(2)}]
        self.itself = self


def test_nested_values_are_moved_with_their_types() -> None:
    shared = torch.ones(3)
    value = {
        "pair": Pair(torch.ones(2), 3),
        "frozen": Frozen(torch.ones(1), "a"),
        "cache": Cache(),
        "ordered": OrderedDict(x=[shared, (shared,)]),
        "module": nn.Linear(2, 2),
        "grad": torch.ones(2, requires_grad=True),
        "packed": nn.utils.rnn.pack_sequence([torch.ones(2, 1)]),
    }
    moved = move_to_device(value, "meta")
    assert moved["pair"].left.device.type == "meta"
    assert moved["pair"].right == 3
    assert moved["frozen"].x.device.type == "meta"
    assert moved["cache"].layers[0]["k"].device.type == "meta"
    assert moved["ordered"]["x"][0] is moved["ordered"]["x"][1][0]
    assert isinstance(moved["ordered"], OrderedDict)
    assert moved["module"].weight.device.type == "meta"
    assert moved["grad"].requires_grad
    assert moved["packed"].data.device.type == "meta"
    assert moved["packed"].batch_sizes.device.type == "cpu"


def test_values_that_are_there_already_are_not_touched() -> None:
    pair, cache = Pair(torch.ones(2), 3), Cache()
    value = (pair, cache, [torch.ones(1)])
    assert move_to_device(value, "cpu") is value


def test_object_whose_to_means_something_else_is_walked() -> None:
    class Quantity:
        def __init__(self) -> None:
            self.amount = torch.ones(1)

        def to(self, unit: str) -> None:
            raise TypeError(unit)

    assert move_to_device([Quantity()], "meta")[0].amount.device.type == "meta"


def test_spec_tensors_go_to_the_device_but_for_those_that_name_their_own() -> None:
    kwargs = build({"x": [2], "y": {"shape": [2], "device": "cpu"}}, device="meta")[1]
    assert (kwargs["x"].device.type, kwargs["y"].device.type) == ("meta", "cpu")
