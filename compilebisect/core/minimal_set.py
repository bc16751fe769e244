"""Search for a smallest set of members that still brings a fault, by adaptive deletion."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal_set(members: Sequence[T]) -> Generator[tuple[T, ...], bool, tuple[T, ...]]:
    """Propose smaller and smaller subsets; send back whether the fault still shows with just that subset.

    The set of all members is taken to show the fault and is not proposed; nor is the empty set. The returned subset
    is 1-minimal: each of its members was seen to be needed (or it has a single member).
    Chunks halve down to one, as in delta debugging (Zeller and Hildebrandt, 2002, without the subset step).
    """
    kept = tuple(members)
    size = max(len(kept) // 2, 1)
    while len(kept) > 1:
        start, removed = 0, False
        while start < len(kept) and len(kept) > 1:
            candidate = kept[:start] + kept[start + size :]
            if candidate and (yield candidate):
                kept, removed = candidate, True
            else:
                start += size
        if size > 1:
            size = max(min(size // 2, len(kept) // 2), 1)
        elif not removed:
            break
    return kept
