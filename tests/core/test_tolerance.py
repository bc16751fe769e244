import msgspec
import pytest

from compilebisect.core.tolerance import (
    FLOORS,
    ErrorFigures,
    Outcome,
    ValueFigures,
    excess,
    floor_for,
    judge,
    reference_is_usable,
)

EPS = FLOORS["float32"].eps


def figures(difference, **more):
    more.setdefault("max_abs_error", difference[0])
    given = {"dtype": "float32", "noise_dtype": "float32", "count": 1000, "scale": 1.0, "context_scale": 1.0} | more
    return ValueFigures(difference=ErrorFigures(*difference), **given)


def test_a_difference_below_the_floor_is_fine_without_any_other_run():
    assert judge(figures((10 * EPS, 2 * EPS))).outcome is Outcome.OK


def test_the_excess_of_a_divergence_is_measured_by_the_most_generous_yardstick():
    """The figures of a small Phi in training, on a GPU: the root mean square decides, against float64."""
    seen = figures(
        (1.22e-5, 1.73e-6),
        compiled=ErrorFigures(1.17e-5, 1.65e-6),
        eager=ErrorFigures(1.99e-6, 4.31e-7),
        nudged=ErrorFigures(3.08e-6, 6.15e-7),
        repeated=ErrorFigures(0.0, 0.0),
    )
    verdict = judge(seen)
    assert verdict.is_fault and verdict.excess == pytest.approx(1.24, abs=0.01)
    assert excess(seen) == verdict.excess
    assert judge(seen, tolerance=(0.0, 0.0)).excess is None


def test_one_wrong_element_in_a_million_is_a_divergence():
    verdict = judge(
        figures((0.5, 0.5e-3), compiled=ErrorFigures(0.5, 0.5e-3), eager=ErrorFigures(2 * EPS, 0.3 * EPS), count=10**6)
    )
    assert verdict.is_fault
    assert verdict.yardstick == "float64 reference"


def test_a_small_scale_error_of_all_elements_is_a_divergence_though_no_element_stands_out():
    error = ErrorFigures(15 * EPS, 9 * EPS)
    verdict = judge(figures((15 * EPS, 9 * EPS), compiled=error, eager=ErrorFigures(EPS, 0.3 * EPS)))
    assert verdict.is_fault


def test_compiled_no_worse_than_eager_against_float64_is_fine_however_far_apart_they_are():
    verdict = judge(figures((4e-3, 1e-3), compiled=ErrorFigures(2e-3, 5e-4), eager=ErrorFigures(3e-3, 8e-4)))
    assert verdict.outcome is Outcome.ACCUMULATED_ROUNDING
    assert verdict.yardstick == "float64 reference"
    assert "eager itself is 0.0008 off float64, compiled 0.0005" in verdict.text
    near = judge(figures((20 * EPS, 6 * EPS), compiled=ErrorFigures(9 * EPS, EPS), eager=ErrorFigures(9 * EPS, EPS)))
    assert near.outcome is Outcome.OK, "what the dtype's own tolerance allows is not worth a word"


def test_two_ulp_of_bfloat16_are_rounding_also_where_the_output_is_float32():
    two_ulp = 2 * FLOORS["bfloat16"].eps
    assert judge(figures((two_ulp, 0.002), dtype="float32", noise_dtype="bfloat16")).outcome is Outcome.OK
    assert judge(figures((two_ulp, 0.002), dtype="float32", noise_dtype="float32")).is_fault


def test_a_reference_equal_to_eager_says_nothing_and_the_tolerance_of_the_dtype_decides():
    same = {"compiled": ErrorFigures(40 * EPS, 9 * EPS), "eager": ErrorFigures(0.0, 0.0)}
    passing = figures((40 * EPS, 9 * EPS), **same)
    assert not reference_is_usable(passing)
    assert judge(passing).outcome is Outcome.OK
    assert judge(figures((80 * EPS, 9 * EPS), **same)).is_fault


def test_a_reference_that_drew_other_random_numbers_does_not_excuse_a_wrong_result():
    strange = {"compiled": ErrorFigures(1.0, 0.5), "eager": ErrorFigures(1.0, 0.5)}
    assert judge(figures((0.5, 0.1), nudged=ErrorFigures(4 * EPS, EPS), has_other_draws=True, **strange)).is_fault
    assert judge(figures((0.5, 0.1), nudged=ErrorFigures(4 * EPS, EPS), **strange)).is_fault


