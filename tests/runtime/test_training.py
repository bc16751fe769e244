"""Training: what the backward pass starts from, and to which module a wrong gradient is laid."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from compilebisect.core.messages import CaptureOrder
from compilebisect.core.outcome import Kind, Stage
from compilebisect.errors import CannotTestError, SpecError
from compilebisect.runtime.cotangents import load_cotangents
from compilebisect.runtime.golden import golden_file
from compilebisect.runtime.loss import load_loss
from compilebisect.runtime.session import Session
from compilebisect.settings import Settings
from tests.quality.in_process import Bench, introduced
from tests.quality.models import Mlp
from tests.quality.planted import BACKEND, PLANTED, Fault


def outputs():
    x = torch.ones(2, 3, requires_grad=True)
    return {"logits": x * 2, "extra": (x * 3, torch.ones(1)), "count": torch.tensor(3)}


@pytest.mark.parametrize(
    ("text", "value"), [("sum", 12 + 18), ("mean", 2 + 3), ("logits", 12), ("extra[0]", 18), ("extra.0", 18)]
)
def test_a_loss_is_made_of_what_it_names(tmp_path, text, value):
    loss = load_loss(text, tmp_path)(outputs())
    assert loss.item() == value and loss.requires_grad


def test_a_loss_function_of_the_users_file_is_given_the_output(tmp_path, clean_imports):
    (tmp_path / "losses.py").write_text("def squares(output):\n    return output['logits'].square().mean()\n")
    assert load_loss("losses.py:squares", tmp_path)(outputs()).item() == 4


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("logit", SpecError, "\"['logits']\""),
        ("count", SpecError, "requires a gradient"),
        ("losses.py:fails", CannotTestError, "KeyError"),
        ("losses.py:many", SpecError, "shape (2, 3)"),
        ("losses.py:lost", SpecError, "lost"),
    ],
)
def test_a_loss_that_cannot_be_had_is_an_error_that_says_why(tmp_path, clean_imports, text, error, said):
    (tmp_path / "losses.py").write_text(
        "def fails(output):\n    return output['nothing']\ndef many(output):\n    return output['logits']\n"
    )
    with pytest.raises(error) as caught:
        load_loss(text, tmp_path)(outputs())
    assert said in str(caught.value) and caught.value.where == "train.loss"


class Squares(nn.Module):
    def forward(self, x):
        return x * x


class Net(nn.Module):
    """The first part feeds the second twice; the third takes no part in the loss."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), Squares(), nn.Linear(4, 2)

    def forward(self, x):
        y = self.first(x)
        return {"logits": self.second(y) + y, "aside": self.third(y)}


@pytest.fixture
def target(tmp_path, monkeypatch, clean_imports):
    """Make an instance the target of a session."""

    def make(model):
        (tmp_path / "target.py").write_text("from tests.runtime import test_training\nmodel = test_training.MODEL\n")
        monkeypatch.setitem(globals(), "MODEL", model)
        return f"{tmp_path}/target.py:model"

    return make


@pytest.fixture(autouse=True)
def _config_stays_as_it_was(torch_config):
    """A session changes it for its process."""


def test_golden_cotangents_are_those_of_the_models_loss(tmp_path, target):
    torch.manual_seed(0)
    model = Net()
    spec = {"args": [[3, 4]], "train": {"loss": "logits"}}
    session = Session(Settings(target=target(model), spec=spec, train=True, device="cpu", backend="aot_eager"))
    session.describe()
    session.capture(CaptureOrder(str(tmp_path), {"": (0,), "first": (0,), "second": (0,), "third": (0,)}))
    (args, _) = session.inputs()
    with torch.no_grad():
        y = model.first(*args)

    def kept(path):
        return load_cotangents(golden_file(tmp_path, path, 0))

    torch.testing.assert_close(kept("first"), {"output": 2 * y + 1})
    torch.testing.assert_close(kept("second"), {"output": torch.ones(3, 4)})
    torch.testing.assert_close(kept(""), {"output['logits']": torch.ones(3, 4)})
    assert kept("third") == {}, "the loss does not reach it"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_small_cotangents_in_float16_are_scaled_and_useless_ones_dropped(tmp_path):
    file = tmp_path / "call.golden"
    torch.save(("output", torch.tensor([2.0**-20, -(2.0**-22)]).half()), file.with_suffix(".cotangent0"))
    assert load_cotangents(file)["output"].tolist() == [0.5, -0.125]
    torch.save(("output", torch.tensor([torch.inf, 1.0])), file.with_suffix(".cotangent0"))
    assert load_cotangents(file) == {}
    torch.save(("output", torch.zeros(2)), file.with_suffix(".cotangent0"))
    assert load_cotangents(file) == {}


