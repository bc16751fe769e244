"""When numbers count as equal: a floor for each dtype, and the verdict on the figures of one comparison.

Errors are relative to |reference| + scale, element by element, where scale is the output's own robust magnitude; so
neither elements near zero nor a few huge ones decide what is small. Each error has two figures, the largest and the
root mean square: the first finds one wrong element in a million, the second a small fault of all elements.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec


class Floor(NamedTuple):
    """What two right results may differ by, in multiples of the dtype's `eps`.

    `largest` and `rms` hold where nothing but the eager result is known to be near; `alone_*` where there is no
    float64 reference to tell rounding from a fault.
    """

    eps: float
    largest: float
    rms: float
    alone_largest: float
    alone_rms: float
    source: str

    @property
    def limit(self) -> ErrorFigures:
        """The errors that are always allowed."""
        return ErrorFigures(self.largest * self.eps, self.rms * self.eps)

    @property
    def limit_alone(self) -> ErrorFigures:
        """The errors that are allowed where there is no float64 reference."""
        return ErrorFigures(self.alone_largest * self.eps, self.alone_rms * self.eps)


# Source: eps are those of torch.finfo. The multiples were measured on 40 operators, eager against Inductor, on torch
# 2.13 (CPU): the worst right result had 9 eps at most and 1.8 eps in the mean (group norm, erf, batch norm) where
# eager's own error was below 1 eps. Low precision has one rounding per stored value and no approximations below it.
_MEASURED = "measured, Inductor against eager; eps from torch.finfo"
_PLAIN = (16.0, 4.0, 64.0, 12.0, _MEASURED)
_COARSE = (2.0, 0.5, 4.0, 1.0, "one rounding of the output and one of an intermediate; eps from torch.finfo")
FLOORS: dict[str, Floor] = {
    "float64": Floor(2.0**-52, *_PLAIN),
    "float32": Floor(2.0**-23, *_PLAIN),
    "bfloat16": Floor(2.0**-7, *_COARSE),
    "float16": Floor(2.0**-10, *_COARSE),
    "float8_e4m3fn": Floor(2.0**-3, *_COARSE),
    "float8_e4m3fnuz": Floor(2.0**-3, *_COARSE),
    "float8_e5m2": Floor(2.0**-2, *_COARSE),
    "float8_e5m2fnuz": Floor(2.0**-2, *_COARSE),
    "float8_e8m0fnu": Floor(1.0, *_COARSE),
    "complex32": Floor(2.0**-10, *_COARSE),
    "complex64": Floor(2.0**-23, *_PLAIN),
    "complex128": Floor(2.0**-52, *_PLAIN),
}

#: Compiled may be this much worse against float64 than eager is.
WORSE_LARGEST, WORSE_RMS = 3.0, 2.0
#: An eager error above this is noise as large as the value itself, such as a gradient that is zero in exact maths.
NOISE_DOMINATED = 0.05
WORSE_IN_NOISE = 10.0
#: A difference up to this many times what one ulp on the inputs does is rounding, not a fault.
NUDGED_LARGEST, NUDGED_RMS = 3.0, 1.5
REPEATED_LARGEST, REPEATED_RMS = 4.0, 3.0
#: Where float64 shows how exact eager is, one ulp on the inputs excuses at most this many times eager's own error: a
#: mean over 40 000 values that cancel was 19 times less exact than eager's pairwise sum, and nothing right was worse.
NUDGED_AT_MOST = 32.0
#: A reference this much farther from eager than the nudged run is, and this far at all, computed something else.
STRANGE_TIMES, STRANGE_AT_ALL = 256.0, 1e-3
#: The same for a run with random numbers of which most results are off, so that they were other ones.
OTHER_DRAWS_TIMES = 8.0
#: A result this much smaller than its siblings may be a true zero, of which only rounding is left.
TINY_AMONG_SIBLINGS = 1e-3
#: Up to this many times what is allowed, a difference that many healthy modules bring only together, or one alone that
#: is exact by itself, is rounding: in the backward pass of a small Phi on a GPU it was 1.23 times (torch 2.11).
ACCUMULATES_TO = 2.0
#: One ulp on the inputs that grows to this many in the output marks ill-conditioned maths.
ILL_CONDITIONED_ULPS = {True: 1024.0, False: 16.0}


class Outcome(str, Enum):
    """What the figures of one comparison amount to; only `divergence` is a fault.

    Accumulated rounding is a difference that would be one, were eager not as far from float64 as compiled is.
    """

    OK = "ok"
    OK_BY_NOISE = "ok by noise"
    NON_DETERMINISTIC = "non-deterministic"
    ILL_CONDITIONED = "ill-conditioned"
    ACCUMULATED_ROUNDING = "accumulated rounding"
    DIVERGENCE = "divergence"


class ErrorFigures(msgspec.Struct, frozen=True):
    """Largest and root mean square error, relative to |reference| + scale."""

    largest: float = 0.0
    rms: float = 0.0


class ValueFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured between two results; a part that was not measured is None.

    `difference` is compiled against eager; `compiled` and `eager` are against float64; `repeated` is eager against
    eager, `nudged` eager on inputs one ulp away. `noise_dtype` is the coarsest dtype that takes part. `context_scale`
    is the largest scale among results of the same kind, such as all gradients. `has_other_draws` says that the float64
    run drew other random numbers, `is_number` that these are Python numbers.
    """

    dtype: str
    noise_dtype: str
    count: int
    scale: float
    difference: ErrorFigures
    context_scale: float = 0.0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    compiled: ErrorFigures | None = None
    eager: ErrorFigures | None = None
    repeated: ErrorFigures | None = None
    nudged: ErrorFigures | None = None
    has_other_draws: bool = False
    is_number: bool = False
    exceeding: int = 0
    worst_index: tuple[int, ...] = ()
    worst_eager: float = 0.0
    worst_compiled: float = 0.0


