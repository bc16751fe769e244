"""How much slower or faster compiled code is than eager mode, judged from runs that took turns.

Pure arithmetic over seconds; `runtime.timing` measures them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

# Entering compiled code (guards, wrappers) vanishes where the module is compiled as part of another. It is measured for
# a module of one operator; guards on parameters and submodules come on top of that. Seen on a 2-core CPU: 75 us for an
# empty module, 85 us for a linear layer.
ENTRIES = 2
# No machine enters compiled code faster than this, whatever a short measurement says.
_LEAST_ENTERING_S = 10e-6
# A loss of less than this share of eager's time is left to the choice of kernels.
LEAST_SHARE = 0.05
# The interval for the median holds it with at least this probability.
_CONFIDENCE = 0.98


class CallTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one golden call: run k in eager mode and run k of what was compiled stood next to each other.

    `count` is how many such calls one run of the model makes. `compiled` is empty where only eager was timed.
    """

    index: int
    count: int
    eager: tuple[float, ...]
    compiled: tuple[float, ...] = ()


class UnitTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The timings of all golden calls of a module; `note` says why they are missing or no good.

    `graphs` counts the FX graphs of the compiled code. `entering_s` is what a call of compiled code costs that does
    next to nothing, on the same machine in the same circumstances.
    """

    calls: tuple[CallTiming, ...] = ()
    graphs: int = 0
    entering_s: float = 0.0
    note: str = ""

    @property
    def is_of_compiled(self) -> bool:
        """Whether compiled code was timed, and can be judged by it."""
        return bool(self.calls) and not self.note and all(call.compiled for call in self.calls)

    @property
    def calls_per_run(self) -> int:
        """How often one run of the model calls the module in the ways that were timed."""
        return sum(call.count for call in self.calls)

    @property
    def runs(self) -> int:
        """How often each of the two was run, at the least."""
        return min((len(call.eager) for call in self.calls), default=0)

    @property
    def eager_s(self) -> float:
        """Seconds that the module takes in one run of the model in eager mode, everything below it included."""
        return sum(call.count * statistics.median(call.eager) for call in self.calls)

    @property
    def compiled_s(self) -> float:
        """Seconds that it takes when it is compiled by itself."""
        return sum(call.count * statistics.median(call.compiled) for call in self.calls)

    @property
    def floor_s(self) -> float:
        """Seconds in one run of the model that a module may lose by being entered as compiled code."""
        return ENTRIES * max(self.entering_s, _LEAST_ENTERING_S) * self.calls_per_run

    @property
    def loss(self) -> Loss:
        """What compiling costs in one run of the model."""
        return Loss.of(self)


class Loss(msgspec.Struct, frozen=True):
    """Seconds by which compiled code is slower (negative: faster): the median, and an interval that holds it."""

    middle_s: float
    low_s: float
    high_s: float

    @classmethod
    def of(cls, timing: UnitTiming) -> Loss:
        """Add up the losses of a module's golden calls."""
        middle = low = high = 0.0
        for call in timing.calls:
            differences = [ours - eager for eager, ours in zip(call.eager, call.compiled, strict=True)]
            least, most = median_interval(differences)
            middle += call.count * statistics.median(differences)
            low += call.count * least
            high += call.count * most
        return cls(middle, low, high)

    def without(self, known_s: float) -> Loss:
        """Return what is left of it once so many seconds are put down to something else."""
        return Loss(self.middle_s - known_s, self.low_s - known_s, self.high_s - known_s)

    def minus(self, other: Loss) -> Loss:
        """Return the difference to a loss that was measured apart; both intervals go into it."""
        return Loss(self.middle_s - other.middle_s, self.low_s - other.high_s, self.high_s - other.low_s)


def is_beyond_noise(loss: Loss, timing: UnitTiming) -> bool:
    """Return whether a loss is certain and large: more than entering compiled code costs, and than kernels may differ.

    Args:
        loss: of the module, or the part of it that is its own.
        timing: of the module.
    """
    return loss.low_s > max(timing.floor_s, LEAST_SHARE * timing.eager_s)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return two of the values between which the median lies with a probability of 98 %, whatever the distribution.

    With fewer than 7 values that cannot be had, and the least and the greatest are returned.
    Source: order statistics, the number of values below the median being binomial with p = 1/2.
    """
    ordered = sorted(values)
    count = len(ordered)
    rank, tail = 0, 0.0
    while rank < count // 2:
        tail += math.comb(count, rank) * 0.5**count
        if 2 * tail > 1 - _CONFIDENCE:
            break
        rank += 1
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[count - 1 - rank]