class Frozen(nn.Module):
    """What comes before the body takes no part in training, and half of the body is frozen."""

    def __init__(self):
        super().__init__()
        self.before, self.body = nn.Linear(16, 16).requires_grad_(False), Mlp()
        self.body.up.requires_grad_(False)

    def forward(self, x):
        return self.body(self.before(x))


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.before, self.body, self.use_reentrant = nn.Linear(16, 16), Mlp(), use_reentrant

    def forward(self, x):
        return checkpoint(self.body, self.before(x), use_reentrant=self.use_reentrant)


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.body = nn.Linear(16, 16), Mlp()

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.body(self.before(x)).float().square()


class WithTeacher(nn.Module):
    """A part that runs without grad mode while the model is trained."""

    def __init__(self):
        super().__init__()
        self.before, self.body = nn.Linear(16, 16), Mlp()

    def forward(self, x):
        with torch.no_grad():
            wanted = self.before(x)
        return (self.body(x) - wanted).square()


MODELS = {
    "frozen": Frozen,
    "checkpointed": lambda: Checkpointed(use_reentrant=False),
    "checkpointed, reentrant": lambda: Checkpointed(use_reentrant=True),
    "autocast": Autocast,
    "no_grad": WithTeacher,
}


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_gradient_is_laid_to_the_module_whose_forward_made_it(name, target):
    torch.manual_seed(0)
    bench = Bench(target(MODELS[name]()), {"x": [5, 16]}, backend=BACKEND, train=True)
    PLANTED.fault, PLANTED.planted = None, 0
    walk = bench.walk()
    assert introduced(walk) == {}
    assert all(result.observation.graphs and not result.untested for result in walk.results.values())
    PLANTED.fault = Fault("backward", "Down", "mm", "scaled", 0.2)
    try:
        walk = bench.walk()
    finally:
        PLANTED.fault = None
    assert PLANTED.planted
    assert introduced(walk) == {"body.down": [Kind.DIVERGENCE]}
    (item,) = walk.results[walk.unit_of["body.down"].id].introduced
    assert item.fault.evidence["pass"] == "backward"


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
@pytest.mark.parametrize("scale", [2.0**16, 2.0**200])
def test_a_scaled_loss_as_of_a_grad_scaler_changes_no_verdict(tmp_path, target, scale):
    (tmp_path / "losses.py").write_text(f"def scaled(output):\n    return output.float().square().mean() * {scale!r}\n")
    torch.manual_seed(0)
    spec = {"args": [[5, 16]], "train": {"loss": "losses.py:scaled"}}
    bench = Bench(target(Autocast()), spec, backend=BACKEND, train=True, spec_dir=str(tmp_path))
    PLANTED.fault, PLANTED.planted = None, 0
    walk = bench.walk()
    assert introduced(walk) == {}
    notes = [note for result in walk.results.values() for note in result.notes if "made-up" in note]
    assert bool(notes) == (scale > 2.0**128), "an overflow leaves no cotangent that tells anything"
    PLANTED.fault = Fault("backward", "Down", "mm", "scaled", 0.2)
    try:
        walk = bench.walk()
    finally:
        PLANTED.fault = None
    assert PLANTED.planted and introduced(walk) == {"body.down": [Kind.DIVERGENCE]}


library = torch.library.Library("compilebisect_training_tests", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.define("twice_backward(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CPU")
library.impl("twice_backward", lambda x: x * 2, "CPU")
twice = torch.ops.compilebisect_training_tests.twice
torch.library.register_fake("compilebisect_training_tests::twice", torch.empty_like, lib=library)
torch.library.register_autograd(
    "compilebisect_training_tests::twice",
    lambda ctx, gradient: torch.ops.compilebisect_training_tests.twice_backward(gradient),
    lib=library,
)


class NoFakeBackward(nn.Module):
    """Dynamo traces it, but AOTAutograd cannot trace the backward pass of its operator."""

    def forward(self, x):
        return twice(x) + 1


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.inner = nn.Linear(4, 4), NoFakeBackward()

    def forward(self, x):
        return self.inner(self.before(x)) * 2


class AroundAll(nn.Module):
    def __init__(self):
        super().__init__()
        self.around = Around()

    def forward(self, x):
        return self.around(x) + 1


@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning", "ignore:The .grad attribute:UserWarning")
def test_what_the_backend_cannot_trace_belongs_to_the_module_that_calls_it_alone():
    walk = Bench(f"{__name__}:AroundAll", {"x": [2, 4]}, backend="aot_eager", train=True).walk()
    assert introduced(walk) == {"around.inner": [Kind.GRAPH_BREAK]}
    (item,) = walk.results[walk.unit_of["around.inner"].id].introduced
    assert item.fault.stage is Stage.AOT_AUTOGRAD
    assert item.fault.failed_operator == "compilebisect_training_tests.twice_backward.default"
    assert walk.results[walk.unit_of[""].id].inherited, "the whole model breaks for it"
