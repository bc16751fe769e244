"""Later calls of one compiled module, and further variants of its inputs: what they give is held against eager mode."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

from compilebisect.core.call import CallContext
from compilebisect.core.messages import ProbeOrder
from compilebisect.core.module_tree import GoldenCall
from compilebisect.core.outcome import Kind
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.probe import probe
from compilebisect.runtime.row_of_calls import Row
from compilebisect.runtime.variants_probe import probe_variants

# Dynamo looks at the `.grad` of inputs, which are no leaves in training.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Counts(nn.Module):
    """Goes wrong in compiled code where `at` says so, by a counter that Dynamo takes for a constant."""

    def __init__(self, at: int = 0, raises: bool = False):
        super().__init__()
        self.at, self.raises = at, raises
        self.step = 0

    def forward(self, x):
        self.step += 1
        y = x * self.step
        if self.step == self.at and torch.compiler.is_compiling():
            if self.raises:
                return y.view(-1, 5)
            y = y + 1
        return y


class KeepsIt(nn.Module):
    """Returns what it keeps, and changes that in the next call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3, 4))
        self.past = torch.zeros(3, 4)

    def forward(self, x):
        self.total += x
        self.past.mul_(0.5).add_(x)
        return self.total, self.past


class Fills(nn.Module):
    """Finds no more memory in the third compiled call, which comes before the third one in eager mode."""

    filled: ClassVar[list[int]] = []

    def __init__(self):
        super().__init__()
        self.calls = 0

    @torch.compiler.disable
    def take(self):
        self.calls += 1
        if self.calls == 3 and not self.filled:
            self.filled.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory")

    def forward(self, x):
        self.take()
        return x.sin()


class FailsLater(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = [1.0, 2.0]

    def forward(self, x):
        return x * self.left.pop()


class LongIsWrong(nn.Module):
    def __init__(self, raises: bool = False):
        super().__init__()
        self.raises = raises

    def forward(self, x):
        if x.shape[1] > 6 and torch.compiler.is_compiling():
            if self.raises:
                return x.view(-1, 5)
            x = x + 1
        return x.sin()


def order(**fields):
    context = CallContext("grad", (), True) if fields.get("train") else CallContext("no_grad")
    call = GoldenCall(index=0, signature="", count=1, context=context)
    values = {"backend": "eager", "compares_rows": True, **fields}
    return ProbeOrder(path="", folder=".", calls=(call,), **values)


def observe(model, **fields):
    inputs = X.clone().requires_grad_() if fields.get("train") else X
    model.train(bool(fields.get("train")))
    seen, _ = probe(model, order(**fields), on_phase=lambda phase: None, root_inputs=lambda: ((inputs,), {}))
    return seen


def observe_variants(model, *sizes, **fields):
    variants = [(torch.linspace(-1, 1, 3 * size).reshape(3, size),) for size in sizes]
    seen, _ = probe_variants(
        model,
        order(variants=len(sizes), **fields),
        on_phase=lambda phase: None,
        root_inputs=lambda number: (variants[number], {}),
    )
    return seen


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("at", [2, 4])
def test_a_wrong_value_in_a_later_call_is_a_divergence_with_the_number_of_the_call(at, train):
    (fault,) = observe(Counts(at=at), train=train).faults
    assert fault.kind is Kind.DIVERGENCE and fault.is_in_row
    assert fault.evidence["call_in_row"] == at
    assert fault.message.startswith(f"in call {at} in a row: output: ")


def test_what_is_wrong_in_the_first_call_is_told_once_and_without_a_row():
    (fault,) = observe(Counts(at=1)).faults
    assert fault.kind is Kind.DIVERGENCE and not fault.is_in_row


@pytest.mark.parametrize("looks_for_recompiles", [False, True])
def test_what_compiled_code_raises_in_a_later_call_is_an_error(looks_for_recompiles):
    seen = observe(Counts(at=3, raises=True), looks_for_recompiles=looks_for_recompiles)
    (fault,) = seen.faults
    assert (fault.kind, fault.evidence["call_in_row"], seen.completed) == (Kind.ERROR, 3, False)


@pytest.mark.parametrize(
    "module",
    [Counts(), KeepsIt(), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.Dropout()), nn.Identity()],
    ids=lambda module: type(module).__name__,
)
@pytest.mark.parametrize("train", [False, True])
def test_stateful_and_healthy_modules_show_nothing(module, train):
    seen = observe(module, train=train)
    assert not seen.faults and (seen.has_right_rows or train)


def test_a_module_that_eager_mode_cannot_call_so_often_is_noted():
    seen = observe(FailsLater())
    assert not seen.faults and not seen.has_right_rows
    assert "fails when it is called again in the state that it left: IndexError" in seen.notes[0]


def test_memory_that_runs_out_in_a_later_call_blames_nobody():
    seen = observe(Fills())
    assert Fills.filled
    assert not seen.has_right_rows and "OutOfMemoryError" in seen.notes[-1]
    assert {fault.kind for fault in seen.faults} == {Kind.GRAPH_BREAK}


def test_equal_results_of_later_calls_take_memory_once():
    module = nn.Linear(4, 4).eval()
    oracle = Oracle(module, (X,), {}, CallContext("no_grad"))
    first = oracle.run(module)
    row = Row(oracle, module, first)
    assert row.call() and row.call()
    assert all(record is first for record in row.records)


def test_the_module_is_left_as_it_was():
    module = Counts(at=3)
    observe(module)
    assert module.step == 0


def test_a_healthy_module_without_state_is_not_run_again_in_eager_mode():
    runs = []

    class Told(nn.Module):
        def forward(self, x):
            if not torch.compiler.is_compiling():
                runs.append(1)
            return x.sin()

    assert not observe(Told()).faults
    assert len(runs) == 1


def test_a_wrong_value_with_a_further_variant_is_a_divergence_with_its_number():
    (fault,) = (fault for fault in observe_variants(LongIsWrong(), 4, 5, 8).faults if fault.kind is not Kind.RECOMPILE)
    assert (fault.kind, fault.evidence["variant"], fault.evidence["in_variants"]) == (Kind.DIVERGENCE, 3, True)
    assert fault.message.startswith("with variant 3 of the inputs: ")


def test_an_error_with_a_further_variant_is_an_error():
    found = observe_variants(LongIsWrong(raises=True), 4, 8).faults
    assert [fault.evidence["variant"] for fault in found if fault.kind is Kind.ERROR] == [2]


def test_variants_that_are_right_show_nothing():
    assert not observe_variants(nn.Sequential(nn.Dropout(), nn.Softmax(-1)), 4, 5, 8).faults
    assert not observe_variants(LongIsWrong(), 4, 8, compares_values=False).faults


def test_results_that_are_the_same_again_are_not_held_again():
    module = nn.Linear(4, 4).eval()
    oracle = Oracle(module, (X,), {}, CallContext("no_grad", (), False))
    first = oracle.run(module)
    row = Row(oracle, module, first)
    assert all(row.call() for _ in range(4))
    assert len(row.records) == 4
    assert all(record is first for record in row.records)