class Verdict(msgspec.Struct, frozen=True):
    """The outcome, the yardstick that decided, and both in plain words.

    `excess` says of a divergence how many times what is allowed it is; None where the user's tolerance decided.
    """

    outcome: Outcome
    yardstick: str
    text: str
    excess: float | None = None

    @property
    def is_excused(self) -> bool:
        """Whether the results differ by more than the floor, or by what the user allows, which may be more."""
        return not self.is_fault and not self.yardstick.startswith("floor of")

    @property
    def is_fault(self) -> bool:
        """Whether the compiled result is wrong."""
        return self.outcome is Outcome.DIVERGENCE


def floor_for(dtype: str, noise_dtype: str = "") -> Floor:
    """Give the floor of a dtype, or of the coarser one that took part in the computation."""
    own = FLOORS.get(dtype, FLOORS["float32"])
    noise = FLOORS.get(noise_dtype, own)
    return noise if noise.eps > own.eps else own


def judge(
    figures: ValueFigures, tolerance: tuple[float, float] | None = None, *, can_measure_more: bool = False
) -> Verdict:
    """Decide on what is known so far; more figures can only turn a divergence into something else.

    Args:
        figures: what was measured.
        tolerance: the user's (rtol, atol), which overrides everything; `figures.exceeding` then counts by it.
        can_measure_more: the wide tolerance for want of a reference does not count yet.
    """
    if tolerance is not None:
        return _judge_by_tolerance(figures, tolerance)
    floor = floor_for(figures.dtype, figures.noise_dtype)
    limit = floor.limit
    if _within(figures.difference, limit):
        return Verdict(Outcome.OK, f"floor of {floor_name(figures)}", _numbers(figures))
    if figures.scale == 0.0 and figures.max_abs_error <= limit.largest * figures.context_scale:
        return Verdict(Outcome.OK, "rounding at the scale of its siblings", _numbers(figures))
    usable = reference_is_usable(figures)
    if usable and figures.compiled is not None and figures.eager is not None:
        allowed = _allowed_against_reference(figures.eager, limit)
        if _within(figures.compiled, allowed):
            if _within(figures.difference, floor.limit_alone):
                return Verdict(Outcome.OK, "float64 reference", _numbers(figures))
            text = f"eager itself is {figures.eager.rms:.2g} off float64, compiled {figures.compiled.rms:.2g}"
            return Verdict(Outcome.ACCUMULATED_ROUNDING, "float64 reference", text)
    by_noise = _judge_by_noise(figures, limit, floor.eps)
    if by_noise is not None:
        return by_noise
    if not usable and not can_measure_more:
        alone = floor.limit_alone
        # a gradient that is zero in exact maths, such as that of a bias in front of batch norm, is nothing but rounding
        is_tiny = figures.scale <= TINY_AMONG_SIBLINGS * figures.context_scale
        if is_tiny and figures.max_abs_error <= alone.largest * figures.context_scale:
            return Verdict(Outcome.OK, "rounding at the scale of its siblings, no float64 reference", _numbers(figures))
        if _within(figures.difference, alone):
            return Verdict(Outcome.OK, f"tolerance of {floor_name(figures)}, no float64 reference", _numbers(figures))
        yardstick = f"tolerance of {floor_name(figures)}"
        return Verdict(Outcome.DIVERGENCE, yardstick, _numbers(figures), excess(figures))
    return Verdict(Outcome.DIVERGENCE, "float64 reference", _numbers(figures), excess(figures))


def excess(figures: ValueFigures) -> float:
    """Say how many times larger a difference is than what the most generous of the yardsticks allows.

    Above 1 it is a divergence by all of them.
    """
    floor = floor_for(figures.dtype, figures.noise_dtype)
    limit = floor.limit
    ratios = [_ratio(figures.difference, limit)]
    if reference_is_usable(figures) and figures.compiled is not None and figures.eager is not None:
        ratios.append(_ratio(figures.compiled, _allowed_against_reference(figures.eager, limit)))
    else:
        ratios.append(_ratio(figures.difference, floor.limit_alone))
    ratios += [_ratio(figures.difference, allowed) for allowed in _allowed_by_noise(figures, limit).values()]
    return min(ratios)


