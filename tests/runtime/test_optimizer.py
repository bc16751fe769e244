"""The optimizer's step as a node of its own: found healthy where it is, and blamed for what is its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compilebisect.core.module_tree import OPTIMIZER_PATH
from compilebisect.core.outcome import Kind
from compilebisect.core.tolerance import ErrorFigures, Outcome, ValueFigures, Verdict
from compilebisect.errors import UsageError
from compilebisect.runtime.compare import Difference
from compilebisect.runtime.golden import load_golden
from compilebisect.runtime.optimizer import OptimizerSteps
from compilebisect.runtime.optimizer_probe import _beyond_floor
from tests.quality.in_process import Bench, introduced
from tests.quality.planted import BACKEND, PLANTED, Fault

# Dynamo looks at `.grad` of all inputs, also of those that are no leaves, as inside a model
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    # of torch's own making, while Dynamo traces the code of torch.optim
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.frozen, self.down = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.unused = nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return self.down(self.frozen(self.up(x)).tanh())


class Counting(torch.optim.SGD):
    """Keeps its step count in a Python number, which compiled code is made for anew in each step."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr)
        self.steps = {"count": "0"}

    def step(self, closure=None):
        self.steps["count"] += "0"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data.sub_(parameter.grad, alpha=len(self.steps["count"]) * 0.01)


@pytest.fixture
def bench(tmp_path, monkeypatch, clean_imports):
    def make(optimizer, **options):
        (tmp_path / "target.py").write_text("from tests.runtime.test_optimizer import Net\n")
        options = {"backend": "aot_eager", **options}
        target, spec = f"{tmp_path}/target.py:Net", {"args": [[3, 4]], "train": {"loss": "sum"}}
        return Bench(target, spec, train=True, optimizer=optimizer, folder=tmp_path, **options)

    return make


@pytest.fixture(autouse=True)
def _nothing_stays_planted(torch_config):
    yield
    PLANTED.fault = None


def step_only(bench):
    """Walk over the model, and look at nothing but the optimizer."""
    from compilebisect.core.outcome import Observation

    return bench.walk(lambda wanted: bench.observe(wanted) if wanted.path == OPTIMIZER_PATH else Observation(graphs=1))


@pytest.mark.parametrize(
    "choice",
    [{"name": "AdamW"}, {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True}, {"name": "rmsprop", "lr": 0.1}],
    ids=lambda choice: choice["name"],
)
def test_a_healthy_step_is_healthy(bench, choice):
    walk = step_only(bench(choice))
    result = walk.results[walk.unit_of[OPTIMIZER_PATH].id]
    assert introduced(walk) == {} and not result.untested
    assert result.observation.graphs >= 1 and result.observation.operators > 0


def test_a_wrong_update_is_laid_to_the_optimizer_alone(bench):
    bench = bench({"name": "adamw", "lr": 0.01}, backend=BACKEND)
    PLANTED.root = "AdamW"
    PLANTED.fault, PLANTED.met = None, {}
    assert introduced(step_only(bench)) == {}
    target = next(place for place in PLANTED.met if place[1] == "AdamW" and "addcdiv" in place[2])
    PLANTED.fault, PLANTED.planted = Fault(*target, "scaled", 0.02), 0

    def observe(wanted):
        PLANTED.root = bench.tree[wanted.path].class_name
        return bench.observe(wanted)

    walk = bench.walk(observe)
    assert PLANTED.planted
    assert introduced(walk) == {OPTIMIZER_PATH: [Kind.DIVERGENCE]}
    assert not walk.results[walk.unit_of[""].id].inherited
    (item,) = walk.results[walk.unit_of[OPTIMIZER_PATH].id].introduced
    assert "up." in item.fault.message
    assert any("update of" in difference["text"] for difference in item.fault.evidence["differences"])


def test_a_graph_break_of_the_step_is_a_finding_and_the_one_that_torch_makes_on_purpose_is_none(bench):
    walk = step_only(bench({"name": "adafactor"}))
    (item,) = walk.results[walk.unit_of[OPTIMIZER_PATH].id].introduced
    assert item.fault.kind is Kind.GRAPH_BREAK and "item()" in item.fault.type


def test_a_step_that_is_compiled_anew_each_time_is_a_recompile(bench, monkeypatch):
    monkeypatch.setattr(torch.optim, "Counting", Counting, raising=False)
    walk = step_only(bench({"name": "counting"}))
    (item,) = walk.results[walk.unit_of[OPTIMIZER_PATH].id].introduced
    assert item.fault.kind is Kind.RECOMPILE and item.fault.evidence["count"] >= 2


def test_the_step_starts_from_the_gradients_of_the_models_loss(bench, tmp_path):
    bench = bench({"name": "sgd"})
    (parameters, gradients), _ = load_golden(tmp_path, OPTIMIZER_PATH, 0)
    model, (args, _) = bench.session.model, bench.session.inputs()
    model(*args).sum().backward()
    assert set(parameters) == {name for name, p in model.named_parameters() if p.requires_grad}
    assert set(gradients) == {"up.weight", "up.bias", "down.weight", "down.bias"}, "frozen and unused ones have none"
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"name": "adamq"}, "did you mean 'adam'"),
        ({"name": "lbfgs"}, "closure"),
        ({"name": "sgd", "speed": 1}, "'speed'"),
        ({"name": "sgd", "lr": -1}, "learning rate"),
        ({"name": "muon"}, "2D"),
    ],
)
def test_an_optimizer_that_cannot_be_had_is_an_error_of_the_command(choice, said):
    with pytest.raises(UsageError) as caught:
        OptimizerSteps(choice).make([nn.Parameter(torch.ones(3))])
    assert said in str(caught.value) and caught.value.where == "--optimizer"


def difference(path, largest):
    figures = ValueFigures(
        dtype="float32", noise_dtype="float32", count=1, scale=1.0, difference=ErrorFigures(largest, largest)
    )
    return Difference("values", path, path, figures, Verdict(Outcome.DIVERGENCE, "", ""))


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ([("parameters", 1e-5), ("updates", 1e-2)], 2),
        ([("parameters", 1e-5), ("updates", 1e-4)], 0),
        ([("updates", 0.5)], 0),
        ([("parameters", 1e-5)], 0),
        ([("state", 1e-5)], 1),
    ],
)
def test_rounding_of_a_parameter_is_no_wrong_update(found, kept):
    differences = [difference(f"output['{part}']['a.weight']", largest) for part, largest in found]
    assert len(_beyond_floor(differences, 1e-3)) == kept
