from __future__ import annotations

import logging
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch._dynamo.exc import TensorifyScalarRestartAnalysis

from compilebisect.core.call import CallContext
from compilebisect.core.fingerprint import fault_key
from compilebisect.core.messages import ProbeOrder
from compilebisect.core.module_tree import GoldenCall
from compilebisect.core.outcome import Kind, Stage
from compilebisect.runtime import torch_internals
from compilebisect.runtime.golden import CallLog, Capture, watch_calls
from compilebisect.runtime.probe import compile_views_anew, probe
from compilebisect.runtime.torch_internals import watch_compile

logger = logging.getLogger(__name__)


class Prints(nn.Module):
    def forward(self, x):
        y = x * 2
        print("y is", y.shape)
        return y + 1


class Branches(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x - 1


class InLoop(nn.Module):
    def forward(self, x):
        for _ in range(2):
            x = x + 1
            logger.warning("in a loop")
        return x


class Parent(nn.Module):
    def __init__(self, child):
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.child = child

    def forward(self, x):
        return self.child(self.before(x)) * 2


class OtherWhenCompiled(nn.Module):
    def forward(self, x):
        return x * 1.5 if torch.compiler.is_compiling() else x


class FailsWhenCompiled(nn.Module):
    def forward(self, x):
        if torch.compiler.is_compiling():
            x = x.view(-1, 3)
        return x + 1


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0
        self.seen = []

    def forward(self, x):
        self.step += 1
        self.seen.append(self.step)
        return x + self.step


def observe(
    model, folder, *args, path="", backend="eager", fenced=(), instances=(), on_phase=lambda phase: None, **order
):
    log = CallLog()
    with watch_calls(model, log.note), torch.no_grad():
        model(*args)
    wanted = {name: {index for call in log.calls[name] for index in call.indices} for name in (path, *instances)}
    capture = Capture(model, wanted, folder)
    with watch_calls(model, capture.note), torch.no_grad():
        model(*args)
    observation, is_usable = probe(
        model,
        ProbeOrder(
            path=path,
            folder=str(folder),
            calls=tuple(log.calls[path]),
            instances=tuple((name, tuple(log.calls[name])) for name in instances),
            backend=backend,
            fenced=fenced,
            **order,
        ),
        on_phase=on_phase,
    )
    assert is_usable
    return observation


def test_a_healthy_module_has_no_faults_and_was_really_compiled(tmp_path):
    seen = observe(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), tmp_path, torch.ones(2, 4))
    assert not seen.faults
    assert seen.completed and seen.graphs == 1 and seen.frames_compiled == 1


@pytest.mark.parametrize(
    ("module", "code"),
    [(Prints(), 'print("y is", y.shape)'), (Branches(), "if x.sum() > 0:"), (InLoop(), 'logger.warning("in a loop")')],
)
def test_a_graph_break_is_one_fault_at_its_line(tmp_path, module, code):
    (fault,) = observe(module, tmp_path, torch.ones(2, 4)).faults
    assert (fault.kind, fault.stage, fault.location.code) == (Kind.GRAPH_BREAK, Stage.DYNAMO, code)


def test_what_follows_from_a_skipped_frame_is_no_fault_of_its_own(tmp_path):
    class Skipped(nn.Module):
        def forward(self, xs):
            for _ in range(2):
                logger.warning("first cause")
            return sum(x.sum() for x in xs), [x + n for n, x in enumerate(xs)]

    (fault,) = observe(Skipped(), tmp_path, [torch.ones(2), torch.ones(2)]).faults
    assert fault.location.code == 'logger.warning("first cause")'


def test_a_break_keeps_the_type_of_its_cause_and_not_that_of_the_loop_around_it(tmp_path):
    (fault,) = observe(InLoop(), tmp_path, torch.ones(2, 4)).faults
    assert fault.type != "graph break in loop"
    assert fault.evidence["effect"] == "frame skipped"


def test_a_fenced_child_shows_neither_its_break_nor_one_of_the_fence(tmp_path):
    assert not observe(Parent(Prints()), tmp_path, torch.ones(2, 4), fenced=("child",)).faults


def test_a_fence_is_taken_down_afterwards(tmp_path):
    model = Parent(Prints())
    observe(model, tmp_path, torch.ones(2, 4), fenced=("child",))
    assert "forward" not in model.child.__dict__