def reference_is_usable(figures: ValueFigures) -> bool:
    """Say whether the float64 run tells anything about rounding.

    It does not where it never left eager's dtype (then it equals eager exactly), nor where it computed something
    else, as with other random numbers: its distance to eager is then out of proportion to what one ulp does.
    """
    if figures.compiled is None or figures.eager is None or figures.eager.largest == 0.0:
        return False
    floor = floor_for(figures.dtype, figures.noise_dtype)
    nudged = figures.nudged.rms if figures.nudged is not None else 0.0
    plausible = STRANGE_TIMES * max(nudged, floor.eps)
    if figures.has_other_draws:
        return figures.eager.rms <= OTHER_DRAWS_TIMES * max(nudged, floor.eps)
    if figures.eager.rms <= max(plausible, STRANGE_AT_ALL):
        return True
    # noise as large as the value, around a true zero, is what rounding gives and no sign of another computation
    return figures.scale <= floor.limit_alone.largest * figures.context_scale


def floor_name(figures: ValueFigures) -> str:
    """Name the dtype whose floor counts."""
    own, noise = FLOORS.get(figures.dtype), FLOORS.get(figures.noise_dtype)
    return figures.noise_dtype if own and noise and noise.eps > own.eps else figures.dtype


def _judge_by_tolerance(figures: ValueFigures, tolerance: tuple[float, float]) -> Verdict:
    yardstick = f"given tolerance rtol={tolerance[0]:g}, atol={tolerance[1]:g}"
    outcome = Outcome.DIVERGENCE if figures.exceeding else Outcome.OK
    return Verdict(outcome, yardstick, _numbers(figures))


def _judge_by_noise(figures: ValueFigures, limit: ErrorFigures, eps: float) -> Verdict | None:
    allowed = _allowed_by_noise(figures, limit)
    repeated, nudged = figures.repeated, figures.nudged
    # a number that eager does not give twice, such as the reading of a clock, cannot be told from a wrong one
    is_never_the_same = repeated is not None and figures.is_number and repeated.largest > NOISE_DOMINATED
    if repeated is not None and (
        is_never_the_same or ("repeated" in allowed and _within(figures.difference, allowed["repeated"]))
    ):
        text = f"eager differs from itself by {repeated.largest:.2g} between two runs with one seed"
        return Verdict(Outcome.NON_DETERMINISTIC, "eager run twice", text)
    if nudged is not None and _within(figures.difference, allowed["nudged"]):
        is_fine_dtype = eps < 2.0**-16
        if nudged.rms >= ILL_CONDITIONED_ULPS[is_fine_dtype] * eps:
            text = f"one ulp on the inputs moves the eager result by {nudged.rms:.2g}"
            return Verdict(Outcome.ILL_CONDITIONED, "inputs moved by one ulp", text)
        return Verdict(Outcome.OK_BY_NOISE, "inputs moved by one ulp", _numbers(figures))
    return None


def _allowed_by_noise(figures: ValueFigures, limit: ErrorFigures) -> dict[str, ErrorFigures]:
    """Give what eager's own noise allows, by the run that showed it."""
    allowed = {}
    if figures.repeated is not None and figures.repeated.largest > 0.0:
        allowed["repeated"] = _widened(figures.repeated, REPEATED_LARGEST, REPEATED_RMS, limit)
    if figures.nudged is not None:
        nudged = _widened(figures.nudged, NUDGED_LARGEST, NUDGED_RMS, limit)
        if reference_is_usable(figures) and figures.eager is not None:
            most = _widened(figures.eager, NUDGED_AT_MOST, NUDGED_AT_MOST, limit)
            nudged = ErrorFigures(min(nudged.largest, most.largest), min(nudged.rms, most.rms))
        allowed["nudged"] = nudged
    return allowed


def _allowed_against_reference(eager: ErrorFigures, limit: ErrorFigures) -> ErrorFigures:
    if eager.rms > NOISE_DOMINATED:
        return _widened(eager, WORSE_IN_NOISE, WORSE_IN_NOISE, limit)
    return _widened(eager, WORSE_LARGEST, WORSE_RMS, limit)


def _widened(noise: ErrorFigures, largest: float, rms: float, limit: ErrorFigures) -> ErrorFigures:
    return ErrorFigures(largest * noise.largest + limit.largest, rms * noise.rms + limit.rms)


def _ratio(error: ErrorFigures, limit: ErrorFigures) -> float:
    return max(error.largest / limit.largest, error.rms / limit.rms)


def _within(error: ErrorFigures, limit: ErrorFigures) -> bool:
    return error.largest <= limit.largest and error.rms <= limit.rms


def _numbers(figures: ValueFigures) -> str:
    largest, rms = figures.difference.largest, figures.difference.rms
    text = f"relative to |value| + scale the difference is {largest:.2g} at most, {rms:.2g} RMS"
    if figures.compiled is not None and figures.eager is not None:
        text += f"; RMS error against float64: compiled {figures.compiled.rms:.2g}, eager {figures.eager.rms:.2g}"
    if figures.nudged is not None:
        text += f"; one ulp on the inputs moves eager by {figures.nudged.rms:.2g} RMS"
    return text
