"""The oracle against modules that are right, and against faults planted into what "compiled" code returns."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compilebisect.core.call import CallContext
from compilebisect.core.tolerance import FLOORS
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.reference import inputs_to_float64, to_float64

EVAL = CallContext()
# torch 2.13 warns about its own use of torch.jit when Inductor is first imported
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    # Dynamo looks at `.grad` of all inputs, also of those that are no leaves, as inside a model
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]


class Zoo(nn.Module):
    """Operators whose compiled code rounds in another way than eager, in one graph to save time."""

    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.conv = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        attended = (q @ k.transpose(-1, -2) / 32**0.5).softmax(-1) @ v
        return {
            "mlp": self.drop(self.mlp(x)),
            "norm": self.norm(x),
            "attention": attended,
            "conv": self.conv(x.unsqueeze(1)),
            "sum": x.cumsum(1),
            "erf": torch.erf(x),
            "best": (x * 1.1).softmax(-1).argmax(-1),
            "views": (x[:, :2], x.view(-1), x.transpose(0, 1), x.sum(-1, keepdim=True).expand_as(x)),
        }


class WritesThroughDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-0.5, 0.5, 4))

    def forward(self, x):
        y = F.dropout(x, 0.1, self.training)
        y += self.bias
        return y


def compiled(module):
    torch.compiler.reset()
    return torch.compile(module, options={"fallback_random": True})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_healthy_module_is_not_blamed_in_inference(dtype):
    torch.manual_seed(0)
    module = Zoo().eval().to(dtype)
    oracle = Oracle(module, (torch.randn(8, 16, 32, dtype=dtype),), {}, EVAL)
    comparison = oracle.check(compiled(module))
    assert [difference.text for difference in comparison.differences] == []


@pytest.mark.slow
def test_a_healthy_module_is_not_blamed_in_training():
    torch.manual_seed(0)
    module = Zoo()
    inputs = (torch.randn(8, 16, 32, requires_grad=True),)
    oracle = Oracle(module, inputs, {}, CallContext("grad", (), True), train={})
    comparison = oracle.check(compiled(module))
    assert [difference.text for difference in comparison.differences] == []
    assert module.conv[1].num_batches_tracked.item() == 0, "the state must be put back"


def test_a_lost_write_to_an_input_is_a_mutation_though_the_output_is_right():
    module = WritesThroughDropout().eval()
    oracle = Oracle(module, (torch.randn(2, 4),), {}, EVAL)
    comparison = oracle.check(lambda x: x + module.bias)
    assert [(difference.type, difference.path) for difference in comparison.differences] == [
        ("mutation", "inputs.args[0]")
    ]


class KeepsMean(nn.Module):
    def __init__(self, is_centred):
        super().__init__()
        self.is_centred = is_centred
        self.mean = 0.0

    def forward(self, x):
        self.mean = float((x - x.mean() if self.is_centred else x).mean())
        return x * 2


@pytest.mark.parametrize(("is_centred", "types"), [(True, []), (False, ["mutation"])])
def test_a_number_that_is_rounding_alone_need_not_be_written(is_centred, types):
    torch.manual_seed(3)
    oracle = Oracle(KeepsMean(is_centred).eval(), (torch.randn(7, 13) + 0.3,), {}, EVAL)
    comparison = oracle.check(lambda x: x * 2)
    assert [difference.type for difference in comparison.differences] == types


def test_a_lost_write_to_a_buffer_is_a_mutation():
    module = nn.BatchNorm1d(4)
    oracle = Oracle(module, (torch.randn(6, 4),), {}, CallContext("grad", (), True))
    comparison = oracle.check(lambda x: nn.functional.batch_norm(x, None, None, module.weight, module.bias, True))
    lost = {"state.running_mean", "state.running_var", "state.num_batches_tracked"}
    assert {(difference.type, difference.path) for difference in comparison.differences} == {
        ("mutation", path) for path in lost
    }


class ReadsClock(nn.Module):
    def __init__(self):
        super().__init__()
        self.readings = iter([3.0, 40.0, 5.0, 70.0, 8.0, 90.0, 2.0, 60.0, 7.0, 80.0])
        self.took = 0.0

    def forward(self, x):
        self.took = next(self.readings)
        return x * 2


def test_the_reading_of_a_clock_is_not_judged_and_one_that_is_not_taken_is_a_mutation():
    module = ReadsClock().eval()
    oracle = Oracle(module, (torch.randn(2, 3),), {}, EVAL)
    comparison = oracle.check(module)
    assert comparison.is_equal and any("non-deterministic" in note for note in comparison.notes)
    (difference,) = Oracle(ReadsClock().eval(), (torch.randn(2, 3),), {}, EVAL).check(lambda x: x * 2).differences
    assert (difference.type, difference.path) == ("mutation", "state.took")


def scale(value, size):
    return value * (1 + size)


def one_element(value, size):
    value = value.clone()
    index = int(value.abs().argmax())
    value.view(-1)[index] *= 1 + size
    return value


def truncate(value, size):
    return value.to(torch.bfloat16).to(value.dtype)


torch.manual_seed(0)
MODULES = {
    "linear": (nn.Linear(32, 32), torch.randn(64, 32)),
    "mlp": (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), torch.randn(64, 32)),
    "norm": (nn.LayerNorm(32), torch.randn(64, 32)),
    "softmax": (nn.Softmax(-1), torch.randn(64, 32)),
    "sigmoid": (nn.Sigmoid(), torch.randn(64, 32)),
}


@pytest.mark.parametrize("times", [1000.0, 30.0, 4.0])
@pytest.mark.parametrize("plant", [scale, one_element])
@pytest.mark.parametrize("name", sorted(MODULES))
def test_planted_faults_are_found_down_to_four_times_the_floor(name, plant, times):
    module, x = MODULES[name]
    size = times * FLOORS["float32"].largest * FLOORS["float32"].eps
    comparison = Oracle(module.eval(), (x,), {}, EVAL).check(lambda x: plant(module(x), size))
    assert [difference.type for difference in comparison.differences] == ["values"]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_results_truncated_to_a_lower_dtype_are_found(name):
    module, x = MODULES[name]
    comparison = Oracle(module.eval(), (x,), {}, EVAL).check(lambda x: truncate(module(x), 0))
    assert [difference.type for difference in comparison.differences] == ["values"]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_wrong_gradient_is_found_where_the_output_is_right(name):
    module, x = MODULES[name]
    x = x.clone().requires_grad_()
    oracle = Oracle(module.train(), (x,), {}, CallContext("grad", (), True), train={})

    def wrong_backward(x):
        output = module(x)
        return output.detach() + (output - output.detach()) * 1.001

    found = {difference.path for difference in oracle.check(wrong_backward).differences}
    assert "grad.inputs.args[0]" in found
    assert "output" not in found


def test_ill_conditioned_maths_is_not_blamed():
    class Chaotic(nn.Module):
        def forward(self, x):
            return torch.sin(x * 1e6)

    comparison = Oracle(Chaotic().eval(), (torch.rand(1000) + 1,), {}, EVAL).check(lambda x: torch.sin(x * 1e3 * 1e3))
    assert comparison.is_equal


def test_rounding_in_a_mean_whose_terms_cancel_is_not_blamed():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 40000)

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(-1)

    def in_sequence(x):
        return torch.stack([x[..., i::400].cumsum(-1)[..., -1] for i in range(400)], -1).cumsum(-1)[..., -1] / 40000

    comparison = Oracle(Mean().eval(), (x,), {}, EVAL).check(in_sequence)
    assert [difference.text for difference in comparison.differences] == []


def test_a_module_that_cannot_run_in_float64_is_judged_by_its_dtype_and_the_reason_is_told():
    class OnlyFloat32(nn.Module):
        def forward(self, x):
            if x.dtype is not torch.float32:
                raise RuntimeError("no kernel for float64")
            return x.exp()

    x = torch.randn(1000)
    oracle = Oracle(OnlyFloat32().eval(), (x,), {}, EVAL)
    comparison = oracle.check(lambda x: x.exp() * 1.001)
    assert [difference.type for difference in comparison.differences] == ["values"]
    assert any("no kernel for float64" in note for note in comparison.notes)
    assert "tolerance of float32" in comparison.differences[0].text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_module_computes_its_reference_without_a_copy_of_its_weights(dtype, monkeypatch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16))
            self.conv = nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4))
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x):
            x = self.mlp(x)
            x = self.attention(x, x, x)[0].to(self.mlp[0].weight.dtype)
            return self.conv(x) * x.float().mean()

    torch.manual_seed(0)
    module = Net().eval().to(dtype)
    x = torch.randn(2, 4, 16, dtype=dtype)

    def reference():
        twin = to_float64(module)
        args, _ = inputs_to_float64((x,), {})
        with twin.running(), torch.no_grad():
            return twin, twin.module(*args)

    copied, exact = reference()
    monkeypatch.setattr("compilebisect.runtime.reference._LARGEST_COPY_BYTES", 0)
    lent, computed = reference()
    assert copied.module is not module and lent.module is module
    assert computed.dtype is torch.float64
    torch.testing.assert_close(computed, exact, rtol=1e-12, atol=1e-14)
    assert module.mlp[0].weight.dtype is dtype


def test_the_layout_of_what_lies_in_a_cache_is_nobody_elses_business():
    class Cache:
        def __init__(self, keys):
            self.keys = keys

    class Fills(nn.Module):
        def forward(self, x, turned=False):
            return x, Cache(x.t().contiguous().t() if turned else x.clone())

    oracle = Oracle(Fills(), (torch.randn(3, 4),), {}, EVAL)
    assert oracle.check(lambda x: Fills()(x, turned=True)).is_equal


def test_what_only_one_seed_shows_is_noted_and_not_blamed():
    module, x = nn.Linear(4, 4).eval(), torch.randn(3, 4)
    oracle = Oracle(module, (x,), {}, EVAL, seed=5)
    comparison = oracle.check(lambda x: module(x) * (1.5 if torch.initial_seed() == 5 else 1.0))
    assert comparison.is_equal
    assert any("other seeds do not show it" in note for note in comparison.notes)


def test_what_a_further_seed_shows_is_a_finding_although_its_neighbour_hides_it():
    module, x = nn.Linear(4, 4).eval(), torch.randn(3, 4)
    oracle = Oracle(module, (x,), {}, EVAL, seed=5)
    assert not oracle.check(lambda x: module(x) * (1.0 if torch.initial_seed() == 6 else 1.5)).is_equal


def test_a_module_that_differs_from_itself_is_noted_with_figures():
    calls = []

    class Unsteady(nn.Module):
        def forward(self, x):
            calls.append(1)
            return x + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(len(calls)))

    module, x = Unsteady().eval(), torch.randn(50, 4)
    comparison = Oracle(module, (x,), {}, EVAL).check(lambda x: module(x))
    assert comparison.is_equal
    assert any("non-deterministic: eager differs from itself by 0.0" in note for note in comparison.notes)


def test_rounding_that_adds_up_is_noted_with_figures():
    class Grows(nn.Module):
        def forward(self, x):
            for _ in range(2000):
                x = x * 1.0001
            return x

    oracle = Oracle(Grows().eval(), (torch.rand(100),), {}, EVAL)
    comparison = oracle.check(lambda x: x * 1.0001**2000)
    assert comparison.is_equal and comparison.has_excused
    assert not oracle.check(Grows()).has_excused
    assert any("accumulated rounding: eager itself is" in note for note in comparison.notes)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_fast_path_of_eager_that_compiled_code_does_not_take_is_a_divergence():
    """In eval mode eager returns zeros where a padding mask hides a position; compiled code computes something."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    x, mask = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])

    def without_fast_path(x, src_key_padding_mask):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return encoder(x, src_key_padding_mask=src_key_padding_mask)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)

    oracle = Oracle(encoder, (x,), {"src_key_padding_mask": mask}, EVAL)
    assert "output" in {difference.path for difference in oracle.check(without_fast_path).differences}
