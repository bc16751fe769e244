"""Judges results that differ because other random numbers were drawn: over many seeds, mean and spread must agree."""

from __future__ import annotations

import msgspec

#: Seeds of one batch. What a batch speaks against is a difference only if a second batch, of other seeds, does too.
SEEDS = 12
# Student's t of the mean difference, squared. With 12 seeds its mean is 1.2 where nothing but draws differs. Chance
# exceeds 5 in 5 of 100 batches, if all elements hang on one draw, and in 2 of 1000 pairs of batches.
_MEAN_T2 = 5.0
# The same for the worst element of up to a million: 7 standard errors, twice at one place.
_WORST_T2 = 50.0
# Ratio of the variances. One number per seed scatters widely, many do not.
_SPREAD, _SPREAD_OF_FEW = 2.0, 3.5
_FEW = 256


class DrawFigures(msgspec.Struct, frozen=True):
    """How the compiled and the eager results of one tensor differ over a batch of seeds.

    `mean_t2` and `worst_t2` are the squared t values of the mean difference, over all elements; `worst_place` is the
    element of the latter. `spread` is the compiled variance over seeds as a multiple of eager's.
    """

    elements: int
    mean_t2: float
    worst_t2: float
    worst_place: int
    spread: float


def speaks_against(first: DrawFigures, second: DrawFigures | None = None) -> bool:
    """Say whether figures show more than other random numbers: those of one batch, or of both alike."""
    if second is None:
        return bool(_reasons(first))
    return bool(_reasons(first) & _reasons(second))


def _reasons(figures: DrawFigures) -> set[str | int]:
    found: set[str | int] = set()
    if not figures.mean_t2 <= _MEAN_T2:
        found.add("mean")
    if not figures.worst_t2 <= _WORST_T2:
        found.add(figures.worst_place)
    most = _SPREAD_OF_FEW if figures.elements < _FEW else _SPREAD
    if not figures.spread <= most:
        found.add("wider")
    if not figures.spread >= 1 / most:
        found.add("narrower")
    return found
