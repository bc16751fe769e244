from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilebisect.core.reduce.graph import smaller_graphs, with_operators, without_operators
from compilebisect.core.repro_case import Fill, Graph, GraphInput, Items, Literal, Operator, Ref, TensorValue

ROW = TensorValue(shape=(2, 4))


def operator(name: str, target: str, *args: str, output: TensorValue | None = ROW) -> Operator:
    return Operator(name=name, kind="function", target=target, args=tuple(Ref(arg) for arg in args), output=output)


def graph(*operators: Operator, inputs: tuple[str, ...] = ("x", "w"), output: object = None) -> Graph:
    return Graph(
        inputs=tuple(GraphInput(name=name, value=ROW) for name in inputs),
        operators=operators,
        output=output or Ref(operators[-1].name),
    )


CHAIN = graph(
    operator("a", "torch.matmul", "x", "w"),
    operator("b", "torch.relu", "a"),
    operator("c", "torch.tanh", "b"),
    operator("d", "torch.add", "c", "a"),
)


def reduced(whole: Graph, shows: Callable[[Graph], bool]) -> tuple[Graph, int]:
    search = smaller_graphs(whole)
    tests = 0
    try:
        candidate = next(search)
        while True:
            tests += 1
            candidate = search.send(shows(candidate))
    except StopIteration as stop:
        return stop.value, tests


def targets(part: Graph) -> set[str]:
    return {item.target for item in part.operators}


def test_a_part_takes_what_it_reads_as_inputs_with_their_recorded_likeness():
    part = with_operators(CHAIN, ["c"])
    assert [item.name for item in part.operators] == ["c"]
    assert [(item.name, item.value) for item in part.inputs] == [("b", ROW)]
    assert part.output == Ref("c")


def test_what_nothing_reads_becomes_an_output():
    part = with_operators(CHAIN, ["a", "b"])
    assert [item.name for item in part.inputs] == ["x", "w"]
    assert part.output == Ref("b")
    assert with_operators(CHAIN, ["b", "d"]).output == Items("tuple", (Ref("b"), Ref("d")))


def test_what_cannot_be_an_input_stays_with_its_reader():
    whole = graph(
        operator("pair", "torch.split", "x", output=None),
        operator("left", "operator.getitem", "pair"),
        operator("sum", "torch.add", "left", "w"),
    )
    assert [item.name for item in with_operators(whole, ["left"]).operators] == ["pair", "left"]
    assert [item.name for item in with_operators(whole, ["sum"]).operators] == ["sum"]


def test_an_operator_that_cannot_be_written_is_replaced_by_its_results():
    whole = graph(
        operator("pair", "torch.unwritable", "x", output=None),
        operator("left", "operator.getitem", "pair"),
        operator("sum", "torch.add", "left", "w"),
    )
    part = without_operators(whole, {"pair"})
    assert [item.name for item in part.operators] == ["sum"]
    assert [item.name for item in part.inputs] == ["w", "left"]
    assert without_operators(whole, set()) is whole
    assert without_operators(whole, {"pair", "sum"}).operators == ()


@pytest.mark.parametrize("culprit", ["torch.matmul", "torch.relu", "torch.tanh", "torch.add"])
def test_one_culprit_is_left_alone(culprit: str):
    part, _ = reduced(CHAIN, lambda candidate: culprit in targets(candidate))
    assert targets(part) == {culprit}


def test_an_interplay_is_left_together():
    part, _ = reduced(CHAIN, lambda candidate: {"torch.matmul", "torch.tanh"} <= targets(candidate))
    assert targets(part) == {"torch.matmul", "torch.tanh"}
    assert {item.name for item in part.inputs} == {"x", "w", "b"}


def test_outputs_that_do_not_matter_go():
    whole = graph(
        operator("a", "torch.relu", "x"), operator("b", "torch.tanh", "w"), output=Items("tuple", (Ref("a"), Ref("b")))
    )
    part, _ = reduced(whole, lambda candidate: "torch.tanh" in targets(candidate))
    assert (targets(part), part.output, [item.name for item in part.inputs]) == ({"torch.tanh"}, Ref("b"), ["w"])


def test_saved_tensors_give_way_to_seeded_ones_where_they_may():
    saved = TensorValue(shape=(2, 4), fill=Fill.SAVED, key="x")
    whole = Graph(
        inputs=(GraphInput(name="x", value=saved), GraphInput(name="w", value=saved)),
        operators=(operator("a", "torch.matmul", "x", "w"),),
        output=Ref("a"),
    )

    def shows(candidate: Graph) -> bool:
        return all(item.value.fill is Fill.SAVED for item in candidate.inputs if item.name == "w")

    part, _ = reduced(whole, shows)
    assert [item.value.fill for item in part.inputs] == [Fill.RANDN, Fill.SAVED]


