"""Source cases without a fresh process: what the script's `make` builds equals the module it was made from."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from compilebisect.core.outcome import Fault, Kind
from compilebisect.core.repro_case import ReproCase
from compilebisect.repro.script import script_text
from compilebisect.runtime.module_source import CannotMakeCase, module_case
from compilebisect.runtime.target_source import target_case

FAULT = Fault(kind=Kind.GRAPH_BREAK, type="any")


def made(case: ReproCase) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], str]:
    """Run the script's definitions and its `make`."""
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(case), type=ReproCase)
    assert again == case
    text = script_text(case, script_dir=Path())
    return (*loaded(text, "script.py").make("cpu"), text)


def loaded(text: str, file: str) -> ModuleType:
    """Run a script's definitions, as `python -i` would, without its main part."""
    module = sys.modules["script"] = ModuleType("script")
    module.__file__ = file
    hook = sys.excepthook
    try:
        exec(compile(text, file, "exec"), vars(module))
    finally:
        sys.excepthook = hook
    return module


class Holder(nn.Module):
    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        for index, child in enumerate(children):
            self.add_module(str(index), child)


TORCH_MODULES = [
    (nn.Linear(3, 4, bias=False).bfloat16(), "torch.nn.Linear(3, 4, bias=False)"),
    (nn.Conv2d(3, 4, 3, padding=1, groups=1), "torch.nn.Conv2d(3, 4, (3, 3), padding=(1, 1))"),
    (nn.LSTM(3, 4, num_layers=2), "torch.nn.LSTM(3, 4, num_layers=2)"),
    (nn.MultiheadAttention(8, 2), "torch.nn.MultiheadAttention"),
    (nn.BatchNorm2d(3, momentum=None), "torch.nn.BatchNorm2d(3, momentum=None)"),
    (nn.Dropout(0.25), "torch.nn.Dropout(p=0.25)"),
    (nn.Embedding(5, 3, padding_idx=0), "torch.nn.Embedding(5, 3, padding_idx=0)"),
    (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), "TransformerEncoderLayer"),
    (nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())), "torch.nn.Sequential(torch.nn.Linear(2, 2)"),
    # the copies share the tuple that each hands to its norms
    (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        "layers[1].norm2 = torch.nn.LayerNorm((8,))",
    ),
    (nn.ModuleDict({"a": nn.Identity(), "b c": nn.Linear(1, 1)}), "torch.nn.ModuleDict"),
]


@pytest.mark.parametrize(("module", "text"), TORCH_MODULES, ids=lambda item: type(item).__name__)
def test_torch_modules_are_rebuilt_with_the_same_state(module: nn.Module, text: str) -> None:
    model, _, _, script = made(module_case(module.eval(), (), {}, FAULT))
    assert text in script
    assert type(model) is type(module) and model.extra_repr() == module.extra_repr()
    ours, theirs = module.state_dict(), model.state_dict()
    assert [(k, v.shape, v.dtype) for k, v in ours.items()] == [(k, v.shape, v.dtype) for k, v in theirs.items()]
    assert not any(part.training for part in model.modules())


def test_saved_state_gives_the_same_results(faulty: ModuleType, tmp_path: Path) -> None:
    module = faulty.PrintBreak(faulty.BlockConfig(hidden=4, side=faulty.Side.RIGHT), None).eval()
    x = torch.randn(4, 2).t()
    file = tmp_path / "script.safetensors"
    case = module_case(module, (x,), {"mask": torch.tensor([True, False])}, FAULT, tensor_file=file)
    text = script_text(case, script_dir=tmp_path)
    model, args, kwargs = loaded(text, str(tmp_path / "script.py")).make("cpu")
    assert torch.equal(args[0], x) and args[0].stride() == x.stride()
    assert kwargs["mask"].tolist() == [True, False]
    assert model.layers[0].weight is model.layers[1].weight
    assert torch.equal(model(*args, **kwargs), module(x))


def test_inputs_that_share_memory_do_so_in_the_script() -> None:
    memory = torch.randn(3, 6)
    _, (left, right, whole), _, _ = made(module_case(nn.Identity(), (memory[:, :2], memory[:, 2:], memory), {}, FAULT))
    whole.fill_(7)
    assert left.unique().tolist() == right.unique().tolist() == [7]
    assert left.stride() == (6, 1) and right.storage_offset() == 2


