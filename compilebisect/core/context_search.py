"""What units show where they stand in the model, beside what they show alone, and what that does to its output.

Pure search, a part of the walk. A fault that a unit shows alone is not looked for again: its modules are kept out of
the compiled code when those above them are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

import msgspec

from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.judge import Judge
from compilebisect.core.module_tree import OPTIMIZER_PATH, ModuleTree, moved_path
from compilebisect.core.outcome import Fault, Kind, Observation
from compilebisect.core.unit_result import IntroducedFault, Probe, Steps, UnitResult
from compilebisect.core.units import Unit

# With one of these a unit has nothing that could be compared in place, and hides what those above it do.
_HIDES = (Kind.CRASH, Kind.TIMEOUT, Kind.ERROR, Kind.DIVERGENCE)


class ContextSearch:
    """Looks at units in place and writes into `results` what only shows there, and the impact of divergences."""

    def __init__(
        self, tree: ModuleTree, unit_of: Mapping[str, Unit], results: dict[int, UnitResult], judge: Judge
    ) -> None:
        self._tree, self._unit_of, self._results, self._judge = tree, unit_of, results, judge

    def run(self, unit: Unit, paths: Sequence[str], check_implied: Callable[[Unit], Steps]) -> Steps:
        """Look at a unit whose own check is done.

        Args:
            unit: the unit.
            paths: its instances that are run.
            check_implied: checks the units below whose health was only implied, where something shows above them.
        """
        result = self._results[unit.id]
        if unit.path != OPTIMIZER_PATH:
            yield from self._measure_impacts(unit)
        sick = {path for item in result.introduced if item.fault.kind in _HIDES for path in item.instances or paths}
        if unit.path == "":  # stands nowhere else than where it was checked, and vouches for nothing in place
            for other in self._outermost_implied():
                yield from self.run(other, other.paths, check_implied)
            return
        if result.is_left_out or unit.path == OPTIMIZER_PATH:
            return
        yield from self.check(unit, [path for path in paths if path not in sick], check_implied)

    def check(self, unit: Unit, paths: Sequence[str], check_implied: Callable[[Unit], Steps]) -> Steps:
        """Compile some of a unit's instances where they stand and enter what shows; arguments as of `run`."""
        result = self._results[unit.id]
        for places in self._alike(paths):
            seen = yield from self._look(unit, places)
            if self._new_faults(unit, seen):
                result.is_implied = False
                yield from check_implied(unit)
                seen = yield from self._look(unit, places)
            self._take_over(result, seen)
            if faults := self._new_faults(unit, seen):
                observation = _limited(seen, faults)
                yield from in_place(self._judge.judge(unit, observation, places, self._fenced(places[0])))

    def _look(self, unit: Unit, places: Sequence[str]) -> Generator[Probe, Observation, Observation]:
        seen = yield Probe(
            unit=unit.id,
            path=places[0],
            instances=tuple(places[1:]),
            fenced=self._fenced(places[0]),
            purpose="in place",
            in_place=True,
        )
        return seen

    def _measure_impacts(self, unit: Unit) -> Steps:
        """Measure what divergences do to the model's output: a unit's own, and those below that show only inside it."""
        for result in self._results.values():
            for number, item in enumerate(result.introduced):
                if item.fault.kind is not Kind.DIVERGENCE or "impact" in item.fault.evidence:
                    continue
                if result is not self._results[unit.id] and item.seen_in not in unit.paths:
                    continue
                place = item.instances[0] if item.instances else item.path
                seen = yield Probe(
                    unit=self._unit_of[place].id,
                    path=place,
                    fenced=self._fenced(place),
                    purpose="impact",
                    in_place=True,
                )
                if seen.impact:
                    result.introduced[number] = _with_evidence(item, impact=seen.impact)

    def _alike(self, paths: Sequence[str]) -> list[list[str]]:
        """Put instances together that have the same modules fenced."""
        groups: dict[frozenset[str], list[str]] = {}
        for path in paths:
            fenced = frozenset(moved_path(other, path, "") for other in self._fenced(path))
            groups.setdefault(fenced, []).append(path)
        return list(groups.values())

    def _fenced(self, path: str) -> tuple[str, ...]:
        below = self._judge.introduced_below(path)
        return tuple(other for other, faults in below.items() if any(fault.kind in _HIDES for fault in faults))

    def _outermost_implied(self) -> list[Unit]:
        implied = [path for path, unit in self._unit_of.items() if self._results[unit.id].is_implied]
        return [self._unit_of[path] for path in implied if not set(self._tree.ancestors(path)).intersection(implied)]

    def _new_faults(self, unit: Unit, seen: Observation) -> set[FaultKey]:
        """Return what shows in place alone; that a whole model takes longer than one module is no hang."""
        result = self._results[unit.id]
        below = [fault for found in self._judge.introduced_below(unit.path).values() for fault in found]
        alone = result.observation.faults if result.observation is not None else ()
        own = [item.fault for item in result.introduced] + [item.fault for item in result.inherited]
        # Whoever has one that hides others is fenced or left out, so what of those kinds shows is new.
        known = {fault_key(fault) for fault in (*alone, *below, *own) if fault.kind not in _HIDES}
        return {fault_key(fault) for fault in seen.faults if fault.kind is not Kind.TIMEOUT} - known

    def _take_over(self, result: UnitResult, seen: Observation) -> None:
        result.notes.extend(note for note in seen.notes if note not in result.notes)
        if any(fault.kind is Kind.TIMEOUT for fault in seen.faults):
            result.notes.append("not judged in place: the whole model did not get through within --timeout")
        elif result.observation is not None and not result.untested and seen.untested:
            note = seen.untested if "in place" in seen.untested else f"not judged in place: {seen.untested}"
            result.notes.extend([] if note in result.notes else [note])
        elif not result.is_implied and (result.observation is None or result.untested):
            if seen.graphs and not seen.untested:
                result.notes.append(f"checked in place only: {result.untested or 'never called itself'}")
                result.observation, result.untested = seen, ""
            elif result.observation is None:
                result.observation, result.untested = seen, seen.untested or "nothing of it was compiled in place"


def in_place(steps: Steps) -> Steps:
    """Have all probes of some steps made in place."""
    try:
        probe = next(steps)
        while True:
            seen = yield msgspec.structs.replace(probe, in_place=True)
            probe = steps.send(_marked(seen))
    except StopIteration:
        return


def _limited(seen: Observation, keys: set[FaultKey]) -> Observation:
    def kept(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        return tuple(fault for fault in faults if fault_key(fault) in keys)

    by_instance = {path: found for path, faults in seen.faults_by_instance.items() if (found := kept(faults))}
    return _marked(msgspec.structs.replace(seen, faults=kept(seen.faults), faults_by_instance=by_instance))


def _marked(seen: Observation) -> Observation:
    """Say of all faults that they show in place alone."""

    def marked(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        return tuple(
            msgspec.structs.replace(fault, evidence={**fault.evidence, "only_in_place": True}) for fault in faults
        )

    by_instance = {path: marked(faults) for path, faults in seen.faults_by_instance.items()}
    return msgspec.structs.replace(seen, faults=marked(seen.faults), faults_by_instance=by_instance)


def _with_evidence(item: IntroducedFault, **evidence: object) -> IntroducedFault:
    fault = msgspec.structs.replace(item.fault, evidence={**item.fault.evidence, **evidence})
    return msgspec.structs.replace(item, fault=fault)