def test_one_module_alone_is_compiled_inside_another_one_and_inside_its_instances(tmp_path):
    model = nn.Sequential(Parent(OtherWhenCompiled()), Parent(OtherWhenCompiled()))
    inside = {"path": "0", "instances": ("1",)}
    seen = observe(model, tmp_path, torch.ones(2, 4), compiles_only="0.child", **inside)
    assert list(seen.faults_by_instance) == ["0", "1"]
    seen = observe(model, tmp_path, torch.ones(2, 4), compiles_only="0.before", **inside)
    assert seen.graphs and not seen.faults


def test_a_module_that_sits_elsewhere_too_is_compiled_inside_another_one(tmp_path):
    child = OtherWhenCompiled()
    model = nn.Sequential(Parent(child), Parent(child))
    seen = observe(model, tmp_path, torch.ones(2, 4), path="1", compiles_only="0.child")
    assert [fault.kind for fault in seen.faults] == [Kind.DIVERGENCE]


def test_a_break_in_an_rnn_of_torch_is_placed_at_the_line_that_calls_it(tmp_path):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(4, 4, batch_first=True)

        def forward(self, x):
            return self.rnn(x)[0]

    (fault,) = observe(Tagger(), tmp_path, torch.ones(2, 3, 4), path="rnn").faults
    assert fault.location.code == "return self.rnn(x)[0]"


def test_other_values_are_a_divergence(tmp_path):
    (fault,) = observe(OtherWhenCompiled(), tmp_path, torch.ones(2, 4)).faults
    assert (fault.kind, fault.type) == (Kind.DIVERGENCE, "values")


def test_the_finding_says_which_yardstick_decided(tmp_path):
    (fault,) = observe(OtherWhenCompiled(), tmp_path, torch.rand(2, 4)).faults
    assert fault.evidence["yardstick"] == "tolerance of float32", "eager is exact here, so float64 tells nothing"
    (fault,) = observe(Parent(OtherWhenCompiled()), tmp_path, torch.rand(2, 4)).faults
    assert fault.evidence["yardstick"] == "float64 reference"
    (fault,) = observe(OtherWhenCompiled(), tmp_path, torch.rand(2, 4), tolerances={"*": (0.1, 0.0)}).faults
    assert fault.evidence["yardstick"] == "given tolerance rtol=0.1, atol=0"
    assert not observe(OtherWhenCompiled(), tmp_path, torch.rand(2, 4), tolerances={"": (0.6, 0.0)}).faults


def test_a_module_has_the_tolerance_of_its_own_path_and_its_instances_have_theirs(tmp_path):
    model = nn.Sequential(OtherWhenCompiled(), OtherWhenCompiled())
    inputs = (tmp_path, torch.rand(2, 4))
    seen = observe(model, *inputs, path="0", instances=("1",), tolerances={"1": (1.0, 0.0)})
    assert list(seen.faults_by_instance) == ["0"]


def test_an_instance_with_sick_weights_is_named_alone(tmp_path):
    class Gate(nn.Module):
        def __init__(self, opens):
            super().__init__()
            self.register_buffer("opens", torch.tensor(opens))

        def forward(self, x):
            factor = 2.0 if torch.compiler.is_compiling() else 1.0
            return x * (1 + self.opens * factor)

    model = nn.Sequential(Gate(0.0), Gate(1.0))
    seen = observe(model, tmp_path, torch.ones(2, 4), path="0", instances=("1",))
    assert [fault.kind for fault in seen.faults] == [Kind.DIVERGENCE]
    assert list(seen.faults_by_instance) == ["1"]


class ZerosFirst(nn.Module):
    """Calls its child as a recurrent model does: with zeros, and later with what came of them."""

    def __init__(self, child):
        super().__init__()
        self.child = child

    def forward(self, x):
        return self.child(self.child(x * 0) + x)


def test_a_wrong_value_that_only_a_later_call_shows_is_the_childs(tmp_path):
    (fault,) = observe(ZerosFirst(OtherWhenCompiled()), tmp_path, torch.rand(2, 4), path="child").faults
    assert (fault.kind, fault.evidence["call"]) == (Kind.DIVERGENCE, 1)


def test_the_last_call_of_each_instance_is_run_too(tmp_path):
    model = nn.Sequential(ZerosFirst(OtherWhenCompiled()), ZerosFirst(OtherWhenCompiled()))
    seen = observe(model, tmp_path, torch.rand(2, 4), path="0.child", instances=("1.child",))
    assert list(seen.faults_by_instance) == ["0.child", "1.child"]


class FailsOutOfOrder(nn.Module):
    """Its second call needs something of the process that no golden state holds."""

    opened: ClassVar[set[int]] = set()

    def forward(self, x, share):
        if share > 0.5 and not self.opened:
            raise RuntimeError("not open")
        return x + share


