"""Each strategy on a tiny model: what is compiled, what fails, and that what a user is told to write does the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from compilebisect.core.buckets import buckets_of, named_dims, size_numbers
from compilebisect.core.input_spec import parse_spec
from compilebisect.core.messages import StrategyOrder
from compilebisect.core.strategies import Strategy, StrategyResult
from compilebisect.core.strategy_lines import code_lines
from compilebisect.runtime import strategy_probe, torch_internals
from compilebisect.runtime.padding import Padding
from compilebisect.runtime.session import Session
from compilebisect.settings import Settings

MODEL = """
import torch
from torch import nn


class Plain(nn.Module):
    def forward(self, x, mask):
        return (x * 2 + mask).sum(1)


class Fixed(nn.Module):
    def forward(self, x, mask):
        return x.sum(1) * torch.tensor([0.5] * x.shape[1]).sum()


class Chooses(nn.Module):
    def forward(self, x, mask):
        return torch.nonzero(x[:, 0]).sum() if mask.sum() > 0 else x.sum()
"""
SPEC = {
    "args": [[2, "seq"]],
    "kwargs": {"mask": {"shape": [2, "seq"], "init": "ones"}},
    "dims": {"seq": {"values": [8, 12, 16], "dynamic": True, "min": 2, "max": 64}},
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, clean_imports: None) -> None:
    monkeypatch.setattr(strategy_probe, "_BUDGET_S", 0.05)
    monkeypatch.setattr(strategy_probe, "_warm_up_compiler", lambda device: None)
    monkeypatch.setattr(torch_internals, "disable_caches", lambda: None)


def measure(folder: Path, name: str, strategy: Strategy, spec: Any = SPEC) -> StrategyResult:
    (folder / "model.py").write_text(MODEL)
    raw = json.loads(json.dumps(spec))
    session = Session(Settings(target=f"{folder / 'model.py'}:{name}", spec=raw, device="cpu", backend="eager"))
    buckets, _ = buckets_of(parse_spec(raw))
    order = StrategyOrder(strategy=strategy, variants=3, buckets=buckets if strategy is Strategy.BUCKETS else {})
    return strategy_probe.measure_strategy(session, order, lambda phase: None)


@pytest.mark.parametrize(
    ("strategy", "compiles"),
    [
        (Strategy.STATIC, 3),
        (Strategy.AUTOMATIC, 2),
        (Strategy.MARK_DYNAMIC, 1),
        (Strategy.DYNAMIC, 1),
        (Strategy.BUCKETS, 2),
    ],
)
def test_how_often_each_strategy_compiles(tmp_path: Path, strategy: Strategy, compiles: int):
    seen = measure(tmp_path, "Plain", strategy)
    assert not seen.error and seen.compiles == compiles
    assert seen.graphs >= compiles and seen.guards > 0
    assert len(seen.runs) == 3 and all(run.first_s > 0 and run.run_s > 0 for run in seen.runs)
    assert seen.total_s == pytest.approx(sum(run.first_s for run in seen.runs))
    assert 0 < seen.compile_s <= seen.total_s and not seen.notes
    padded = [run.padded_to for run in seen.runs]
    assert padded == ([{}, {"seq": 16}, {}] if strategy is Strategy.BUCKETS else [{}, {}, {}])
    assert bool(seen.not_candidate) == (strategy is Strategy.STATIC)


def test_a_size_that_code_makes_constant_cannot_be_marked(tmp_path: Path):
    seen = measure(tmp_path, "Fixed", Strategy.MARK_DYNAMIC)
    assert seen.error_type == "ConstraintViolationError" and seen.error.startswith("variant 1: ")
    assert not seen.runs and not seen.cuda_graphs


def test_sizes_without_names_are_marked_where_they_differ(tmp_path: Path):
    plain = {**SPEC, "dims": {"seq": [8, 12, 16]}}
    seen = measure(tmp_path, "Plain", Strategy.MARK_DYNAMIC, plain)
    assert seen.compiles == 1
    assert seen.lines[-2:] == ("torch._dynamo.mark_dynamic(x, 1)", "torch._dynamo.mark_dynamic(mask, 1)")


def test_a_dim_that_is_not_to_be_dynamic_is_not_marked(tmp_path: Path):
    fixed = {**SPEC, "dims": {"seq": {"values": [8, 12, 16], "dynamic": False}}}
    seen = measure(tmp_path, "Plain", Strategy.MARK_DYNAMIC, fixed)
    assert seen.compiles == 2 and "mark_dynamic" not in "".join(seen.lines)


def test_the_lines_for_padding_do_what_was_measured():
    spec = parse_spec({**SPEC, "dims": {"seq": [8, 12, 16]}, "args": [{"shape": ["seq", 2, "seq"]}]})
    buckets, tensors = {"seq": (12, 16)}, named_dims(spec)
    x, mask = torch.randn(8, 2, 8), torch.ones(2, 8, dtype=torch.bool)
    lines = code_lines(Strategy.BUCKETS, [], buckets, tensors, parameters={"args[0]": "x", "kwargs['mask']": "mask"})
    names: dict[str, Any] = {"torch": torch, "x": x, "mask": mask, "model": None}
    exec("\n".join(lines[1:]), names)
    args, kwargs = Padding({"seq": 12}, tensors, size_numbers(spec)).apply((x,), {"mask": mask})
    assert torch.equal(names["x"], args[0]) and args[0].shape == (12, 2, 12)
    assert torch.equal(names["mask"], kwargs["mask"]) and kwargs["mask"].dtype is torch.bool
    assert torch.equal(args[0][:8, :, :8], x) and not args[0][8:].any()


def test_numbers_that_are_a_size_are_padded_and_containers_are_kept():
    padding = Padding({"n": 5}, {"kwargs['d']['x'][0]": {0: "n"}}, {"args[0]": "n"})
    args, kwargs = padding.apply((3, 3), {"d": {"x": [torch.ones(3)], "y": 1}})
    assert args == (5, 3) and kwargs["d"]["y"] == 1
    assert kwargs["d"]["x"][0].tolist() == [1, 1, 1, 0, 0]


def test_what_an_error_is_called():
    class GuardOnDataDependentSymNode(Exception):
        pass

    outer = RuntimeError("outer")
    outer.__cause__ = GuardOnDataDependentSymNode("u0")
    assert strategy_probe._error_type(outer) == "data-dependent"
    assert strategy_probe._error_type(ValueError("no")) == "ValueError"


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # torch has one about empty CUDA graphs
def test_strategies_on_a_gpu(tmp_path: Path):
    (tmp_path / "model.py").write_text(MODEL)
    settings = Settings(target=f"{tmp_path / 'model.py'}:Plain", spec=SPEC, device="cuda", mode="reduce-overhead")
    for strategy in (Strategy.STATIC, Strategy.MARK_DYNAMIC):
        order = StrategyOrder(strategy=strategy, variants=3)
        seen = strategy_probe.measure_strategy(Session(settings), order, lambda phase: None)
        assert not seen.error and len(seen.runs) == 3 and not seen.cuda_graphs.startswith("no")
