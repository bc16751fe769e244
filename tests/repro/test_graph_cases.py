"""Graph cases without a fresh process: the generated module computes what the captured one does."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from compilebisect.core.outcome import Fault, Kind, Stage
from compilebisect.runtime.graph_source import graph_case
from tests.repro.test_graph_cases_run import captured
from tests.repro.test_module_cases import made

FAULT = Fault(kind=Kind.ERROR, type="any", stage=Stage.INDUCTOR)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.register_buffer("scale", torch.rand(4))

    def forward(self, x: torch.Tensor, table: dict[str, Any]) -> Any:
        y = self.layer(x) * self.scale
        y += table["shift"]
        y = y[:, None, 1:, ...].squeeze(1)
        y[0] = -y[1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = y @ y.transpose(0, 1)
        zeros = torch.zeros(2, device=x.device)
        return {"y": y, "z": [z.float() ** 2, zeros]}, x.shape[0] // 2


class Cond(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, x, use_reentrant=False)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_mixed_graph_computes_the_same(dynamic: bool | None) -> None:
    module = Mixed().eval()
    x, table = torch.randn(6, 4), {"shift": torch.tensor(0.5)}
    gm, inputs = captured(module, x, table, dynamic=dynamic)
    case = graph_case(gm, inputs, FAULT, module=module)
    model, args, _, text = made(case)
    assert "layer_0_weight" in text and "with torch.autocast('cpu', dtype=torch.bfloat16):" in text
    assert "device=x.device" in text or "device=layer_0_weight.device" in text
    assert case.dynamic is dynamic
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    assert case.graph is not None
    for item, arg in zip(case.graph.inputs, args, strict=True):
        if isinstance(arg, torch.Tensor):
            value = own.get(item.origin, x if item.name == "x" else table["shift"])
            arg.data.copy_(value)
    with torch.no_grad():
        given, seen = list(inputs), model(*args)
        expected = gm(*given)
    for one, other in zip(seen, expected, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("module", [Cond(), Checkpointed()], ids=lambda module: type(module).__name__)
def test_bodies_of_higher_order_operators_become_modules(module: nn.Module) -> None:
    x = torch.randn(3, 3)
    gm, inputs = captured(module, x)
    model, args, _, text = made(graph_case(gm, inputs, FAULT, module=module))
    assert text.count("(torch.nn.Module):") >= 2
    with torch.no_grad():
        eager = model(*args)
        compiled = torch.compile(model, backend="eager")(*args)
    assert torch.equal(eager, compiled)


def test_a_graph_that_ends_the_process_is_described_without_being_run() -> None:
    runs: list[int] = []

    def fatal(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x.relu()

    graph = torch.fx.Graph()
    node = graph.call_function(torch.relu, (graph.placeholder("x"),))
    graph.output((graph.call_function(torch.neg, (node,)),))
    gm = torch.fx.GraphModule(nn.Module(), graph)
    for watched in gm.graph.nodes:
        watched.meta["example_value"] = torch.randn(2)
    crash = Fault(kind=Kind.CRASH, type="SIGSEGV", stage=Stage.RUNTIME)
    with mock.patch.object(torch.fx.Interpreter, "run", side_effect=fatal):
        case = graph_case(gm, [torch.randn(2)], crash)
    assert not runs
    assert case.graph is not None
    assert [item.output is not None for item in case.graph.operators] == [True, True]


class WritesToShared(nn.Module):
    def forward(self, history: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        history.add_(1.5)
        return window[0]


def test_inputs_of_a_graph_that_writes_share_memory_as_they_did() -> None:
    history = torch.arange(24.0).reshape(4, 6) / 10
    gm, inputs = captured(WritesToShared(), history, history[1:])
    _, (whole, part), _, _ = made(graph_case(gm, inputs, FAULT))
    assert part._base is whole and whole.shape == (4, 6)