def test_ill_conditioned_maths_is_no_fault_of_the_compiler():
    verdict = judge(figures((0.3, 0.1), nudged=ErrorFigures(0.4, 0.2)))
    assert verdict.outcome is Outcome.ILL_CONDITIONED


def test_noise_excuses_only_in_proportion_to_eagers_own_error():
    exact = {"eager": ErrorFigures(0.2 * EPS, 0.1 * EPS), "nudged": ErrorFigures(700 * EPS, 66 * EPS)}
    wrong = ErrorFigures(64 * EPS, 40 * EPS)
    assert judge(figures((64 * EPS, 40 * EPS), compiled=wrong, **exact)).is_fault
    right = ErrorFigures(12 * EPS, 5 * EPS)
    assert judge(figures((12 * EPS, 5 * EPS), compiled=right, **exact)).outcome is Outcome.OK_BY_NOISE


def test_a_module_that_differs_from_itself_is_non_deterministic():
    verdict = judge(figures((0.3, 0.1), repeated=ErrorFigures(0.3, 0.1)))
    assert verdict.outcome is Outcome.NON_DETERMINISTIC


def test_a_gradient_that_is_zero_in_exact_maths_may_be_any_small_noise():
    noise = {"compiled": ErrorFigures(4.0, 1.9), "eager": ErrorFigures(1.0, 0.8), "nudged": ErrorFigures(1.0, 0.5)}
    assert not judge(figures((3.0, 2.5), scale=1e-9, context_scale=1.0, **noise)).is_fault
    assert not judge(figures((1.0, 1.0), scale=0.0, context_scale=1.0, max_abs_error=1e-8)).is_fault
    assert judge(figures((1.0, 1.0), scale=0.0, context_scale=1.0, max_abs_error=1e-3)).is_fault
    assert not judge(figures((1.0, 1.0), scale=1e-5, context_scale=10.0, max_abs_error=5e-5)).is_fault
    assert judge(figures((1.0, 1.0), scale=1.0, context_scale=10.0, max_abs_error=5e-5)).is_fault


def test_the_users_tolerance_overrides_everything():
    huge = figures((0.5, 0.5), exceeding=0, compiled=ErrorFigures(0.5, 0.5), eager=ErrorFigures(EPS, EPS))
    assert judge(huge, (1.0, 0.0)).outcome is Outcome.OK
    tiny = figures((EPS, EPS), exceeding=1)
    verdict = judge(tiny, (0.0, 0.0))
    assert verdict.is_fault
    assert verdict.yardstick == "given tolerance rtol=0, atol=0"


@pytest.mark.parametrize("dtype", sorted(FLOORS))
def test_a_fault_of_four_times_the_floor_is_found_in_each_dtype(dtype):
    floor = floor_for(dtype)
    largest, rms = 4 * floor.largest * floor.eps, 4 * floor.rms * floor.eps
    eager = ErrorFigures(0.5 * floor.eps, 0.1 * floor.eps)
    one_element = figures(
        (largest, 0.0), dtype=dtype, noise_dtype=dtype, compiled=ErrorFigures(largest, 0.0), eager=eager
    )
    all_elements = msgspec.structs.replace(
        one_element, difference=ErrorFigures(rms, rms), compiled=ErrorFigures(rms, rms)
    )
    assert judge(one_element).is_fault
    assert judge(all_elements).is_fault


@pytest.mark.parametrize("dtype", sorted(FLOORS))
def test_each_floor_names_its_source(dtype):
    assert FLOORS[dtype].source


def test_a_single_number_that_eager_never_gives_twice_is_not_judged():
    clock = figures((30.0, 30.0), repeated=ErrorFigures(0.4, 0.4), count=1, is_number=True)
    assert judge(clock).outcome is Outcome.NON_DETERMINISTIC
    assert judge(msgspec.structs.replace(clock, is_number=False)).is_fault
    assert judge(msgspec.structs.replace(clock, repeated=ErrorFigures(1e-3, 1e-3))).is_fault
