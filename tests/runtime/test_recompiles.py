"""What is compiled again, why, and whose it is: a tiny module for each cause, and healthy ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from compilebisect.core.call import CallContext
from compilebisect.core.messages import ProbeOrder
from compilebisect.core.module_tree import GoldenCall
from compilebisect.core.outcome import Kind
from compilebisect.runtime.probe import probe
from compilebisect.runtime.variants_probe import probe_variants
from tests.quality.in_process import Bench, introduced
from tests.runtime import changing_modules


class Base(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.__dict__.update(attributes)


class Counter(Base):
    def forward(self, x):
        y = self.linear(x) * self.step
        self.step += 1
        return y


class GrowingList(Base):
    def forward(self, x):
        self.past.append(self.linear(x))
        return sum(self.past)


class GrowingDict(Base):
    def forward(self, x):
        self.seen[str(len(self.seen))] = x
        return sum(self.seen.values())


class Annealed(Base):
    """Dynamo makes a float that changes dynamic, so that this is healthy."""

    def forward(self, x):
        self.rate *= 0.9
        return self.linear(x) * self.rate


class InBuffer(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.zeros(()))

    def forward(self, x):
        self.step += 1
        return self.linear(x) * self.step


class SwitchesMode(Base):
    def forward(self, x):
        self.mode = "odd" if self.mode == "even" else "even"
        return self.linear(x) if self.mode == "odd" else x


class TurnsDropoutOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        self.drop.train(not self.drop.training)
        return self.drop(x)


TOTAL = 0


class CountsGlobally(nn.Module):
    def forward(self, x):
        global TOTAL
        TOTAL += 1
        return x + TOTAL


class Parent(nn.Module):
    def __init__(self, *children, breaks=False):
        super().__init__()
        self.parts = nn.ModuleList(children)
        self.breaks = breaks

    def forward(self, x):
        for part in self.parts:
            if self.breaks:
                torch._dynamo.graph_break()
            x = part(x)
        return x


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class Add(nn.Module):
    def __init__(self, into, out):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(into, out))

    def forward(self, x):
        return x @ self.weight


class GradModes(nn.Module):
    """Calls a module under both grad modes, from a frame that Dynamo skips."""

    def __init__(self):
        super().__init__()
        self.part = Scale(2.0)

    def forward(self, x):
        for mode in (False, True):
            torch._dynamo.graph_break()
            with torch.set_grad_enabled(mode):
                x = self.part(x)
        return x


def order(path="", **fields):
    call = GoldenCall(index=0, signature="", count=1, context=CallContext())
    values = {"backend": "eager", "compares_values": False, "looks_for_recompiles": True, **fields}
    return ProbeOrder(path=path, folder="", calls=(call,), **values)


def observe(model, *args, **fields):
    seen, _ = probe(
        model.eval(),
        order(**fields),
        on_phase=lambda phase: None,
        root_inputs=lambda: (args or (torch.ones(2, 4),), {}),
    )
    return seen


def recompiles_in(seen):
    return [fault for fault in seen.faults if fault.kind is Kind.RECOMPILE]


def observe_variants(module, *variants, **fields):
    seen, _ = probe_variants(
        module.eval(),
        order(variants=len(variants), **fields),
        on_phase=lambda phase: None,
        root_inputs=lambda number: (variants[number], {}),
    )
    return seen


@pytest.mark.parametrize(
    ("module", "what", "code"),
    [
        (Counter(step=0), "value of self.step", "self.step += 1"),
        (GrowingList(past=[]), "length of self.past", "self.past.append(self.linear(x))"),
        pytest.param(
            *(GrowingDict(seen={}), "length of self.seen", "self.seen[str(len(self.seen))] = x"),
            marks=pytest.mark.skipif(torch.__version__ < "2.12", reason="torch 2.11 has no guard on it"),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_changes_in_each_call_is_a_fault_at_its_line_up_to_the_limit(module, what, code):
    (fault,) = observe(module).faults
    assert (fault.kind, fault.type, fault.location.code) == (Kind.RECOMPILE, what, code)
    assert fault.evidence["count"] >= fault.evidence["limit"] == 8 and fault.evidence["limit_hit"]
    first, second = fault.evidence["recompiles"][:2]
    assert (first["call"], second["call"]) == ("call 2", "call 3")
    assert int(second["after"]) == int(second["before"]) + 1 == int(first["after"]) + 1
    assert fault.hint


def test_a_global_that_changes_belongs_to_the_module_whose_code_reads_it():
    (fault,) = observe(Parent(CountsGlobally())).faults
    assert fault.type == "value of global TOTAL"
    assert fault.frames[-1].code in ("TOTAL += 1", "return x + TOTAL")  # torch 2.15 names the later line


def test_a_switch_between_two_states_is_a_fault_that_does_not_hit_the_limit():
    (fault,) = observe(SwitchesMode(mode="even")).faults
    assert (fault.type, fault.evidence["count"], fault.evidence["limit_hit"]) == ("value of self.mode", 1, False)


def test_what_a_module_of_torch_is_switched_to_belongs_to_whoever_switches_it():
    (fault,) = observe(Parent(TurnsDropoutOn())).faults
    assert (fault.type, fault.owners) == ("value of self.drop.training", ("parts.0",))
    assert fault.location.code == "self.drop.train(not self.drop.training)"


@pytest.mark.parametrize(
    "module",
    [Annealed(rate=1.0), InBuffer(), nn.Sequential(nn.BatchNorm1d(4), nn.Dropout()), Parent(Scale(2.0), Scale(3.0))],
    ids=lambda module: type(module).__name__,
)
def test_healthy_modules_show_no_fault(module):
    assert not observe(module).faults


def test_a_float_that_is_made_dynamic_is_counted():
    assert observe(Annealed(rate=1.0)).recompiles == 1


def test_a_parent_shows_the_same_fault_as_its_child_and_says_whose_it_is():
    (alone,) = observe(GrowingList(past=[])).faults
    (inside,) = observe(Parent(nn.ReLU(), GrowingList(past=[]))).faults
    assert (inside.type, inside.location) == (alone.type, alone.location)
    assert (alone.owners, inside.owners) == (("",), ("parts.1",))


def test_a_fenced_child_does_not_show():
    assert not recompiles_in(observe(Parent(nn.ReLU(), GrowingList(past=[])), fenced=("parts.1",)))


def test_the_module_is_left_as_it_was():
    model = GrowingList(past=[])
    observe(model)
    assert model.past == []


def test_nobody_looks_where_nobody_asks():
    seen = observe(GrowingList(past=[]), looks_for_recompiles=False)
    assert not seen.faults and not seen.recompiles


def test_sibling_layers_of_other_widths_are_no_fault():
    seen = observe(Parent(Add(4, 8), Add(8, 3), Add(3, 5), breaks=True))
    assert seen.recompiles == 2 and not recompiles_in(seen)


def test_more_differing_instances_than_the_limit_are_a_fault_of_their_class():
    model = Parent(*(Scale(number + 2) for number in range(10)), breaks=True)
    (fault,) = recompiles_in(observe(model))
    assert fault.type == "value of self.factor differs between instances"
    assert fault.owners[:9] == tuple(f"parts.{number}" for number in range(9))
    assert fault.evidence["limit_hit"]


def test_as_many_differing_instances_are_no_fault_where_they_are_compiled_in_one_piece():
    assert not observe(Parent(*(Scale(number + 2) for number in range(10)))).faults


def test_a_module_that_is_called_in_both_grad_modes_is_a_fault_where_its_frame_is_compiled_apart():
    (fault,) = recompiles_in(observe(GradModes()))
    assert (fault.type, fault.owners) == ("grad mode", ("part",))


class Plain(nn.Module):
    def forward(self, x, y=None):
        return x * 2 if y is None else x * y


class Loops(nn.Module):
    def forward(self, x):
        for number in range(x.shape[1]):
            x = x + number
        return x


class Repeats(nn.Module):
    def forward(self, x, times):
        for _ in range(times):
            x = x + 1
        return x


class Adds(nn.Module):
    def forward(self, xs):
        return sum(xs)


class Items(nn.Module):
    def forward(self, xs):
        return xs["b"] if "b" in xs else xs["a"] + 1


X = torch.ones(2, 4)


@pytest.mark.parametrize(
    ("module", "variants", "what"),
    [
        (Loops(), [(torch.ones(2, size),) for size in (4, 6, 9)], "size of dim 1 of x"),
        (Repeats(), [(X, times) for times in (3, 4, 5)], "value of times"),
        (Adds(), [([X] * 2,), ([X] * 3,)], "length of xs"),
        (Items(), [({"a": X},), ({"b": X},)], "keys of xs"),
        (Plain(), [(X.clone().requires_grad_(),), (X.clone(),)], "requires_grad of x"),
        (Plain(), [(X,), (X.double(),)], "dtype of x"),
        (Plain(), [(X,), (X[0],)], "number of dims of x"),
        (Plain(), [(X, 2.0), (X, torch.ones(4))], "value of y"),
        (Plain(), [(torch.ones(4, 4),), (torch.ones(4, 4).t(),)], "stride of x"),
    ],
)
def test_other_inputs_that_need_other_code_are_a_fault(module, variants, what):
    context = CallContext(grad_mode="grad")
    call = GoldenCall(index=0, signature="", count=1, context=context)
    seen, _ = probe_variants(
        module,
        ProbeOrder(path="", folder="", calls=(call,), backend="eager", variants=len(variants)),
        on_phase=lambda phase: None,
        root_inputs=lambda number: (variants[number], {}),
    )
    assert [fault.type for fault in seen.faults] == [what]


def test_a_loop_over_a_size_is_found_at_its_line():
    seen = observe_variants(Loops(), *((torch.ones(batch, size),) for batch, size in ((2, 4), (3, 6), (5, 9))))
    (fault,) = seen.faults
    assert (fault.type, fault.location.code) == ("size of dim 1 of x", "for number in range(x.shape[1]):")
    assert seen.recompiles == 2


def test_each_size_is_made_dynamic_once():
    sizes = ((2, 4), (3, 4), (3, 6), (5, 9), (7, 8))
    seen = observe_variants(Plain(), *((torch.ones(*size),) for size in sizes))
    assert not seen.faults and seen.recompiles == 2


def test_without_dynamic_shapes_each_size_is_a_fault():
    (fault,) = observe_variants(Plain(), (X,), (torch.ones(3, 4),), dynamic=False).faults
    assert fault.type == "size of dim 0 of x" and "dynamic=True" in fault.hint


def test_state_is_put_back_before_each_variant():
    assert not observe_variants(GrowingList(past=[]), (X,), (torch.ones(3, 4),), (torch.ones(5, 4),)).faults


def test_a_variant_that_fails_is_said():
    class Fails(nn.Module):
        def forward(self, x):
            return x.view(2, 4)

    seen = observe_variants(Fails(), (X,), (torch.ones(3, 4),))
    assert not seen.faults and seen.untested.startswith("variant 2 of the inputs fails")


def test_modules_that_are_compiled_again_for_their_state_do_not_hide_each_other(tmp_path):
    """Inside the model, of all their guards only the first one that fails is named."""
    target = f"{Path(changing_modules.__file__)}:Net"
    bench = Bench(target, {"x": [2, 4]}, backend="eager", folder=tmp_path, looks_for_recompiles=True)
    found = introduced(bench.walk())
    assert found == {path: [Kind.RECOMPILE] for path in ("counter", "history", "switch")}
