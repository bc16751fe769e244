import collections
from dataclasses import dataclass, replace

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from compilebisect.core.tolerance import FLOORS
from compilebisect.runtime import figures
from compilebisect.runtime.compare import compare_runs
from compilebisect.runtime.record import RunRecord, alias_pairs

FLOOR = FLOORS["float32"]


@dataclass
class Output:
    logits: torch.Tensor
    extra: object = None


def record(output, **more):
    return RunRecord(output, **({"noise_dtype": "float32"} | more))


def types(eager, compiled, **more):
    if not isinstance(eager, RunRecord):
        eager, compiled = record(eager), record(compiled)
    return [(difference.type, difference.path) for difference in compare_runs(eager, compiled, **more).differences]


def noise(shape=(64, 64), seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("eager", "compiled", "expected"),
    [
        ([1], (1,), [("structure", "output")]),
        ({"a": 1}, {"b": 1}, [("structure", "output")]),
        ({"a": 1}, collections.OrderedDict(a=1), [("structure", "output")]),
        (Output(noise(), 1), Output(noise()), [("structure", "output.extra")]),
        (noise(), None, [("structure", "output")]),
        (torch.eye(2), torch.eye(2).to_sparse(), [("structure", "output")]),
        (torch.ones(1, 3), torch.ones(3), [("shape", "output")]),
        (torch.ones(4, 1), torch.ones(4, 4), [("shape", "output")]),
        (torch.ones(3), torch.ones(3).double(), [("dtype", "output")]),
        (torch.ones(3), torch.ones(3, device="meta"), [("device", "output")]),
        (noise().t(), noise().t().contiguous(), [("stride", "output")]),
        ([1, 2.5, "a", None, True], [1, 2.5, "b", None, True], [("values", "output[2]")]),
        ((1, 2), (1, 3), [("values", "output[1]")]),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), [("values", "output")]),
        (torch.tensor([True]), torch.tensor([False]), [("values", "output")]),
        (2.5, 2.6, [("values", "output")]),
        (torch.tensor([1.0, torch.nan]), torch.tensor([torch.nan, torch.nan]), [("nonfinite", "output")]),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, -torch.inf]), [("nonfinite", "output")]),
        (torch.eye(2).to_sparse(), (torch.eye(2) * 2).to_sparse(), [("values", "output.values()")]),
    ],
)
def test_each_kind_of_difference_has_its_own_type(eager, compiled, expected):
    assert types(eager, compiled) == expected


@pytest.mark.parametrize(
    ("eager", "compiled"),
    [
        (torch.tensor([torch.nan, torch.inf, 1.0]), torch.tensor([torch.nan, torch.inf, 1.0])),
        (torch.ones(1, 3).as_strided((1, 3), (7, 1)), torch.ones(1, 3)),
        (torch.empty(0, 3).t(), torch.empty(3, 0)),
        (noise()[:, ::2], noise()[:, ::2].contiguous()),
        (torch.ones(4, 1).expand(4, 3), torch.ones(4, 3)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (float("nan"), float("nan")),
        (1.0, 1.0 + 1e-7),
        (torch.tensor([-3.4e38, 1.0]), torch.tensor([-torch.inf, 1.0])),
        (noise(), torch.nn.Parameter(noise())),
        (torch.zeros(0), torch.zeros(0)),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j])),
    ],
)
def test_what_does_not_matter_is_no_difference(eager, compiled):
    if isinstance(compiled, torch.nn.Parameter):
        eager = compiled.detach().clone()
    assert types(eager, compiled) == []


def test_nested_and_meta_tensors_are_compared_as_far_as_they_can_be():
    def nested(value):
        return torch.nested.nested_tensor([torch.ones(2), torch.full((3,), value)], layout=torch.jagged)

    assert types(nested(1.0), nested(1.0)) == []
    assert types(nested(1.0), nested(2.0)) == [("values", "output.unbind()[1]")]
    assert types(torch.ones(2, device="meta"), torch.ones(2, device="meta")) == []
    assert types(torch.ones(2, device="meta"), torch.ones(3, device="meta")) == [("shape", "output")]


def test_one_wrong_element_among_a_million_is_found_and_placed():
    eager = noise((1000, 1100))
    compiled = eager.clone()
    compiled[777, 888] += 4 * FLOOR.largest * FLOOR.eps * (eager[777, 888].abs() + figures.robust_scale(eager))
    comparison = compare_runs(record(eager), record(compiled), reference=lambda: record(eager.double() + 1e-9))
    (difference,) = comparison.differences
    assert difference.type == "values"
    assert difference.figures.worst_index == (777, 888)
    assert difference.figures.exceeding == 1
    assert "[777, 888]" in difference.text


def test_a_small_fault_of_all_elements_is_found():
    eager = noise((300, 300))
    compiled = eager * (1 + 8 * FLOOR.rms * FLOOR.eps)
    exact = eager.double() * (1 + 0.2 * FLOOR.eps)
    assert types(record(eager), record(compiled), reference=lambda: record(exact)) == [("values", "output")]


