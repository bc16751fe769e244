"""Which strategy is recommended, to which lengths inputs are padded, and what a user is told to write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilebisect.core.buckets import bucket_for, bucket_lengths, buckets_of, named_dims, padded_sizes, size_numbers
from compilebisect.core.input_spec import parse_spec
from compilebisect.core.strategies import Mark, Strategy, StrategyResult, StrategyRun, compared, recommend
from compilebisect.core.strategy_lines import code_lines


def result(strategy: Strategy, total_s: float, run_s: float = 1.0, **fields: Any) -> StrategyResult:
    runs = (StrategyRun(variant=1, first_s=total_s, run_s=run_s),)
    return StrategyResult(strategy=strategy, total_s=total_s, run_s=run_s, runs=runs, **fields)


def test_the_simplest_within_five_percent_of_the_fastest_is_taken():
    chosen, reason = recommend([result(Strategy.STATIC, 10.0), result(Strategy.MARK_DYNAMIC, 10.4)])
    assert chosen is not None and chosen.strategy is Strategy.MARK_DYNAMIC
    assert "10.4 s" in reason and "static (10 s)" in reason
    chosen, _ = recommend([result(Strategy.STATIC, 10.0), result(Strategy.MARK_DYNAMIC, 10.6)])
    assert chosen is not None and chosen.strategy is Strategy.STATIC


@given(st.lists(st.tuples(st.sampled_from(Strategy), st.floats(0.01, 100), st.booleans()), min_size=1, max_size=5))
def test_no_recommended_strategy_is_slower_than_the_fastest_by_more(measured: list[tuple[Strategy, float, bool]]):
    results = [result(strategy, total, error="no" if fails else "") for strategy, total, fails in measured]
    chosen, reason = recommend(results)
    fit = [one.total_s for one in results if not one.error]
    assert (chosen is None) == (not fit) and reason
    assert chosen is None or (not chosen.error and chosen.total_s <= 1.05 * min(fit))


def test_what_failed_or_cannot_serve_other_sizes_is_not_taken():
    results = [
        result(Strategy.AUTOMATIC, 9.0),
        result(Strategy.MARK_DYNAMIC, 1.0, error="ConstraintViolationError"),
        result(Strategy.STATIC, 2.0, not_candidate="the spec says that seq takes other sizes too"),
    ]
    chosen, reason = recommend(results)
    assert chosen is results[0]
    assert "static took 2 s, but the spec says" in reason
    assert recommend(results[1:])[0] is None


def test_the_reason_says_from_when_on_faster_runs_pay_off():
    _, reason = recommend([result(Strategy.AUTOMATIC, 10.0, 2.0), result(Strategy.STATIC, 20.0, 1.0)])
    assert "static is faster (1 s against 2 s" in reason and "about 11 passes" in reason
    _, reason = recommend([result(Strategy.AUTOMATIC, 10.0, 1.01), result(Strategy.STATIC, 20.0, 1.0)])
    assert "passes" not in reason


def test_a_dynamic_strategy_that_compiles_for_each_size_says_so():
    runs = tuple(StrategyRun(variant=number, first_s=1.0, run_s=1.0) for number in range(3))
    static = result(Strategy.STATIC, 20.0, compiles=3)

    def reason_for(compiles: int) -> str:
        automatic = StrategyResult(strategy=Strategy.AUTOMATIC, total_s=9.0, run_s=1.0, compiles=compiles, runs=runs)
        return recommend([automatic, static])[1]

    assert "compiles for each size anew" in reason_for(3)
    assert "anew" not in reason_for(2)


def test_a_recommendation_of_padding_names_what_leaves_the_output_as_it_is():
    _, reason = recommend([result(Strategy.BUCKETS, 5.0), result(Strategy.STATIC, 9.0)])
    assert "padded positions" in reason and "static is the fastest (9 s)" in reason


def test_runs_are_held_against_static_ones_and_special_sizes_are_named():
    sizes = [{"seq": 1}]
    seen = compared(sizes, [result(Strategy.STATIC, 5.0, 2.0), result(Strategy.AUTOMATIC, 5.0, 3.0)], least={"n": 0})
    assert [one.runs[0].against_static for one in seen.results] == [1.0, 1.5]
    assert "n = 0, seq = 1" in seen.notes[0]
    plain = compared([{"seq": 2}], [result(Strategy.AUTOMATIC, 5.0)])
    assert plain.notes == () and plain.results[0].runs[0].against_static is None
    assert plain.recommended is Strategy.AUTOMATIC


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ((16, 32), (16, 32)),
        ((16, 32, 64), (32, 64)),
        ((10, 11, 12, 100), (12, 100)),
        ((1, 2, 4, 8, 16, 32, 64, 128), (8, 32, 64, 128)),
        ((30, 31, 32, 33, 34), (31, 34)),
    ],
)
def test_bucket_lengths(sizes: tuple[int, ...], lengths: tuple[int, ...]):
    assert bucket_lengths(sizes) == lengths


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60))
def test_every_size_fits_into_one_of_at_most_four_buckets(sizes: list[int]):
    lengths = bucket_lengths(sizes)
    assert len(lengths) <= 4 and max(lengths) == max(sizes)
    assert all(bucket_for(size, lengths) >= size for size in sizes)
    assert len(lengths) >= min(2, len(set(sizes)))


SPEC = {
    "args": [{"shape": ["batch", "seq"], "dtype": "int64"}, {"dim": "seq"}],
    "kwargs": {"rest": {"list": [[4], {"dict": {"mask": [2, "seq"]}}]}},
    "dims": {"batch": [2, 2, 2], "seq": [8, 16, 24]},
}


def test_dims_are_found_by_the_path_of_their_tensor():
    spec = parse_spec(SPEC)
    assert named_dims(spec) == {
        "args[0]": {0: "batch", 1: "seq"},
        "kwargs['rest'][0]": {},
        "kwargs['rest'][1]['mask']": {1: "seq"},
    }
    assert size_numbers(spec) == {"args[1]": "seq"}
    assert buckets_of(spec) == ({"seq": (8, 24)}, "")
    assert padded_sizes(spec.dims_of_variant(0), {"seq": (16, 24)}) == {"seq": 16}
    assert padded_sizes(spec.dims_of_variant(1), {"seq": (16, 24)}) == {}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"args": [[2, "n"]], "dims": {"n": [4, 8]}}, "nothing to share"),
        ({"args": [[2, "n"]], "dims": {"n": [4]}}, "no named dim has several"),
        ({"args": [{"dim": "n"}], "dims": {"n": [4, 5, 6]}}, "no size of a tensor"),
        ({"args": [{"call": "a.py:f", "kwargs": {"n": {"dim": "n"}}}], "dims": {"n": [4, 5, 6]}}, "function"),
        ({"args": [{"shape": ["n"], "stride": [2]}], "dims": {"n": [4, 5, 6]}}, "strides"),
    ],
)
def test_why_inputs_cannot_be_padded(spec: Any, reason: str):
    buckets, why = buckets_of(parse_spec(spec))
    assert not buckets and reason in why


def test_lines_speak_of_the_parameters_of_forward():
    marks = [Mark(path="args[0]", dim=1, name="seq", min=2, max=64), Mark(path="kwargs['d']['m']", dim=0)]
    lines = code_lines(
        Strategy.MARK_DYNAMIC, marks, {}, {}, parameters={"args[0]": "ids", "args[1]": "n", "kwargs['d']": "d"}
    )
    assert lines[-2:] == (
        "torch._dynamo.mark_dynamic(ids, 1, min=2, max=64)",
        "torch._dynamo.mark_dynamic(d['m'], 0)",
    )
