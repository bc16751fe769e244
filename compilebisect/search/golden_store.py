"""Decides which golden calls are kept in files, and when: a few units ahead of the walk, within a budget of bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from compilebisect.core.messages import CaptureOrder, variant_folder
from compilebisect.core.module_tree import GoldenCall
from compilebisect.core.unit_result import Probe
from compilebisect.core.walk import Walk

# One eager run fills this much; then the files of finished units make room for the next.
_BUDGET_BYTES = 1 << 30


class GoldenStore:
    """Files with the golden calls of the units that are about to be probed.

    `failures` tells, by path and index, why a module's calls could not be kept.
    """

    def __init__(self, walk: Walk, scratch: Path, capture: Callable[[CaptureOrder], dict[str, dict[int, str]]]) -> None:
        self.walk = walk
        self.failures: dict[str, dict[int, str]] = {}
        self._capture = capture
        self._held: dict[str, int] = {}
        self._again: set[int] = set()
        self._held_variants: set[tuple[str, int]] = set()
        self.folder = scratch / "golden"

    def prepare(self, probe: Probe) -> str:
        """See to it that a probe's golden calls are there; returns the reason if they cannot be had, else nothing."""
        paths = (probe.path, *probe.instances)
        if not self._held.keys() >= set(paths):
            self._fill(paths, probe.unit)
        for variant in range(1, probe.variants if probe.path else 0):
            self._fill_variant(probe.path, variant)
        return self.why_none(probe.path)

    def why_none(self, path: str) -> str:
        """Return why there is no golden call of a module; nothing where there is one."""
        if self.calls(path):
            return ""
        return self.walk.tree[path].uncaptured or next(iter(self.failures[path].values()))

    def calls(self, path: str) -> tuple[GoldenCall, ...]:
        """Return the golden calls of a module without those that could not be kept."""
        record = self.walk.tree[path]
        if not path:  # the root's inputs are made anew by whoever probes it
            return record.calls
        failed = self.failures.get(path, {})
        found = []
        for call in record.golden_calls:
            indices = [index for index in call.indices if index not in failed]
            if indices:
                found.append(call if len(indices) == len(call.indices) else call.at(indices[0]))
        return tuple(found)

    def want_again(self, units: Iterable[int]) -> None:
        """Keep calls for these units although the walk is done with them."""
        self._again = set(units)

    def let_go(self, unit_id: int) -> None:
        """Take back that a unit is wanted again."""
        self._again.discard(unit_id)

    def _is_done(self, unit_id: int) -> bool:
        return self.walk.results[unit_id].is_done and unit_id not in self._again

    def _fill(self, first: Sequence[str], unit_id: int) -> None:
        if all(self._is_done(owner) for owner in self._held.values()):
            shutil.rmtree(self.folder, ignore_errors=True)
            self._held.clear()
        self.folder.mkdir(parents=True, exist_ok=True)
        size = 0
        batch: dict[str, int] = {}
        for paths, owner in [(tuple(first), unit_id), *self._ahead(unit_id)]:
            calls = [call for path in paths for call in self.walk.tree[path].golden_calls]
            size += sum(call.input_bytes * len(call.indices) for call in calls)
            if batch and size > _BUDGET_BYTES:
                break
            batch.update(dict.fromkeys(paths, owner))
        wanted = {path: self.walk.tree[path].golden_indices for path in batch if path not in self._held}
        for path, reasons in self._capture(CaptureOrder(str(self.folder), wanted)).items():
            self.failures.setdefault(path, {}).update(reasons)
        self._held.update(batch)

    def _fill_variant(self, path: str, variant: int) -> None:
        if (path, variant) in self._held_variants:
            return
        self._held_variants.add((path, variant))
        folder = variant_folder(str(self.folder), variant)
        Path(folder).mkdir(parents=True, exist_ok=True)
        indices = self.walk.tree[path].golden_indices
        self._capture(CaptureOrder(folder, {path: indices}, variant))

    def _ahead(self, unit_id: int) -> list[tuple[tuple[str, ...], int]]:
        unfinished = [unit for unit in self.walk.units if not self._is_done(unit.id)]
        return [(self.walk.paths_to_run(unit), unit.id) for unit in unfinished if unit.id != unit_id]
