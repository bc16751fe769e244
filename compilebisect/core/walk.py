"""The walk over the units of a model: which probe comes next, and what each observation means.

Pure search: it proposes probes and is told what they saw. Units are checked leaves first; a unit that shows a fault
which nothing below shows introduces it. See `docs/explanation/how-it-works.md` for the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from compilebisect.core.fingerprint import fault_key
from compilebisect.core.judge import ENDS_PROCESS, LEFT_OUT, Judge
from compilebisect.core.module_tree import ModuleTree
from compilebisect.core.outcome import Fault, Kind, Observation
from compilebisect.core.unit_result import InheritedFault, Probe, Steps, UnitResult
from compilebisect.core.units import Unit

# A container is left to its parent where it makes up at least this share of it: compiling both costs twice and tells
# nothing new as long as the parent is healthy. Measured: three nested, nearly equal ancestors took 76 % of one walk.
NEARLY_SAME = 0.6


class Walk:
    """Search state: ask `next_probe()`, run it, tell `record()`; several probes may be under way at once."""

    def __init__(
        self,
        tree: ModuleTree,
        units: Sequence[Unit],
        *,
        only: Sequence[str] = (),
        skip: Sequence[str] = (),
        all_modules: bool = False,
        has_ladder: bool = True,
        kinds: Sequence[Kind] = tuple(Kind),
    ) -> None:
        self.tree = tree
        self.units = list(units)
        self.results = {unit.id: UnitResult() for unit in units}
        self.unit_of = {path: unit for unit in units for path in unit.paths}
        self.probes_made = 0
        self._all_modules = all_modules
        self._judge = Judge(tree, units, self.results, has_ladder=has_ladder)
        self._kinds = frozenset(kinds)
        self._below = {unit.id: self._units_below(unit) for unit in units}
        self._deferred: set[int] = set()
        self._started: set[int] = set()
        self._running: dict[int, Steps] = {}
        self._pending: dict[int, Probe] = {}
        self._in_flight: set[int] = set()
        for unit in self.units:
            if not any(_is_wanted(path, only, skip) for path in unit.paths):
                self._finish(unit.id, skipped=LEFT_OUT)
        self._covered = {path for unit in self.units for path in unit.paths[1:] if self._is_covered(path)}
        if not all_modules:
            self._deferred = {unit.id for unit in self.units if self._is_nearly_its_parent(unit)}

    def next_probe(self) -> Probe | None:
        """Return a probe that can run now, None if all that is left waits for probes under way, or nothing is left."""
        self._start_ready_units()
        for unit_id, probe in self._pending.items():
            if unit_id not in self._in_flight:
                self._in_flight.add(unit_id)
                self.probes_made += 1
                return probe
        return None

    def record(self, probe: Probe, observation: Observation) -> None:
        """Take in what a probe saw; the next probe of the same unit follows from it."""
        observation = self._wanted_of(observation)
        owner = next(key for key, pending in self._pending.items() if pending is probe or pending == probe)
        self._in_flight.discard(owner)
        try:
            self._pending[owner] = self._running[owner].send(observation)
        except StopIteration:
            del self._pending[owner], self._running[owner]

    def _wanted_of(self, observation: Observation) -> Observation:
        def wanted(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
            return tuple(fault for fault in faults if fault.kind in self._kinds)

        by_instance = {path: wanted(faults) for path, faults in observation.faults_by_instance.items()}
        return msgspec.structs.replace(
            observation,
            faults=wanted(observation.faults),
            faults_by_instance={path: faults for path, faults in by_instance.items() if faults},
        )

    def is_finished(self) -> bool:
        """Return whether every unit has its verdict."""
        return all(result.is_done for result in self.results.values())

    def remaining(self) -> int:
        """Count the units that have no verdict yet."""
        return sum(not result.is_done for result in self.results.values())

    # --- scheduling -------------------------------------------------------------------------------------------

    def _start_ready_units(self) -> None:
        for unit in self.units:  # leaves first, so a unit is put back into the walk before those above it are looked at
            if self.results[unit.id].is_done or unit.id in self._started:
                continue
            if not all(self.results[other].is_done for other in self._below[unit.id] - self._deferred):
                continue
            if unit.id in self._deferred:
                if not self._has_faults_below(unit.id):
                    continue
                # With a fault inside, its parent cannot vouch for it any more.
                self._deferred.discard(unit.id)
            self._start(unit)

    def _start(self, unit: Unit) -> None:
        steps = self._check(unit)
        try:
            self._pending[unit.id] = next(steps)
            self._running[unit.id] = steps
        except StopIteration:
            pass

    def _units_below(self, unit: Unit) -> set[int]:
        return {self.unit_of[path].id for path in self.tree.descendants(unit.path) if path in self.unit_of}

    def _has_faults_below(self, unit_id: int) -> bool:
        return any(self.results[other].introduced for other in self._below[unit_id])

    def _is_nearly_its_parent(self, unit: Unit) -> bool:
        if len(unit.paths) > 1 or not self.tree.called_children(unit.path):
            return False
        parents = self.tree.called_parents(unit.path)
        if len(parents) != 1 or parents[0] not in self.unit_of or self.results[self.unit_of[parents[0]].id].is_done:
            return False
        return self.tree.weight(unit.path) >= NEARLY_SAME * self.tree.weight(parents[0])

    def _finish(self, unit_id: int, *, skipped: str = "", is_implied: bool = False) -> None:
        result = self.results[unit_id]
        result.is_done, result.skipped, result.is_implied = True, skipped, is_implied

    # --- the check of one unit --------------------------------------------------------------------------------

    def _check(self, unit: Unit) -> Steps:
        result = self.results[unit.id]
        self._started.add(unit.id)
        fatal = self._judge.fatal_below(unit.path)
        below = self._judge.introduced_below(unit.path)
        result.inherited.extend(
            InheritedFault(fault=fault) for path in fatal for fault in below[path] if fault.kind in ENDS_PROCESS
        )
        paths = self.paths_to_run(unit)
        observation = yield self._probe(unit, paths, fenced=fatal, is_cold=unit.path == "")
        result.observation = observation
        result.skipped = observation.skipped
        result.notes.extend(observation.notes)
        deferred = [self.units[other] for other in sorted(self._below[unit.id] & self._deferred, key=self._depth)]
        if _vouches(observation) and not observation.faults and not fatal:
            for other in deferred:
                self._deferred.discard(other.id)
                self._finish(other.id, is_implied=True)
        else:
            for other in reversed(deferred):
                self._deferred.discard(other.id)
                yield from self._check(other)
        yield from self._check_inside(unit, paths, observation)
        yield from self._judge.judge(unit, observation, paths, fatal)
        result.is_done = True

    def _check_inside(self, unit: Unit, paths: Sequence[str], observation: Observation) -> Steps:
        """Run what lies inside the further instances of a unit, for those that cannot vouch for it."""
        sick = set(paths[1:])
        if _vouches(observation):
            sick &= {*observation.faults_by_instance, *observation.unchecked}
        if not sick:
            return
        for other in self.units:  # leaves first
            inside = [path for path in other.paths if path in self._covered and sick & set(self._above(path))]
            if inside and other.id in self._below[unit.id]:
                yield from self._check_instances(other, inside)

    def _check_instances(self, unit: Unit, paths: Sequence[str]) -> Steps:
        """Run instances of a unit that has its verdict already, for what they show beyond it."""
        result = self.results[unit.id]
        known = {fault_key(fault) for fault in result.observation.faults} if result.observation else set()
        fatal = self._judge.fatal_below(paths[0])
        seen = yield self._probe(unit, paths, fenced=fatal, purpose="instances")
        faults = tuple(fault for fault in seen.faults if fault.kind is Kind.DIVERGENCE or fault_key(fault) not in known)
        yield from self._judge.judge(unit, msgspec.structs.replace(seen, faults=faults), paths, fatal)

    def paths_to_run(self, unit: Unit) -> tuple[str, ...]:
        """Return the instances of a unit whose own golden calls are run: the first, and all that nothing covers.

        Code that is compiled for one instance is the code of all, but weights differ, and so may values. An instance
        that lies inside a further instance of another unit is run there, as a part of it.
        """
        if Kind.DIVERGENCE not in self._kinds:
            return unit.paths[:1]
        return (unit.path, *(path for path in unit.paths[1:] if path not in self._covered))

    def _is_covered(self, path: str) -> bool:
        units = [(other, self.unit_of[other]) for other in self._above(path) if other in self.unit_of]
        return any(other != unit.path and not self.results[unit.id].is_done for other, unit in units)

    def _above(self, path: str) -> list[str]:
        return self.tree.ancestors(path)

    def _depth(self, unit_id: int) -> int:
        return len(self.tree.ancestors(self.units[unit_id].path))

    def _probe(
        self,
        unit: Unit,
        paths: Sequence[str],
        *,
        fenced: tuple[str, ...] = (),
        is_cold: bool = False,
        purpose: str = "check",
    ) -> Probe:
        return Probe(
            unit=unit.id, path=paths[0], instances=tuple(paths[1:]), fenced=fenced, is_cold=is_cold, purpose=purpose
        )


def _vouches(observation: Observation) -> bool:
    """Return whether what a probe did not show is not there, also in the parts that were compiled with it."""
    return observation.completed and not observation.skipped and not observation.is_blind and observation.graphs > 0


def _is_wanted(path: str, only: Sequence[str], skip: Sequence[str]) -> bool:
    if any(fnmatchcase(path, pattern) for pattern in skip):
        return False
    return not only or any(fnmatchcase(path, pattern) for pattern in only)
