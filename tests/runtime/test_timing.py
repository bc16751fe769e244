"""Timings: what is run, how often, and that nothing is left behind. No test here depends on how long anything takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compilebisect.core.call import CallContext
from compilebisect.core.messages import ProbeOrder, TimingOrder
from compilebisect.core.module_tree import GoldenCall
from compilebisect.core.timing import UnitTiming
from compilebisect.runtime import timing
from compilebisect.runtime.stopwatch import Stopwatch


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x + self.calls


class CountsInPython(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = []

    def forward(self, x):
        self.rows.append(None)
        return x * len(self.rows)


def order(*, compiles: bool = True, train: bool = False, fenced: tuple[str, ...] = ()) -> TimingOrder:
    context = CallContext("grad" if train else "no_grad", (), train)
    call = GoldenCall(index=0, signature="", count=3, context=context)
    probe = ProbeOrder(path="", folder="", calls=(call,), backend="eager", train=train, fenced=fenced)
    return TimingOrder(probe=probe, compiles=compiles)


def time_it(model: nn.Module, given: TimingOrder, device: str = "cpu") -> UnitTiming:
    x = torch.ones(2, 4, device=device)
    seen, is_usable = timing.time_module(
        model, given, on_phase=lambda phase: None, root_inputs=lambda: ((x.clone(),), {})
    )
    assert is_usable
    return seen


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_BUDGET_S", 0.05)


def check(seen: UnitTiming, graphs: int = 1) -> None:
    (call,) = seen.calls
    assert not seen.note
    assert len(call.eager) == len(call.compiled) >= 7 and call.count == 3
    assert all(second > 0 for second in (*call.eager, *call.compiled))
    assert seen.graphs == graphs
    assert seen.is_of_compiled and seen.eager_s > 0 and seen.compiled_s > 0


def test_both_are_run_equally_often_and_graphs_are_counted():
    check(time_it(Mixed().eval(), order()), graphs=2)


def test_forward_and_backward_are_timed_in_training():
    model = nn.Linear(4, 4)
    check(time_it(model, order(train=True)))
    assert model.weight.grad is None


def test_eager_mode_alone_compiles_nothing():
    seen = time_it(Mixed().eval(), order(compiles=False))
    assert seen.calls[0].compiled == () and not seen.is_of_compiled and seen.graphs == 0


@pytest.mark.parametrize("make", [Counts, CountsInPython])
def test_a_module_that_changes_itself_starts_from_the_same_state_each_time(make: type[nn.Module]):
    model = make().eval()
    check(time_it(model, order()))
    assert getattr(model, "calls", 0) == 0 and getattr(model, "rows", []) == []


def test_modules_that_are_kept_out_split_the_graph():
    check(time_it(Mixed().eval(), order(fenced=("first",))), graphs=1)


def test_what_fails_is_a_note():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    seen = time_it(Fails(), order())
    assert "no" in seen.note and not seen.calls and not seen.is_of_compiled


def test_a_stopwatch_adds_up_until_it_is_read():
    watch = Stopwatch(torch.device("cpu"))
    with watch:
        sum(range(1000))
    first = watch._seconds
    with watch:
        sum(range(1000))
    assert watch.read() > first > 0
    assert watch.read() == 0


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # torch has some about TF32
@pytest.mark.parametrize("train", [False, True])
def test_times_on_a_gpu_are_those_of_the_device(train: bool):
    class Heavy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(4))

        def forward(self, x):
            torch.cuda._sleep(20_000_000)  # cycles: over 5 ms on any GPU, of which the program itself waits for nothing
            return x @ self.weight

    seen = time_it(Heavy().cuda().train(train), order(train=train), "cuda")
    assert not seen.note
    (call,) = seen.calls
    assert min(call.eager) > 5e-3


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # torch has some about TF32
def test_compiled_code_is_timed_on_a_gpu_with_cuda_graphs():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda().eval()
    context = CallContext("no_grad", (), False)
    call = GoldenCall(index=0, signature="", count=1, context=context)
    probe = ProbeOrder(path="", folder="", calls=(call,), mode="reduce-overhead")
    seen = time_it(model, TimingOrder(probe=probe), "cuda")
    assert not seen.note
    assert seen.is_of_compiled and seen.graphs == 1 and seen.entering_s > 0
