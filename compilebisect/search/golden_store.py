"""Decides which golden calls are kept in files, and when: a few units ahead of the walk, within a budget of bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from compilebisect.core.messages import CaptureOrder
from compilebisect.core.units import Unit
from compilebisect.core.walk import Probe, Walk

# One eager run fills this much; then the files of finished units make room for the next.
_BUDGET_BYTES = 1 << 30


class GoldenStore:
    """Files with the golden calls of the units that are about to be probed.

    `failures` tells, by path, why a module's calls cannot be kept.
    """

    def __init__(
        self, walk: Walk, scratch: Path, with_instances: bool, capture: Callable[[CaptureOrder], dict[str, str]]
    ) -> None:
        self.walk = walk
        self.failures: dict[str, str] = {}
        self._scratch = scratch
        self._with_instances = with_instances
        self._capture = capture
        self._held: set[int] = set()
        self._number = 0
        self.folder = scratch / "golden"

    def prepare(self, probe: Probe) -> str:
        """See to it that a probe's golden calls are there; returns the reason if they cannot be had, else nothing."""
        if probe.unit not in self._held:
            self._fill(probe.unit)
        # The root's inputs are made anew by whoever probes it.
        return self.failures.get(probe.path, "") if probe.path else ""

    def _fill(self, first: int) -> None:
        unfinished = [unit for unit in self.walk.units if unit.id != first and not self.walk.results[unit.id].is_done]
        size = 0
        batch: list[Unit] = []
        for unit in [self.walk.units[first], *unfinished]:
            size += self._bytes(unit)
            if batch and size > _BUDGET_BYTES:
                break
            batch.append(unit)
        needed = {unit_id for unit_id in self._held if not self.walk.results[unit_id].is_done}
        if not needed:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._held.clear()
        self.folder.mkdir(parents=True, exist_ok=True)
        wanted = {
            path: tuple(call.index for call in self.walk.tree[path].calls)
            for unit in batch
            if unit.id not in self._held
            for path in self._paths(unit)
        }
        self.failures.update(self._capture(CaptureOrder(str(self.folder), wanted)))
        self._held.update(unit.id for unit in batch)

    def _paths(self, unit: Unit) -> tuple[str, ...]:
        return unit.paths if self._with_instances else unit.paths[:1]

    def _bytes(self, unit: Unit) -> int:
        return sum(call.input_bytes for path in self._paths(unit) for call in self.walk.tree[path].calls)