def test_a_last_call_that_cannot_be_made_alone_leaves_the_first_ones_verdict(tmp_path):
    class Opens(ZerosFirst):
        def forward(self, x):
            FailsOutOfOrder.opened.add(1)
            try:
                return self.child(self.child(x, share=0.25), share=0.75)
            finally:
                FailsOutOfOrder.opened.clear()

    seen = observe(Opens(FailsOutOfOrder()), tmp_path, torch.rand(2, 4), path="child")
    assert not seen.untested
    assert not seen.faults
    assert any("call 1 is not judged" in note for note in seen.notes)


class PrintsAt(nn.Module):
    """Equal modules that only know where they stand; one of them prints."""

    def __init__(self, index, noisy):
        super().__init__()
        self.index, self.noisy = index, noisy

    def forward(self, x):
        if self.index in self.noisy:
            print("here")
        return x + 1


@pytest.mark.parametrize(("noisy", "shown"), [({0}, ["0"]), ({2}, ["2"]), ({0, 1, 2}, [])])
def test_a_break_that_only_some_instances_meet_belongs_to_those(tmp_path, noisy, shown):
    model = nn.Sequential(*(PrintsAt(index, noisy) for index in range(3)))
    seen = observe(model, tmp_path, torch.ones(2, 4), path="0", instances=("1", "2"))
    assert [fault.kind for fault in seen.faults] == [Kind.GRAPH_BREAK]
    assert list(seen.faults_by_instance) == shown


def test_an_instance_that_ends_the_run_is_named_in_the_fault_and_in_the_phase(tmp_path):
    class Gate(nn.Module):
        def __init__(self, opens):
            super().__init__()
            self.register_buffer("opens", torch.tensor(opens))

        def forward(self, x):
            if torch.compiler.is_compiling():
                x = x + torch.zeros(1, 1).index_select(0, self.opens)
            return x

    model = nn.Sequential(*(Gate([index]) for index in (0, 5, 0)))
    phases = []
    seen = observe(model, tmp_path, torch.ones(2, 4), path="0", instances=("1", "2"), on_phase=phases.append)
    assert not seen.completed
    assert {path: [fault.kind for fault in faults] for path, faults in seen.faults_by_instance.items()} == {
        "1": [Kind.ERROR]
    }
    assert "running of instance 1" in phases and not any(phase.endswith("2") for phase in phases)


def test_an_error_of_the_compiled_run_is_a_fault_with_the_users_line(tmp_path):
    (fault,) = observe(FailsWhenCompiled(), tmp_path, torch.ones(2, 4)).faults
    assert (fault.kind, fault.stage) == (Kind.ERROR, Stage.DYNAMO)
    assert fault.location.code == "x = x.view(-1, 3)"


def test_what_fails_in_eager_too_is_no_fault(tmp_path):
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls_left = 2

        def forward(self, x):
            if torch.is_grad_enabled():
                raise ValueError("never with grad")
            return x

    model = Fragile()
    seen = observe(model, tmp_path, torch.ones(2))
    assert not seen.faults


def test_state_is_restored_between_runs_and_afterwards(tmp_path):
    model = Counts()
    assert not observe(model, tmp_path, torch.ones(2)).faults
    assert model.step == 2 and model.seen == [1, 2]


def test_an_output_that_is_constant_is_called_blind(tmp_path):
    class Zero(nn.Module):
        def forward(self, x):
            return x * 0

    assert observe(Zero(), tmp_path, torch.ones(2, 4)).is_blind


class AddsWhenCompiled(nn.Module):
    def forward(self, x):
        return x + 1 if torch.compiler.is_compiling() else x


