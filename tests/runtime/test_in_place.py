"""Modules compiled where they stand: what shows only there, whose fault it is, and what it does to the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compilebisect.core.coverage import uncovered_parts
from compilebisect.core.outcome import Kind
from compilebisect.runtime.compare import Difference
from compilebisect.runtime.in_place_probe import attributable
from tests.quality.in_process import Bench, introduced
from tests.quality.models import Mlp
from tests.quality.planted import BACKEND, PLANTED, Fault

# Dynamo looks at `.grad` of all inputs, also of those that are no leaves, as inside a model
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")

STATE = {"mode": "plain", "runs": 0}


def is_compiling():
    return torch.compiler.is_compiling()


class Moody(nn.Module):
    """Goes wrong when it is compiled, but only in the mode that a parent may set."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        y = self.lin(x)
        return y * 2 if STATE["mode"] == "special" and is_compiling() else y


class SetsMode(nn.Module):
    """Calls three equal modules, of which the second is called in another mode."""

    def __init__(self):
        super().__init__()
        self.parts, self.end = nn.ModuleList(Moody() for _ in range(3)), nn.Linear(4, 2)

    def forward(self, x):
        for number, part in enumerate(self.parts):
            STATE["mode"] = "special" if number == 1 else "plain"
            x = part(x)
        STATE["mode"] = "plain"
        return self.end(x)


class Table(nn.Module):
    """Never called itself."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(4, 4))

    def project(self, x):
        return self.scaled(x @ self.rows)

    def scaled(self, x):
        return x * 3 if is_compiling() else x


class OtherMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.end = Table(), nn.Linear(4, 2)

    def forward(self, x):
        return self.end(self.table.project(x))


class WritesItsBuffer(nn.Module):
    """Goes wrong where it is handed its own buffer, which a golden call in a file cannot tell."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.ones(4))

    def forward(self, x, scale):
        scaled = x * scale
        self.kept.add_(1)
        return x * scale if scale is not self.kept or is_compiling() else scaled


class HandsItsBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = WritesItsBuffer()

    def forward(self, x):
        return self.part(x, self.part.kept)


class CountsRuns(nn.Module):
    """Hands its part another input in its first run, by a global that nobody restores."""

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(4, 4)

    def forward(self, x):
        if not is_compiling():
            STATE["runs"] += 1
        return self.part(x * (2.0 if STATE["runs"] == 1 else 1.0))


class HandsAFunction(nn.Module):
    """What it hands over cannot be kept in a file."""

    def __init__(self):
        super().__init__()
        self.part = Applies()

    def forward(self, x):
        return self.part(x, lambda y: y.sin())


class Applies(nn.Module):
    def forward(self, x, function):
        return function(x) * 2 if is_compiling() else function(x)


@pytest.fixture
def bench(tmp_path, monkeypatch, clean_imports):
    """Make a bench that looks at modules in place, over an instance."""

    def make(model, shape=(3, 4), **options):
        (tmp_path / "target.py").write_text("from tests.runtime import test_in_place\nmodel = test_in_place.MODEL\n")
        monkeypatch.setitem(globals(), "MODEL", model)
        monkeypatch.setitem(STATE, "mode", "plain")
        monkeypatch.setitem(STATE, "runs", 0)
        torch.manual_seed(0)
        options = {"backend": "eager", "context": True, **options}
        return Bench(f"{tmp_path}/target.py:model", [list(shape)], **options)

    return make


@pytest.fixture(autouse=True)
def _nothing_stays_planted(torch_config):
    yield
    PLANTED.fault = None


def planted_walk(bench, fault):
    """Go over all modules with a fault in what the backend makes of them."""

    def observe(wanted):
        PLANTED.root = bench.tree[wanted.path].class_name
        return bench.observe(wanted)

    PLANTED.fault = fault
    return bench.walk(observe)


def the_fault(walk, path):
    (item,) = walk.results[walk.unit_of[path].id].introduced
    return item.fault


def test_state_that_a_parent_sets_shows_a_fault_at_the_one_instance_that_meets_it(bench):
    walk = bench(SetsMode()).walk()
    assert introduced(walk) == {"parts.1": [Kind.DIVERGENCE]}
    fault = the_fault(walk, "parts.1")
    assert fault.evidence["only_in_place"] and "output of parts.1" in fault.message
    assert fault.evidence["impact"]["times_eager_noise"] > 1000


def test_a_module_that_is_entered_through_another_method_is_checked_there(bench):
    walk = bench(OtherMethod()).walk()
    assert introduced(walk) == {"table": [Kind.DIVERGENCE]}
    assert "output of table.project" in the_fault(walk, "table").message


def test_memory_that_a_module_shares_with_its_parent_is_there_in_place(bench):
    walk = bench(HandsItsBuffer()).walk()
    assert introduced(walk) == {"part": [Kind.DIVERGENCE]}
    assert the_fault(walk, "part").evidence["only_in_place"]


def test_without_context_a_module_that_is_never_called_is_no_unit(bench):
    tree = bench(OtherMethod()).tree
    from compilebisect.core.units import units_of

    assert "table" not in {path for unit in units_of(tree) for path in unit.paths}


def test_what_enters_a_module_already_different_is_not_its_fault(bench):
    bench = bench(CountsRuns())

    def observe(wanted):
        STATE["runs"] = 0 if wanted.in_place else 10
        return bench.observe(wanted)

    walk = bench.walk(observe)
    assert "part" not in introduced(walk)
    (note,) = walk.results[walk.unit_of["part"].id].notes
    assert note.startswith("in place: no finding, since 2 other seeds do not show it: input of part")


def difference(path):
    return Difference("values", path, f"{path}: other values")


