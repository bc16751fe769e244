import random

import numpy as np
import pytest
import torch
from torch import nn

from compilebisect.core.call import CallContext
from compilebisect.runtime.grad_leaves import GradLeaves
from compilebisect.runtime.nudge import UPWARD, can_nudge, nudged_inputs, nudged_parameters
from compilebisect.runtime.reference import inputs_to_float64, to_float64
from compilebisect.runtime.rerun import GENERATED, run_once
from compilebisect.runtime.state import StateSnapshot

EVAL = CallContext()
TRAIN = CallContext("grad", (), True)


class Fn(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(2))
        self.step = 0

    def forward(self, x):
        self.step += 1
        self.total += x
        x.add_(1)
        return self.total


def test_each_run_starts_from_the_same_state_and_inputs():
    module, x = Counting().eval(), torch.ones(2)
    snapshot = StateSnapshot(module)
    first = run_once(module, (x,), {}, EVAL, snapshot=snapshot)
    second = run_once(module, (x,), {}, EVAL, snapshot=snapshot)
    for record in (first, second):
        assert record.output.tolist() == [1, 1], "a buffer that is returned must not change with the next run"
        assert record.inputs_after[0][0].tolist() == [2, 2]
        assert record.state["step"] == 1
        assert record.state["total"].tolist() == [1, 1]
        assert record.aliases == {("output", "state.total")}
    assert x.tolist() == [1, 1]


def test_all_generators_are_seeded_and_draws_are_noticed():
    module = Fn(lambda x: (x + torch.rand(2), float(np.random.rand()), random.random())).eval()
    records = [run_once(module, (torch.ones(2),), {}, EVAL, seed=5) for _ in range(2)]
    assert torch.equal(records[0].output[0], records[1].output[0])
    assert records[0].output[1:] == records[1].output[1:]
    assert records[0].draws_random
    assert not run_once(Fn(lambda x: x), (torch.ones(2),), {}, EVAL).draws_random