def test_a_fault_of_ordinary_values_does_not_hide_behind_fill_values_of_a_mask():
    eager = noise((64, 64))
    eager[:, 32:] = torch.finfo(torch.float32).min
    compiled = eager.clone()
    compiled[3, 4] += 1e-3
    assert types(eager, compiled) == [("values", "output")]
    eager[:, 40:] = -1e9
    compiled = eager.clone()
    compiled[3, 4] += 1e-3
    assert types(eager, compiled) == [("values", "output")]


def test_the_reference_is_not_computed_where_a_cheap_check_decides():
    def never():
        raise AssertionError("the reference was computed")

    eager = noise()
    assert types(record(eager), record(eager * (1 + 1e-7)), reference=never, repeat=never) == []
    assert types(record(torch.ones(2)), record(torch.ones(3)), reference=never, repeat=never) == [("shape", "output")]


def test_compiled_may_differ_while_it_is_as_near_to_float64_as_eager():
    exact = noise((200, 200)).double()
    eager = (exact + 2e-5 * noise((200, 200), 1)).float()
    compiled = (exact + 2e-5 * noise((200, 200), 2)).float()
    assert types(record(eager), record(compiled)) == [("values", "output")]
    assert types(record(eager), record(compiled), reference=lambda: record(exact)) == []


def test_a_flipped_tie_of_integers_is_no_divergence_and_another_flip_is():
    eager, tied = torch.tensor([1, 5, 7, 2]), torch.tensor([1, 6, 7, 2])
    nudged = [record(eager), record(torch.tensor([1, 9, 7, 2]))]
    comparison = compare_runs(record(eager), record(tied), nudged=nudged)
    assert comparison.is_equal and comparison.has_excused
    assert "ties" in comparison.notes[0]
    wrong = torch.tensor([1, 6, 8, 2])
    assert types(record(eager), record(wrong), nudged=nudged) == [("values", "output")]


def test_values_behind_a_flipped_choice_are_no_divergence():
    eager = noise((64, 4))
    flipped, nudged = eager.clone(), eager.clone()
    flipped[5], nudged[5] = 9.0, -7.0
    assert types(record(eager), record(flipped), nudged=[record(eager), record(eager), record(nudged)]) == []
    flipped[6] = 9.0
    assert types(record(eager), record(flipped), nudged=[record(nudged), record(eager)]) == [("values", "output")]


def test_overflow_that_only_eager_has_is_no_divergence_and_one_that_only_compiled_has_is():
    exact = torch.tensor([70000.0, 1.0], dtype=torch.float64)
    finite = torch.tensor([6.0e4, 1.0]).half()
    wide = torch.tensor([3.0, 1.0]).half()
    overflown = torch.tensor([torch.inf, 1.0]).half()
    assert types(record(overflown), record(wide), reference=lambda: record(torch.tensor([3.0, 1.0]).double())) == []
    assert types(record(wide), record(overflown), reference=lambda: record(torch.tensor([3.0, 1.0]).double())) == [
        ("nonfinite", "output")
    ]
    assert types(record(finite), record(overflown), reference=lambda: record(exact)) == [("nonfinite", "output")]


def test_an_eager_module_that_differs_from_itself_is_noted_and_not_blamed():
    comparison = compare_runs(record(noise(seed=1)), record(noise(seed=2)), repeat=record(noise(seed=3)))
    assert comparison.is_equal
    assert "non-deterministic" in comparison.notes[0]


def test_writes_to_inputs_and_state_that_only_one_run_does_are_mutations():
    same = noise()
    eager = record(same, inputs_after=((torch.ones(2),), {"cache": [1]}), state={"0.step": 1, "total": torch.ones(2)})
    compiled = record(same, inputs_after=((torch.zeros(2),), {"cache": [1, 2]}), state={"total": torch.zeros(2)})
    assert types(eager, compiled) == [
        ("mutation", "inputs.args[0]"),
        ("mutation", "inputs.kwargs['cache']"),
        ("mutation", "state.0.step"),
        ("mutation", "state.total"),
    ]
    assert types(eager, eager) == []


def test_gradients_are_compared_and_none_equals_zeros():
    same = noise()
    eager = record(same, grads={"weight": noise(), "bias": None, "scale": torch.zeros(2)})
    assert types(eager, record(same, grads={"weight": noise(), "bias": torch.zeros(2), "scale": None})) == []
    wrong = record(same, grads={"weight": -noise(), "bias": torch.ones(2), "scale": torch.zeros(2)})
    assert types(eager, wrong) == [("values", "grad.weight"), ("values", "grad.bias")]


def test_memory_that_only_compiled_shares_is_a_fault_and_a_copy_too_many_is_noted():
    value = noise()
    own, shared = record(value), record(value, aliases=frozenset({("output", "inputs.args[0]")}))
    assert types(own, shared) == [("aliasing", "output")]
    comparison = compare_runs(shared, own)
    assert comparison.is_equal
    assert "compiled returns a copy" in comparison.notes[0]


