from __future__ import annotations

from collections.abc import Callable

from compilebisect.core.reduce.graph_inputs import Steps, fewer_inputs, plainer_dtypes, plainer_inputs, smaller_sizes
from compilebisect.core.repro_case import Fill, Graph, GraphInput, Items, Literal, Operator, Ref, TensorValue


def graph(*operators: Operator, **inputs: TensorValue | Literal) -> Graph:
    made = tuple(
        GraphInput(name=name, value=value, origin="weight" if name == "w" else "") for name, value in inputs.items()
    )
    return Graph(inputs=made, operators=operators, output=Ref(operators[-1].name))


def call(name: str, target: str, *args: object) -> Operator:
    return Operator(name=name, kind="method", target=target, args=args)


def simplified(
    simplify: Callable[[Graph], Steps], whole: Graph, shows: Callable[[Graph], bool]
) -> tuple[dict[str, object], Graph, int]:
    """Drive a pass; returns the inputs by name, the graph and the number of questions."""
    search, tests = simplify(whole), 0
    try:
        candidate = next(search)
        while True:
            tests += 1
            candidate = search.send(shows(candidate))
    except StopIteration as stop:
        part = stop.value if stop.value is not None else whole
    return {item.name: item.value for item in part.inputs}, part, tests


ADD = call("y", "add", Ref("x"), Ref("w"))
ODD = TensorValue(shape=(4, 6), stride=(1, 4), requires_grad=True, is_parameter=True, fill=Fill.SAVED, key="k")


def test_inputs_that_do_not_matter_become_plain_in_one_step():
    inputs, _, tests = simplified(plainer_inputs, graph(ADD, x=ODD, w=ODD), lambda candidate: True)
    assert inputs == {"x": TensorValue(shape=(4, 6)), "w": TensorValue(shape=(4, 6))}
    assert tests == 1


def test_the_one_layout_and_the_one_value_that_matter_stay():
    def shows(candidate: Graph) -> bool:
        x, w = (item.value for item in candidate.inputs)
        return isinstance(x, TensorValue) and x.stride == (1, 4) and w.fill is Fill.SAVED

    inputs, _, _ = simplified(plainer_inputs, graph(ADD, x=ODD, w=ODD), shows)
    assert inputs["x"] == TensorValue(shape=(4, 6), stride=(1, 4))
    assert inputs["w"] == TensorValue(shape=(4, 6), fill=Fill.SAVED, key="k")


def test_saved_integers_and_flags_are_seeded_in_their_own_way():
    saved = [TensorValue(shape=(4,), dtype=dtype, fill=Fill.SAVED, key="k") for dtype in ("int64", "bool")]
    inputs, _, _ = simplified(plainer_inputs, graph(ADD, x=saved[0], w=saved[1]), lambda candidate: True)
    assert inputs["x"] == TensorValue(shape=(4,), dtype="int64", fill=Fill.RANDINT, low=0, high=2)
    assert inputs["w"] == TensorValue(shape=(4,), dtype="bool", fill=Fill.BOOL)


def test_a_low_precision_goes_together_with_the_casts_to_it():
    half = TensorValue(shape=(2,), dtype="bfloat16")
    whole = graph(
        call("h", "to", Ref("x"), Literal("torch.bfloat16")), call("y", "add", Ref("h"), Ref("w")), x=half, w=half
    )
    inputs, part, _ = simplified(plainer_dtypes, whole, lambda candidate: True)
    assert {value.dtype for value in inputs.values()} == {"float32"}
    assert part.operators[0].args[1] == Literal("torch.float32")
    inputs, _, _ = simplified(plainer_dtypes, whole, lambda candidate: False)
    assert {value.dtype for value in inputs.values()} == {"bfloat16"}


def test_a_number_among_the_inputs_is_written_where_it_is_read():
    whole = graph(call("y", "add", Ref("x"), Ref("scale")), x=TensorValue(shape=(2,)), scale=Literal("0.5"))
    inputs, part, _ = simplified(fewer_inputs, whole, lambda candidate: True)
    assert list(inputs) == ["x"]
    assert part.operators[0].args == (Ref("x"), Literal("0.5"))


VIEWED = graph(
    call("v", "view", Ref("x"), Items("tuple", (Literal("-1"), Literal("12"), Literal("36")))),
    call("y", "matmul", Ref("v"), Ref("w")),
    x=TensorValue(shape=(5, 12, 36)),
    w=TensorValue(shape=(36, 12), stride=(1, 36)),
)


def test_a_size_shrinks_at_all_places_at_once():
    inputs, part, tests = simplified(smaller_sizes, VIEWED, lambda candidate: True)
    assert inputs["w"] == TensorValue(shape=(2, 2), stride=(1, 2))
    assert part.operators[0].args[1] == Items("tuple", (Literal("-1"), Literal("2"), Literal("2")))
    assert tests == 3  # without the batch, without the next dimension, then all sizes


def test_a_size_and_its_multiple_shrink_together():
    def shows(candidate: Graph) -> bool:
        x = candidate.inputs[0].value
        return isinstance(x, TensorValue) and x.shape[0] == 5 and 3 * x.shape[1] == x.shape[2]

    inputs, part, _ = simplified(smaller_sizes, VIEWED, shows)
    assert inputs["x"] == TensorValue(shape=(5, 2, 6))
    assert inputs["w"] == TensorValue(shape=(6, 2), stride=(1, 6))
    assert part.operators[0].args[1] == Items("tuple", (Literal("-1"), Literal("2"), Literal("6")))


def test_the_batch_goes_from_all_inputs_that_have_it_and_from_no_parameter():
    x, m, w = (TensorValue(shape=shape) for shape in ((8, 2, 2), (8, 2), (8, 2)))
    whole = graph(ADD, x=x, m=m, w=w)

    def shows(candidate: Graph) -> bool:
        shapes = [item.value.shape for item in candidate.inputs if isinstance(item.value, TensorValue)]
        return len(shapes[0]) == len(shapes[1]) + 1 and shapes[2] == (8, 2)

    inputs, _, _ = simplified(smaller_sizes, whole, shows)
    assert inputs == {"x": TensorValue(shape=(2, 2)), "m": TensorValue(shape=(2,)), "w": w}


def test_indices_stay_within_what_became_shorter():
    whole = graph(
        call("y", "embedding", Ref("i"), Ref("w")),
        i=TensorValue(shape=(2,), dtype="int64", fill=Fill.RANDINT, high=1000),
        w=TensorValue(shape=(1000, 2)),
    )
    inputs, _, _ = simplified(smaller_sizes, whole, lambda candidate: True)
    assert inputs == {
        "i": TensorValue(shape=(2,), dtype="int64", fill=Fill.RANDINT, high=2),
        "w": TensorValue(shape=(2, 2)),
    }


def test_a_tensor_with_gaps_in_its_memory_and_a_saved_one_keep_their_sizes():
    gaps = TensorValue(shape=(4, 6), stride=(12, 2), storage=47)
    for kept in (gaps, TensorValue(shape=(4, 6), fill=Fill.SAVED, key="k")):
        inputs, _, _ = simplified(smaller_sizes, graph(ADD, x=kept, w=TensorValue(shape=(9,))), lambda candidate: True)
        assert inputs["x"] == kept
        assert inputs["w"] == TensorValue(shape=(2,))