def test_an_operator_between_two_that_are_needed_goes_where_its_reader_can_do_without():
    whole = graph(
        operator("a", "torch.matmul", "x", "w"),
        operator("half", "torch.half", "a", output=TensorValue(shape=(2, 4), dtype="float16")),
        operator("moved", "torch.transpose", "half", output=TensorValue(shape=(4, 2), dtype="float16")),
        operator("d", "torch.tanh", "moved"),
    )

    def shows(candidate: Graph) -> bool:
        # the result of the product has to reach the last operator
        reached = {"a"}
        for item in candidate.operators:
            if any(isinstance(arg, Ref) and arg.name in reached for arg in item.args):
                reached.add(item.name)
        return "torch.matmul" in targets(candidate) and "d" in reached

    part, _ = reduced(whole, shows)
    assert [item.target for item in part.operators] == ["torch.matmul", "torch.transpose", "torch.tanh"]
    assert part.operators[1].args == (Ref("a"),)


def test_bodies_lose_what_they_can_do_without():
    inner = graph(operator("i", "torch.relu", "x"), operator("j", "torch.tanh", "i"), inputs=("x",))
    whole = Graph(
        inputs=(GraphInput(name="x", value=ROW),),
        operators=(
            Operator(name="body", kind="attribute", target="body"),
            operator("y", "torch.checkpoint", "body", "x"),
        ),
        output=Ref("y"),
        children=(("body", inner),),
    )
    part, _ = reduced(whole, lambda candidate: "torch.tanh" in targets(dict(candidate.children)["body"]))
    assert targets(dict(part.children)["body"]) == {"torch.tanh"}


def test_a_switch_stays_with_what_it_governs_when_outputs_go():
    enter = Operator(name="on", kind="function", target="torch.amp.autocast_mode._enter_autocast")
    leave = Operator(name="off", kind="function", target="torch.amp.autocast_mode._exit_autocast", args=(Ref("on"),))
    whole = graph(
        enter,
        operator("a", "torch.matmul", "x", "w"),
        operator("b", "torch.relu", "x"),
        leave,
        output=Items("tuple", (Ref("a"), Ref("b"))),
    )

    def shows(candidate: Graph) -> bool:
        return [item.name for item in candidate.operators if item.name != "b"] == ["on", "a", "off"]

    part, _ = reduced(whole, shows)
    assert [item.name for item in part.operators] == ["on", "a", "off"]


def test_constants_and_bodies_stay_with_those_that_read_them():
    body = graph(operator("inner", "torch.relu", "x"), inputs=("x",))
    whole = Graph(
        inputs=(GraphInput(name="x", value=ROW),),
        operators=(
            Operator(name="true_graph", kind="attribute", target="true_graph"),
            Operator(name="table", kind="attribute", target="table"),
            operator("picked", "torch.cond", "x", "true_graph"),
            operator("sum", "torch.add", "picked", "table"),
        ),
        output=Ref("sum"),
        constants=(("table", ROW),),
        children=(("true_graph", body),),
    )
    picked = with_operators(whole, ["picked"])
    assert (picked.children, picked.constants) == (whole.children, ())
    total = with_operators(whole, ["sum"])
    assert (total.children, total.constants) == ((), whole.constants)


def test_a_long_chain_needs_few_tests():
    names = [f"n{number}" for number in range(256)]
    whole = graph(*(operator(name, f"op{name}", names[i - 1] if i else "x") for i, name in enumerate(names)))
    part, tests = reduced(whole, lambda candidate: "opn77" in targets(candidate))
    assert targets(part) == {"opn77"}
    assert tests <= 12


@given(st.data())
def test_any_part_computes_what_it_says_from_what_it_is_given(data: st.DataObject):
    count = data.draw(st.integers(1, 12))
    names = ["x", "w"]
    operators = []
    for number in range(count):
        args = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2))
        has_likeness = data.draw(st.booleans()) or number == count - 1
        operators.append(operator(f"n{number}", f"op{number}", *args, output=ROW if has_likeness else None))
        names.append(f"n{number}")
    whole = graph(*operators)
    kept = data.draw(st.lists(st.sampled_from([item.name for item in operators]), min_size=1, unique=True))
    part = with_operators(whole, kept)
    known = {item.name for item in part.inputs}
    for item in part.operators:
        assert {arg.name for arg in item.args if isinstance(arg, Ref)} <= known
        known.add(item.name)
    assert set(kept) <= known
    outputs = part.output.items if isinstance(part.output, Items) else (part.output,)
    assert {item.name for item in outputs if isinstance(item, Ref)} <= known
    assert Literal("None") not in outputs
