"""The runs that testify about eager's own noise, made only when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from compilebisect.runtime.record import RunRecord

Supplier = Callable[[], RunRecord | None]
#: A tie between two values flips under one random nudge in about one of four; sixteen leave 1 % unexplained.
MAX_NUDGES = 16
#: Nudges whose figures count as noise: one with random signs, one with all values moved upward.
MEASURED_NUDGES = 2

_ABSENT = object()


class Witnesses:
    """Leaves by path of the repeated, nudged and float64 runs; each run is made once at most."""

    def __init__(
        self,
        repeat: RunRecord | Supplier | None,
        nudged: RunRecord | Sequence[RunRecord] | Callable[[int], RunRecord | None] | None,
        reference: Supplier | None,
    ) -> None:
        self._repeat_source = repeat
        self._nudge_source = nudged
        self._reference_source = reference
        self._repeat: dict[str, Any] | None = None
        self._nudges: list[dict[str, Any] | None] = []
        self._reference: dict[str, Any] | None = None
        self.has_made_reference = False

    def repeat(self, path: str) -> Any:
        """Give the leaf of the repeated eager run; None if there is none."""
        leaf = self._repeat_leaves().get(path, _ABSENT)
        return None if leaf is _ABSENT else leaf

    def repeat_lacks(self, path: str) -> bool:
        """Say whether a repeated run exists and has nothing at the path."""
        return bool(self._repeat_leaves()) and path not in self._repeat_leaves()

    def repeat_differs(self, path: str, value: Any) -> bool:
        """Say whether the repeated run gives another value than `value`."""
        other = self._repeat_leaves().get(path, _ABSENT)
        return other is not _ABSENT and other != value

    def any_nudge_differs(self, path: str, value: Any) -> bool:
        """Say whether one of the nudged runs gives another value than `value`."""
        return any(other != value for other in self.nudges(path))

    def nudges(self, path: str, limit: int = MAX_NUDGES) -> Iterator[Any]:
        """Give the leaves of the nudged runs, one after the other."""
        for number in range(limit):
            leaves = self._nudge_leaves(number)
            if leaves is None:
                return
            if path in leaves:
                yield leaves[path]

    def reference(self, path: str) -> Any:
        """Give the leaf of the float64 run; None if there is none."""
        if self._reference is None:
            record = self._reference_source() if self._reference_source is not None else None
            self.has_made_reference = record is not None
            self._reference = _leaves(record)
        return self._reference.get(path)

    def _repeat_leaves(self) -> dict[str, Any]:
        if self._repeat is None:
            source = self._repeat_source
            self._repeat = _leaves(source() if callable(source) else source)
        return self._repeat

    def _nudge_leaves(self, number: int) -> dict[str, Any] | None:
        while len(self._nudges) <= number:
            record = self._make_nudge(len(self._nudges))
            self._nudges.append(_leaves(record) if record is not None else None)
        return self._nudges[number]

    def _make_nudge(self, number: int) -> RunRecord | None:
        source = self._nudge_source
        if callable(source):
            return source(number)
        records = [source] if isinstance(source, RunRecord) else list(source or ())
        return records[number] if number < len(records) else None


def _leaves(record: RunRecord | None) -> dict[str, Any]:
    if record is None:
        return {}
    return {node.path: node.value for nodes in record.parts().values() for node in nodes if node.keys is None}


def same_shape(left: Any, right: Any) -> bool:
    """Say whether two values are tensors that can be compared element by element."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    return left.shape == right.shape and left.device == right.device