def test_an_input_that_is_a_view_of_another_one_is_that_in_the_script() -> None:
    whole = torch.randn(4, 6)
    _, (part, base), _, _ = made(module_case(nn.Identity(), (whole[1:], whole), {}, FAULT))
    assert part._base is base and base.shape == (4, 6) and part.storage_offset() == 6


@pytest.mark.parametrize(
    "tensor", [torch.randn(3, dtype=torch.complex64).conj(), torch.randn(3, dtype=torch.complex64).conj().imag]
)
def test_bits_for_conjugates_and_signs_are_set_in_the_script(tensor: torch.Tensor) -> None:
    _, (again,), _, _ = made(module_case(nn.Identity(), (tensor,), {}, FAULT))
    assert (again.is_conj(), again.is_neg(), again.dtype) == (tensor.is_conj(), tensor.is_neg(), tensor.dtype)


def test_lazy_zeros_are_lazy_in_the_script() -> None:
    _, (again,), _, _ = made(module_case(nn.Identity(), (torch._efficientzerotensor((2, 3)),), {}, FAULT))
    assert again._is_zerotensor() and again.shape == (2, 3)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 3).t(),
        torch.randn(4, 6)[:, ::2],
        torch.randn(3, 1).expand(3, 4),
        torch.tensor([5, 2, 9]),
        torch.arange(7),
        torch.full((2, 2), -1),
        torch.tensor(True),
        torch.randn(2, 2, dtype=torch.complex64),
        torch.rand(20) + 3,
        torch.randn(64, dtype=torch.bfloat16) * 0.02,
        torch.randint(0, 50, (8, 8), dtype=torch.int32),
        torch.empty(0, 3),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)}-{tensor.stride()}-{tensor.dtype}",
)
def test_tensors_keep_metadata_and_likeness(tensor: torch.Tensor) -> None:
    _, (again,), _, text = made(module_case(nn.Identity(), (tensor,), {}, FAULT))
    assert (again.shape, again.stride(), again.dtype) == (tensor.shape, tensor.stride(), tensor.dtype), text
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        assert again.min() >= tensor.min() and again.max() <= tensor.max()
        if tensor.numel() <= 16:
            assert torch.equal(again, tensor)
    elif tensor.numel() and not tensor.dtype.is_complex and tensor.min() >= 0:
        assert again.min() >= 0


def test_arguments_keep_containers_dtypes_and_shared_objects() -> None:
    pair = [1.5, float("nan")]
    args = ({"a": pair, 2: (pair, None)}, slice(1, None), torch.float16, {"x", "y"}, range(3), torch.Size([1, 2]))
    _, again, _, _ = made(module_case(nn.Identity(), args, {}, FAULT))
    assert again[0]["a"][0] == 1.5 and again[0]["a"][1] != again[0]["a"][1]
    assert again[0]["a"] is again[0][2][0]
    assert again[1:] == args[1:]


def test_keys_that_equal_nothing_but_themselves_stay_whose_they_are(faulty: ModuleType) -> None:
    module = faulty.Branch()
    module.season, other = faulty.Season(), faulty.Season()
    module.prices = {module.season: [1.0], other: [2.0]}
    module.best = other
    module.seasons = {other}
    module.dear = module.prices[other]
    model, (table,), _, _ = made(module_case(module, ({other: 5, faulty.Season(): 6},), {}, FAULT))
    assert model.prices[model.season] == [1.0] and model.prices[model.best] is model.dear
    assert model.seasons == {model.best} and table[model.best] == 5 and len(table) == 2


def test_local_classes_have_no_case() -> None:
    class Local(nn.Module):
        pass

    with pytest.raises(CannotMakeCase, match="Local has no importable name"):
        module_case(Local(), (), {}, FAULT)


def test_what_cannot_be_rebuilt_is_left_out_and_said(faulty: ModuleType) -> None:
    module = faulty.Branch()
    module.callback = lambda: None
    case = module_case(module, (torch.ones(1),), {}, FAULT)
    assert any("model.callback was left out" in note for note in case.notes)
    assert "0x" not in "".join(case.notes)


def test_target_builds_the_model_where_nothing_else_does(faulty: ModuleType) -> None:
    path = str(Path(faulty.__file__ or ""))
    module = faulty.Relu().eval()
    case = target_case(
        module.first, (torch.randn(2, 4),), {}, FAULT, target=f"{path}:Relu", init={}, module_path="first"
    )
    model, args, _, text = made(case)
    assert case.imports_user_code and "from faulty import Relu" in text
    assert isinstance(model, nn.Linear) and model(*args).shape == (2, 8)