@pytest.mark.parametrize(
    ("paths", "kept"),
    [
        (["output['output']", "output['inside'][1]['out']"], ["output['inside'][1]['out']", "output['output']"]),
        (["output['inside'][1]['in'][0][0]", "output['inside'][1]['out']", "output['output']"], []),
        (["output['inside'][0]['in'][0][0]", "output['inside'][1]['out']"], ["output['inside'][1]['out']"]),
        (
            ["output['inside'][1]['out']", "output['inside'][2]['in'][0][0]", "output['inside'][2]['out']", "grad.x"],
            ["output['inside'][1]['out']", "grad.x"],
        ),
        (["output['output']"], ["output['output']"]),
    ],
)
def test_a_module_answers_for_what_leaves_it_unless_it_entered_so(paths, kept):
    found = attributable([difference(path) for path in paths], own=[1, 2])
    assert [item.path for item in found] == kept


@pytest.mark.parametrize("context", [False, True])
def test_a_module_whose_arguments_cannot_be_kept_is_checked_in_place(bench, context):
    walk = bench(HandsAFunction(), context=context).walk()
    assert introduced(walk) == {"part": [Kind.DIVERGENCE]}
    result = walk.results[walk.unit_of["part"].id]
    assert not result.untested
    assert any(
        note.startswith("checked in place only: not captured: its arguments cannot be kept") for note in result.notes
    )


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        raise LookupError(f"no {function.__name__} for this")


class ReturnsWhatRefuses(HandsAFunction):
    def forward(self, x):
        return super().forward(x).as_subclass(Refusing)


def test_what_cannot_be_read_is_no_error_of_the_compiler(bench):
    walk = bench(ReturnsWhatRefuses()).walk()
    assert introduced(walk) == {}
    assert any("cannot be read" in note for note in walk.results[walk.unit_of["part"].id].notes)
    assert [part.path for part in uncovered_parts(walk)] == ["", "part"]


class Transforms(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name, self.part = name, Squares()

    def forward(self, x):
        if self.name == "grad":
            return torch.func.grad(lambda y: self.part(y).sum())(x)
        if self.name == "vmap":
            return torch.vmap(self.part)(x)
        return torch.func.jvp(self.part, (x,), (torch.ones_like(x),))[1]


class Squares(nn.Module):
    def forward(self, x):
        return x * x


@pytest.mark.filterwarnings("ignore")  # of torch's own, when it sets up forward mode
@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("name", ["grad", "vmap", "jvp"])
def test_what_runs_inside_a_function_transform_is_covered_by_its_caller(bench, name, context):
    walk = bench(Transforms(name), context=context).walk()
    assert introduced(walk) == {}
    result = walk.results[walk.unit_of["part"].id]
    assert any("inside a function transform" in why for why in (result.untested, *result.notes))
    assert not uncovered_parts(walk)


@pytest.mark.parametrize("train", [False, True])
def test_a_healthy_model_is_healthy_in_place(bench, train):
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), Mlp(), Mlp())
    walk = bench(model, (8, 16), backend=BACKEND, train=train).walk()
    assert introduced(walk) == {}
    assert not [note for result in walk.results.values() for note in result.notes if "place" in note]


class Heads(nn.Module):
    """The first part reaches the output, the second is hidden behind a head of zeros, the third is not used."""

    def __init__(self):
        super().__init__()
        self.seen, self.hidden, self.unused = Seen(), Hidden(), Unused()
        self.zero = nn.Linear(4, 4)
        nn.init.zeros_(self.zero.weight)
        nn.init.zeros_(self.zero.bias)

    def forward(self, x):
        self.unused(x)
        return {"seen": self.seen(x), "zero": self.zero(self.hidden(x))}


class Seen(nn.Module):
    def forward(self, x):
        return x.sin() * 0.5


class Hidden(Seen):
    pass


class Unused(Seen):
    pass


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Hidden()

    def forward(self, x):
        return self.part(x) * 0.0


@pytest.mark.parametrize("cls", ["Seen", "Hidden", "Unused"])
def test_a_divergence_is_given_its_impact_on_the_output_of_the_model(bench, cls):
    walk = planted_walk(bench(Heads(), backend=BACKEND), Fault("forward", cls, "mul", "scaled", 0.25))
    path = cls.lower()
    assert introduced(walk) == {path: [Kind.DIVERGENCE]}
    fault = the_fault(walk, path)
    assert "only_in_place" not in fault.evidence, "it shows alone as well"
    impact = fault.evidence["impact"]
    if cls != "Seen":
        assert impact == {"text": "none: unchanged"}
        return
    assert impact["where"] == "['seen']"
    assert 0.1 < impact["max_rel_error"] < 0.3
    assert impact["times_eager_noise"] == pytest.approx(impact["rms_rel_error"] / impact["eager_noise"])


def test_the_impact_on_a_constant_output_is_none(bench):
    walk = planted_walk(bench(Constant(), backend=BACKEND), Fault("forward", "Hidden", "mul", "scaled", 0.25))
    assert the_fault(walk, "part").evidence["impact"] == {"text": "none: constant"}


def test_a_wrong_gradient_has_its_impact_on_the_gradients_of_the_model(bench):
    bench = bench(nn.Sequential(nn.Linear(16, 16), Mlp()), (8, 16), backend=BACKEND, train=True)
    walk = planted_walk(bench, Fault("backward", "Down", "mm", "scaled", 0.2))
    assert introduced(walk) == {"1.down": [Kind.DIVERGENCE]}
    impact = the_fault(walk, "1.down").evidence["impact"]
    assert impact["text"].startswith(("none: unchanged", "relative error")) and impact.get("times_eager_noise", 0) <= 4
    assert impact["gradients"]["max_rel_error"] > 0.05