@pytest.mark.parametrize(
    ("mode", "expected"), [("grad", (True, False)), ("no_grad", (False, False)), ("inference", (False, True))]
)
def test_grad_mode_is_that_of_the_golden_call(mode, expected):
    module = Fn(lambda x: (torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    with torch.no_grad():
        assert run_once(module, (torch.ones(1),), {}, CallContext(mode, (), True)).output == expected


def test_autocast_and_training_flag_are_those_of_the_golden_call():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    context = CallContext("no_grad", (("cpu", "bfloat16"),), False)
    record = run_once(module, (torch.ones(2),), {}, context)
    assert record.output.dtype is torch.bfloat16
    assert record.noise_dtype == "bfloat16"
    assert not record.draws_random


def test_training_gives_gradients_of_inputs_and_parameters_and_leaves_none_behind():
    module = nn.Linear(3, 2)
    module.unused = nn.Parameter(torch.ones(1))
    x = torch.ones(4, 3, requires_grad=True)
    cotangent = torch.full((4, 2), 2.0)
    record = run_once(module, (x,), {}, TRAIN, train={"output": cotangent})
    assert torch.allclose(record.grads["inputs.args[0]"], cotangent @ module.weight)
    assert record.grads["bias"].tolist() == [8, 8]
    assert record.grads["unused"] is None
    assert record.requires_grad == {"output"}
    assert module.weight.grad is None
    assert x.grad is None


def test_made_up_cotangents_are_the_same_in_each_run():
    module = nn.Linear(3, 2)
    x = torch.ones(4, 3, requires_grad=True)
    first, second = (run_once(module, (x,), {}, TRAIN, train=GENERATED, seed=3) for _ in range(2))
    assert torch.equal(first.grads["weight"], second.grads["weight"])
    assert bool(first.grads["weight"].any())


def test_inputs_that_require_grad_may_be_written_in_place():
    module = Fn(lambda x: x.mul_(2).sum())
    x = torch.ones(3, requires_grad=True)
    record = run_once(module, (x,), {}, TRAIN, train={"output": torch.tensor(1.0)})
    assert record.grads["inputs.args[0]"].tolist() == [2, 2, 2]
    assert record.inputs_after[0][0].tolist() == [2, 2, 2]


def test_inputs_that_share_memory_still_do_when_gradients_are_wanted():
    def write_through(a, b):
        a.mul_(3)
        return b.sum()

    base = torch.ones(4)
    left, right = base[:3].requires_grad_(), base[1:].requires_grad_()
    record = run_once(Fn(write_through), (left, right), {}, TRAIN, train={"output": torch.tensor(1.0)})
    assert record.output.item() == 3 + 3 + 1
    assert record.grads["inputs.args[0]"].tolist() == [0, 3, 3]
    assert record.grads["inputs.args[1]"].tolist() == [3, 3, 1]


def test_strides_of_inputs_survive_in_training():
    seen = []
    module = Fn(lambda x, y, z: seen.append((x.stride(), y.stride(), z.stride())) or (x.sum() + y.sum() + z.sum()))
    inputs = (torch.ones(4, 6)[:, ::2], torch.ones(4, 6).t(), torch.ones(4, 1).expand(4, 6))
    for tensor in inputs:
        tensor.requires_grad_()
    run_once(module, inputs, {}, TRAIN, train=GENERATED)
    assert seen == [tuple(tensor.stride() for tensor in inputs)]


def test_what_the_module_raises_is_raised():
    def fail(x):
        raise KeyError("wanted")

    with pytest.raises(KeyError, match="wanted"):
        run_once(Fn(fail), (torch.ones(1),), {}, EVAL)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_nudge_is_one_ulp(dtype):
    x = torch.tensor([1.0, 1.5, -3.3, 1000.3, 0.0, torch.inf, torch.finfo(dtype).min]).to(dtype)
    ((moved,), _) = nudged_inputs((x,), {}, number=UPWARD)
    steps = (moved.double() - x.double())[:4] / torch.finfo(dtype).eps
    expected = torch.tensor([1.0, 1.0, 2.0, 512.0], dtype=torch.float64)
    assert torch.equal(steps.abs(), expected)
    assert torch.equal(moved[4:], x[4:])
    ((random_signs,), _) = nudged_inputs((x,), {})
    assert torch.equal((random_signs.double() - x.double())[:4].abs(), expected * torch.finfo(dtype).eps)


def test_masks_and_indices_stay_and_views_move_once():
    mask, ids, base = torch.tensor([0.0, 1.0]), torch.tensor([1, 2]), torch.rand(4)
    ((moved_mask, moved_ids, first, second), _) = nudged_inputs((mask, ids, base, base[:2]), {}, number=UPWARD)
    assert torch.equal(moved_mask, mask)
    assert torch.equal(moved_ids, ids)
    assert torch.equal(first[:2], second)
    assert not torch.equal(first, base)
    assert not can_nudge((mask, ids), {})


def test_parameters_are_nudged_for_a_while():
    module = nn.Linear(2, 2)
    before, version = module.weight.detach().clone(), module.weight._version
    with nudged_parameters(module):
        assert not torch.equal(module.weight, before)
    assert torch.equal(module.weight, before)
    assert module.weight._version == version


class HardCoded(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64))
        self.plain = torch.rand(64)
        self.state = [torch.ones(64, requires_grad=True) * 0.3]

    def forward(self, x):
        h = x.float() * self.weight.to(torch.float32) + torch.full((64,), 0.1, dtype=torch.float32)
        return (h.to(torch.float32).exp() * self.plain * self.state[0]).to(x.dtype)


def test_the_twin_is_float64_even_where_the_code_asks_for_float32():
    module, x = HardCoded().eval(), torch.rand(64)
    twin = to_float64(module)
    (args, kwargs) = inputs_to_float64((x,), {})
    with twin.running():
        output = run_once(twin.module, args, kwargs, EVAL).output
        assert torch.ones(1).dtype is torch.float64
    assert torch.ones(1).dtype is torch.float32
    h = x.double() * module.weight.double() + 0.1
    exact = (h.exp() * module.plain.double() * module.state[0].double()).detach()
    assert float((output - exact).abs().max()) < 1e-13
    assert module.weight.dtype is torch.float32


def test_the_twin_draws_the_random_numbers_of_the_original_dtype():
    module = Fn(lambda x: x + torch.rand(5) + torch.randn_like(x) + torch.empty_like(x).uniform_())
    x = torch.rand(5)
    twin = to_float64(module)
    args, kwargs = inputs_to_float64((x,), {})
    eager = run_once(module, (x,), {}, EVAL, seed=1).output
    with twin.running():
        exact = run_once(twin.module, args, kwargs, EVAL, seed=1).output
    assert exact.dtype is torch.float64
    assert torch.allclose(eager.double(), exact, atol=1e-6)


def test_shared_parameters_stay_shared_and_a_refusal_is_told():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    twin = to_float64(module).module
    assert twin[1].weight is twin[0].weight
    assert twin[0].weight.dtype is torch.float64

    class Refusing:
        def __deepcopy__(self, memo):
            raise RuntimeError("not to be copied")

    module.extra = Refusing()
    refused = to_float64(module)
    assert refused.module is None
    assert "not to be copied" in refused.reason


def test_gradients_are_taken_with_a_base_and_its_view_as_they_are():
    base = torch.arange(12.0).view(3, 4).t().clone(memory_format=torch.preserve_format).requires_grad_() * 1
    leaves = GradLeaves((base, base[1:]), {})
    whole, part = leaves.args
    assert part._base is whole and whole.stride() == base.stride()
    (whole.sum() + 2 * part.sum()).backward()
    gradients = leaves.gradients()
    assert gradients["inputs.args[0]"].tolist() == [[1.0] * 3, *[[3.0] * 3] * 3]
    assert gradients["inputs.args[1]"].tolist() == [[3.0] * 3] * 3


def test_memory_that_inputs_share_is_shared_in_float64_too():
    base = torch.ones(3, 4)
    (whole, part), _ = inputs_to_float64((base, base[1:, ::2]), {})
    whole.add_(1)
    assert part.dtype is torch.float64 and part.tolist() == [[2.0, 2.0]] * 2