def test_aliases_are_found_through_views():
    base = torch.zeros(6)
    output = {"a": base[2:].view(2, 2), "b": base.clone()}
    assert alias_pairs(output, [("x", base[:1])]) == {("output['a']", "x")}


def test_requires_grad_is_compared():
    value = noise()
    differs = replace(record(value), requires_grad=frozenset({"output"}))
    assert types(record(value), differs) == [("requires_grad", "output")]


def test_a_constant_output_is_said():
    assert compare_runs(record(torch.zeros(4)), record(torch.zeros(4))).is_constant_output
    assert not compare_runs(record(noise()), record(noise())).is_constant_output
    assert not compare_runs(record([torch.zeros(4), noise()]), record([torch.zeros(4), noise()])).is_constant_output


def test_the_users_tolerance_decides_alone():
    eager = noise()
    assert types(record(eager), record(eager * 1.05), tolerance=(0.1, 0.0)) == []
    assert types(record(eager), record(eager * (1 + 1e-6)), tolerance=(1e-8, 0.0)) == [("values", "output")]


def test_large_tensors_are_compared_piece_by_piece():
    tensor = torch.zeros(3, 1 << 20).t()
    sizes = [piece.numel() for (piece,) in figures.pieces(tensor)]
    assert sum(sizes) == tensor.numel()
    assert max(sizes) <= figures.PIECE
    assert all(
        piece.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for (piece,) in figures.pieces(tensor)
    )


def test_pieces_give_what_the_whole_would_give():
    value = noise((3, 1 << 20)).t()
    other = value.clone()
    assert figures.is_close(other, value, 1e-6, 1.0) and figures.is_equal(other, value)
    other[700_000, 1] += 1e-3
    assert not figures.is_close(other, value, 1e-6, 1.0) and not figures.is_equal(other, value)
    other[700_000, 1] = torch.inf
    mask = figures.mark_class_mismatches(other, value)
    assert figures.first_marked(mask) == (700_000, 1) and figures.count_marked(mask) == 1


@pytest.mark.parametrize(
    ("value", "reference", "expected"),
    [
        ([torch.nan, torch.inf, -torch.inf], [torch.nan, torch.inf, -torch.inf], True),
        ([1.0], [torch.inf], False),
        ([torch.inf], [1.0], False),
        ([torch.inf], [-torch.inf], False),
        ([torch.nan], [1.0], False),
        ([1.0], [torch.nan], False),
        ([1.0 + 1e-6], [1.0], True),
    ],
)
def test_a_quick_look_never_takes_nan_or_infinity_for_near(value, reference, expected):
    assert figures.is_close(torch.tensor(value), torch.tensor(reference), 1e-5, 1.0) is expected


def test_measuring_leaves_the_number_of_threads_alone():
    before = torch.get_num_threads()
    figures.error_figures(noise(), noise(seed=1), 1.0)
    assert torch.get_num_threads() == before


def test_a_large_tensor_is_compared_in_little_memory(monkeypatch):
    monkeypatch.setattr(figures, "PIECE", 1 << 16)
    eager = noise((40, 1 << 16))
    compiled = eager * (1 + 1e-7)
    compiled[39, 5] = 9.0
    sizes = []

    class Allocations(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.untyped_storage().nbytes() not in (eager.nbytes,):
                sizes.append(out.untyped_storage().nbytes())
            return out

    with Allocations():
        assert types(eager, compiled) == [("values", "output")]
    assert max(sizes) <= eager.numel(), "a mask of one byte for each element is the most"


def test_a_wrapper_is_compared_by_the_tensors_that_it_names():
    eager, other = TwoTensor(torch.ones(3), torch.ones(3)), TwoTensor(torch.ones(3), torch.tensor([1.0, 1.0, 2.0]))
    assert types(eager, eager) == []
    assert types(eager, other) == [("values", "output.b")]


def test_what_a_wrapper_names_beside_its_tensors_is_no_value():
    class Placed(TwoTensor):
        def __tensor_flatten__(self):
            return ["a", "b", "place"], None

    eager, other = Placed(torch.ones(3), torch.ones(3)), Placed(torch.ones(3), torch.zeros(3))
    eager.place = other.place = "here"
    assert types(eager, other) == [("values", "output.b")]


def test_zeros_without_memory_have_values_and_meta_tensors_have_none():
    assert types(torch._efficientzerotensor(3), torch.zeros(3)) == []
    assert types(torch._efficientzerotensor(3), torch.ones(3)) == [("values", "output")]
    meta = record(torch.ones(3, device="meta"))
    assert not compare_runs(meta, meta).has_excused


def test_a_class_that_does_not_let_itself_be_read_is_noted_and_no_difference():
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, kinds, args=(), kwargs=None):
            raise LookupError(function.__name__)

    refusing = record(torch.ones(3).as_subclass(Refusing))
    comparison = compare_runs(refusing, refusing)
    assert comparison.is_equal and comparison.has_excused
    assert "does not allow it" in comparison.notes[0] or "cannot be read" in comparison.notes[0]