def test_a_fence_stands_for_every_golden_call(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Parent(AddsWhenCompiled())

        def forward(self, x):
            return self.inner(x), self.inner(x[:1])

    assert not observe(Twice(), tmp_path, torch.ones(2, 4), path="inner", fenced=("inner.child",)).faults


def test_a_fence_keeps_the_hooks_of_a_module_out_too(tmp_path):
    model = Parent(nn.Identity())
    hook = model.child.register_forward_hook(lambda module, args, out: AddsWhenCompiled()(out))
    assert [fault.kind for fault in observe(model, tmp_path, torch.ones(2, 4)).faults] == [Kind.DIVERGENCE]
    assert not observe(model, tmp_path, torch.ones(2, 4), fenced=("child",)).faults
    assert hook.id in model.child._forward_hooks


def test_a_break_inside_a_generator_is_the_childs_alone(tmp_path):
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([nn.Identity(), Prints()])

        def forward(self, x):
            return sum(part(x) for part in self.parts)

    places = {fault.location.code for fault in observe(Sums(), tmp_path, torch.ones(2, 4)).faults}
    assert places == {'print("y is", y.shape)'}


def test_one_line_reached_from_two_modules_is_two_faults(tmp_path):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Helped()

        def forward(self, x):
            return helper(self.child(x))

    faults = observe(Both(), tmp_path, torch.ones(2, 4)).faults
    assert {fault.frames[-2].code for fault in faults} == {"return helper(x) + 1", "return helper(self.child(x))"}


def helper(x):
    print("helping")
    return x * 2


class Helped(nn.Module):
    def forward(self, x):
        return helper(x) + 1


class Disabled(nn.Module):
    @torch.compiler.disable
    def forward(self, x):
        return x * 2


class Skipped(nn.Module):
    """Dynamo compiles its frame, in which nothing is left to capture."""

    def forward(self, x):
        return _doubled(x)


@torch.compiler.disable(reason="on purpose")
def _doubled(x):
    return x * 2


@pytest.mark.parametrize("module", [Disabled(), Skipped()], ids=["its forward", "all that it calls"])
def test_what_ran_in_eager_mode_never_counts_as_healthy(tmp_path, module):
    seen = observe(module, tmp_path, torch.ones(2, 4))
    assert seen.graphs == 0
    assert seen.is_all_eager if seen.faults else "eager mode" in seen.untested or "left it alone" in seen.untested


def test_a_module_of_which_no_graph_ran_is_not_called_healthy(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_internals, "_counting_runs", lambda compiled, operators: compiled)
    assert "ran in eager mode" in observe(nn.Linear(4, 4), tmp_path, torch.ones(2, 4)).untested


def test_a_stance_that_forbids_to_compile_leaves_nothing_healthy(tmp_path):
    with torch.compiler.set_stance("force_eager"):
        seen = observe(nn.Linear(4, 4), tmp_path, torch.ones(2, 4))
    assert seen.untested and not seen.faults


def test_a_module_without_operators_is_healthy_though_there_is_nothing_to_capture(tmp_path):
    class Passes(nn.Module):
        def forward(self, x):
            return {"x": x}

    seen = observe(Passes(), tmp_path, torch.ones(2, 4))
    assert (seen.graphs, seen.faults, seen.untested) == (0, (), "")


def test_instances_beyond_the_limit_of_recompiles_are_compiled_all_the_same(tmp_path):
    class Gate(nn.Module):
        def __init__(self, index, opens):
            super().__init__()
            self.index = index
            self.register_buffer("opens", torch.tensor(opens))

        def forward(self, x):
            factor = 2.0 if torch.compiler.is_compiling() else 1.0
            return x * (1 + self.index + self.opens * factor)

    model = nn.Sequential(*(Gate(index, float(index == 3)) for index in range(4)))
    with torch._dynamo.config.patch(recompile_limit=1):
        seen = observe(model, tmp_path, torch.ones(2, 4), path="0", instances=("1", "2", "3"))
    assert {path: [fault.kind for fault in faults] for path, faults in seen.faults_by_instance.items()} == {
        "3": [Kind.DIVERGENCE]
    }


def test_a_graph_that_the_backend_sends_back_to_be_traced_again_counts_once():
    # Inductor does so with dynamic shapes, to turn numbers into tensors.
    sent: list[torch.fx.GraphModule] = []

    def backend(gm, inputs):
        sent.append(gm)
        if len(sent) == 1:
            raise TensorifyScalarRestartAnalysis
        return gm.forward

    with watch_compile() as watcher:
        torch.compile(nn.Linear(2, 2), backend=backend)(torch.ones(1, 2))
    assert len(sent) == 2
    assert (watcher.graph_count, watcher.operators) == (1, 1)


class OwnBase(BaseException):
    pass


class NoText(Exception):
    def __str__(self):
        return 5


class RaisesInText(Exception):
    def __str__(self):
        raise KeyboardInterrupt


@pytest.fixture
def raising_backend():
    """Registers backends that raise what they are told to."""
    names = []

    def register(error):
        def backend(gm, inputs):
            raise error

        names.append(f"raising{len(names)}")
        torch._dynamo.register_backend(backend, name=names[-1])
        return names[-1]

    yield register
    registry = torch._dynamo.backends.registry
    for name in names:
        registry._COMPILER_FNS.pop(name, None)
        registry._BACKENDS.pop(name, None)


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (SystemExit(0), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (OwnBase("x"), "OwnBase"),
        (ValueError("x" * 5_000_000), "ValueError"),
        # torch itself makes texts of these, and what the user meets is how that ends
        (NoText(), "TypeError"),
        (RaisesInText(), "KeyboardInterrupt"),
        (ValueError("\ud800 alone"), "UnicodeEncodeError"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_whatever_only_the_compiled_run_raises_is_an_error(tmp_path, raising_backend, raised, shown):
    seen = observe(nn.Linear(4, 4), tmp_path, torch.ones(2, 4), backend=raising_backend(raised))
    (fault,) = seen.faults
    assert (fault.kind, fault.type, seen.completed, seen.untested) == (Kind.ERROR, shown, False, "")
    assert len(fault.message) < 20_000
    fault.message.encode("utf-8")


@pytest.mark.parametrize("error", [SystemExit, RuntimeError])
def test_a_module_that_eager_mode_cannot_run_alone_is_untested(tmp_path, error):
    class NeedsItsParent(nn.Module):
        is_ready = True

        def forward(self, x):
            if not NeedsItsParent.is_ready:
                raise error("not yet")
            return x + 1

    model = NeedsItsParent()
    seen = observe(model, tmp_path, torch.ones(2, 4))
    assert not seen.untested
    NeedsItsParent.is_ready = False
    order = ProbeOrder(
        path="",
        folder=str(tmp_path),
        calls=(GoldenCall(index=0, signature="", count=1, context=CallContext("no_grad")),),
        backend="eager",
    )
    seen, is_usable = probe(model, order, on_phase=lambda phase: None)
    assert "fails in eager mode when called alone: " + error.__name__ in seen.untested
    assert is_usable and not any(fault.kind is Kind.ERROR for fault in seen.faults)


def test_a_run_of_which_only_the_compiled_half_succeeds_is_untested(tmp_path):
    class OnlyCompiles(nn.Module):
        fails = False

        def forward(self, x):
            if OnlyCompiles.fails and not torch.compiler.is_compiling():
                raise RuntimeError("in eager mode")
            return x + 1

    model = OnlyCompiles()
    observe(model, tmp_path, torch.ones(2, 4))
    OnlyCompiles.fails = True
    order = ProbeOrder(
        path="",
        folder=str(tmp_path),
        calls=(GoldenCall(index=0, signature="", count=1, context=CallContext("no_grad")),),
        backend="eager",
    )
    seen, _ = probe(model, order, on_phase=lambda phase: None)
    assert "where compiled code does not" in seen.untested


class AsksNothing(nn.Module):
    """Answers what it does not have with an error of its own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise RuntimeError(f"no {name} here") from None

    def forward(self, x):
        return self.inner(x)


def test_an_error_of_a_module_that_the_compiler_asks_for_attributes_is_that_modules(tmp_path):
    (alone,) = observe(AsksNothing(), tmp_path, torch.ones(2, 4)).faults
    assert (alone.kind, alone.type, alone.location.function) == (Kind.ERROR, "RuntimeError", "__getattr__")
    (inside,) = observe(Parent(AsksNothing()), tmp_path, torch.ones(2, 4)).faults
    assert inside.owners == ("child",)
    assert fault_key(inside) == fault_key(alone)


def test_an_instance_that_cannot_be_run_alone_is_untested_and_the_others_are_not(tmp_path):
    class Moody(nn.Module):
        fails = False

        def __init__(self, number):
            super().__init__()
            self.number = number

        def forward(self, x):
            if self.number == 1 and Moody.fails:
                raise RuntimeError("not me")
            return x * 2

    model = nn.Sequential(Moody(0), Moody(1), Moody(2))
    observe(model, tmp_path, torch.ones(2, 4))
    log = CallLog()
    with watch_calls(model, log.note), torch.no_grad():
        model(torch.ones(2, 4))
    capture = Capture(model, {name: {0} for name in ("0", "1", "2")}, tmp_path)
    with watch_calls(model, capture.note), torch.no_grad():
        model(torch.ones(2, 4))
    Moody.fails = True
    order = ProbeOrder(
        path="0",
        folder=str(tmp_path),
        calls=tuple(log.calls["0"]),
        instances=tuple((name, tuple(log.calls[name])) for name in ("1", "2")),
        backend="eager",
    )
    seen, _ = probe(model, order, on_phase=lambda phase: None)
    assert not seen.untested
    assert list(seen.untested_instances) == ["1"]


def test_graphs_of_inputs_that_share_memory_come_from_no_cache(monkeypatch):
    forgotten = []
    monkeypatch.setattr(torch_internals, "forget_cached_graphs", lambda: forgotten.append(True))
    x = torch.zeros(4, 6)
    compile_views_anew((x, x), {"y": torch.zeros(4, 6)})
    assert not forgotten
    compile_views_anew((x,), {"window": x[1:]})
    assert forgotten
