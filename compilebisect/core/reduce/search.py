"""Search for a smallest set of members that still brings a fault: bisection first, then adaptive deletion."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


def smallest_subset(
    members: Sequence[T], *, allow_empty: bool = False
) -> Generator[tuple[T, ...], bool, tuple[T, ...]]:
    """Propose smaller and smaller subsets, in order; send back whether the fault still shows with just that subset.

    The set of all members is taken to show the fault and is not proposed. No subset is proposed twice. The returned
    subset was seen to show the fault, and each of its members was seen to be needed: without it, the fault was gone.

    Args:
        members: what may be left out.
        allow_empty: whether the fault may show without any member. If not, the empty set is never proposed, and the
            last member is taken to be needed.
    """
    asked = _Asked(members, allow_empty)
    needed = yield from _bisect(asked)
    return asked.members_of((yield from _delete(asked, needed)))


class _Asked(Generic[T]):
    """What was asked so far. Subsets are ascending tuples of positions, as members need not be hashable."""

    def __init__(self, members: Sequence[T], allow_empty: bool) -> None:
        self._members = members
        self.all = tuple(range(len(members)))
        self._answers = {self.all: True} if allow_empty or not members else {self.all: True, (): False}

    def members_of(self, positions: tuple[int, ...]) -> tuple[T, ...]:
        return tuple(self._members[position] for position in positions)

    def shows(self, positions: tuple[int, ...]) -> Generator[tuple[T, ...], bool, bool]:
        """Return whether a subset shows the fault, asking only where that is not known."""
        if positions not in self._answers:
            self._answers[positions] = yield self.members_of(positions)
        return self._answers[positions]


def _bisect(asked: _Asked[T]) -> Generator[tuple[T, ...], bool, tuple[int, ...]]:
    """Find culprits from the back: the last member of the shortest prefix that shows the fault is one.

    At each point `before[:high]` together with the culprits was seen to show the fault, so that the result shows it
    also where a fault comes and goes as members are left out.
    """
    culprits: tuple[int, ...] = ()
    before = asked.all
    # How far from the end the next culprit is expected. Where most members are needed, looking at the nearest ones
    # first takes one question a culprit rather than log2(N).
    stride = len(before)
    while before:
        if stride > 1 and (yield from asked.shows(culprits)):
            break
        low, high, step = 0, len(before), stride
        while high > step:
            if not (yield from asked.shows(before[: high - step] + culprits)):
                low = high - step
                break
            high, step = high - step, step * 2
        while high - low > 1:
            middle = (low + high) // 2
            if (yield from asked.shows(before[:middle] + culprits)):
                high = middle
            else:
                low = middle
        if low == 0 and (yield from asked.shows(culprits)):
            break
        stride = max(2 * (len(before) - high), 1)
        before, culprits = before[: high - 1], (before[high - 1], *culprits)
    return culprits


def _delete(asked: _Asked[T], kept: tuple[int, ...]) -> Generator[tuple[T, ...], bool, tuple[int, ...]]:
    """Leave out members until none can be: chunks grow where that succeeds and shrink where it does not."""
    start, size, needed_in_a_row = 0, 1, 0
    while needed_in_a_row < len(kept):
        start %= len(kept)
        rest = kept[:start] + kept[start + size :]
        if (yield from asked.shows(rest)):
            kept, size, needed_in_a_row = rest, size * 2, 0
        elif size > 1:
            size = 1
        else:
            start, needed_in_a_row = start + 1, needed_in_a_row + 1
    return kept
