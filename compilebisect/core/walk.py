"""The walk over the units of a model: which probe comes next, and what each observation means.

Pure search: it proposes probes and is told what they saw. Units are checked leaves first; a unit that shows a fault
which nothing below shows introduces it. See `docs/explanation/how-it-works.md` for the rules.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from fnmatch import fnmatchcase

import msgspec

from compilebisect.core.blame import has_user_stack, is_same_as_child, owner_below
from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.minimal_set import minimal_set
from compilebisect.core.module_tree import ModuleTree
from compilebisect.core.outcome import Fault, Kind, Observation, Rung, Stage
from compilebisect.core.units import Unit

# A container is left to its parent where it makes up at least this share of it: compiling both costs twice and tells
# nothing new as long as the parent is healthy. Measured: three nested, nearly equal ancestors took 76 % of one walk.
NEARLY_SAME = 0.6
# After a crash or a hang each further probe of the same unit costs a worker, or the whole deadline.
ENDS_PROCESS = (Kind.CRASH, Kind.TIMEOUT)
LEFT_OUT = "left out by --only or --skip"
STAGE_OF_RUNG = {
    Rung.EAGER: Stage.DYNAMO,
    Rung.AOT_EAGER: Stage.AOT_AUTOGRAD,
    Rung.AOT_EAGER_DECOMP_PARTITION: Stage.AOT_AUTOGRAD,
}


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One compile and run that the walk asks for.

    `rung` None is the user's own backend. Modules in `fenced` are kept out of the compiled code. `is_cold` asks for a
    worker in which the model never ran. `kinds` limits what is looked for, where less is enough.
    """

    unit: int
    path: str
    rung: Rung | None = None
    fenced: tuple[str, ...] = ()
    is_cold: bool = False
    purpose: str = "check"


class IntroducedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that a module brings, with the region of children whose interplay it takes (empty for its own code)."""

    path: str
    fault: Fault
    region: tuple[str, ...] = ()
    seen_in: str = ""


class UnitResult(msgspec.Struct, kw_only=True):
    """What the walk knows of one unit."""

    observation: Observation | None = None
    introduced: list[IntroducedFault] = []
    inherited: list[Fault] = []
    is_implied: bool = False
    skipped: str = ""
    is_done: bool = False
    notes: list[str] = []


Steps = Generator[Probe, Observation, None]


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
        self._has_ladder = has_ladder
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
        wanted = tuple(fault for fault in observation.faults if fault.kind in self._kinds)
        if len(wanted) != len(observation.faults):
            observation = msgspec.structs.replace(observation, faults=wanted)
        owner = next(key for key, pending in self._pending.items() if pending is probe or pending == probe)
        self._in_flight.discard(owner)
        try:
            self._pending[owner] = self._running[owner].send(observation)
        except StopIteration:
            del self._pending[owner], self._running[owner]

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
        below = self._introduced_below(unit)
        fatal = tuple(path for path, faults in below.items() if any(f.kind in ENDS_PROCESS for f in faults))
        result.inherited.extend(fault for path in fatal for fault in below[path] if fault.kind in ENDS_PROCESS)
        observation = yield self._probe(unit, fenced=fatal, is_cold=unit.path == "")
        result.observation = observation
        result.skipped = observation.skipped
        result.notes.extend(observation.notes)
        deferred = [self.units[other] for other in sorted(self._below[unit.id] & self._deferred, key=self._depth)]
        if self._vouches(observation) and not fatal:
            for other in deferred:
                self._deferred.discard(other.id)
                self._finish(other.id, is_implied=True)
        else:
            for other in reversed(deferred):
                self._deferred.discard(other.id)
                yield from self._check(other)
            below = self._introduced_below(unit)
        yield from self._judge(unit, observation, below, fatal)
        result.is_done = True

    def _depth(self, unit_id: int) -> int:
        return len(self.tree.ancestors(self.units[unit_id].path))

    def _vouches(self, observation: Observation) -> bool:
        """Return whether a healthy observation says something of the parts that were compiled with it."""
        return (
            observation.completed
            and not observation.faults
            and not observation.skipped
            and not observation.is_blind
            and observation.graphs > 0
        )

    def _judge(
        self, unit: Unit, observation: Observation, below: dict[str, list[Fault]], fenced: tuple[str, ...]
    ) -> Steps:
        """Tell a unit's own faults from those below, probing again without the sick ones where they hide its own."""
        result = self.results[unit.id]
        keys_below = {path: {fault_key(fault) for fault in faults} for path, faults in below.items()}
        hiding = {path for path, faults in below.items() if any(f.kind is not Kind.GRAPH_BREAK for f in faults)}
        own: dict[FaultKey, Fault] = {}
        while True:
            unfenced = {path: keys for path, keys in keys_below.items() if path not in fenced}
            own = {key: fault for key, fault in own.items() if has_user_stack(fault)}
            unclear: set[FaultKey] = set()
            for fault in observation.faults:
                same = is_same_as_child(self.tree, unit.path, fault, unfenced)
                if same is False:
                    own.setdefault(fault_key(fault), fault)
                    continue
                result.inherited.append(fault)
                if same is None:
                    unclear.add(fault_key(fault))
            culprits = [
                path for path, keys in unfenced.items() if (path in hiding and observation.faults) or keys & unclear
            ]
            if not culprits:
                break
            # What a sick module does to the whole hides what this one brings itself: look again without it. What
            # then is gone came from there, unless its stack says otherwise.
            result.inherited.extend(fault for fault in own.values() if not has_user_stack(fault))
            fenced = (*fenced, *culprits)
            observation = yield self._probe(unit, fenced=fenced, purpose="fence")
        for fault in own.values():
            yield from self._introduce(unit, fault, fenced)

    def _introduce(self, unit: Unit, fault: Fault, fenced: tuple[str, ...]) -> Steps:
        result = self.results[unit.id]
        if has_user_stack(fault):
            owner = owner_below(self.tree, unit.path, fault, self._healthy_paths())
            if owner is not None and owner in self.unit_of:
                # The code of a module below, which it reaches only where it stands here.
                result.inherited.append(fault)
                target = self.results[self.unit_of[owner].id]
                if target.skipped != LEFT_OUT:
                    target.introduced.append(IntroducedFault(path=owner, fault=fault, seen_in=unit.path))
                return
            result.introduced.append(IntroducedFault(path=unit.path, fault=fault))
            return
        region = yield from self._region(unit, fault, fenced)
        stage = fault.stage
        if stage is None and self._has_ladder:
            stage = yield from self._climb(unit, fault, fenced)
        fault = msgspec.structs.replace(fault, stage=stage)
        result.introduced.append(IntroducedFault(path=unit.path, fault=fault, region=region))

    def _region(
        self, unit: Unit, fault: Fault, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, tuple[str, ...]]:
        """Find the smallest set of children whose interplay brings a fault; empty if the module's own code does."""
        where = _place(unit, fault)
        children = [path for path in self.tree.called_children(where) if path not in fenced]
        if not children:
            return ()
        key = fault_key(fault)
        alone = yield self._probe(unit, fenced=(*fenced, *children), purpose="region", path=where)
        if key in {fault_key(other) for other in alone.faults}:
            return ()
        if fault.kind is Kind.TIMEOUT or len(children) == 1:
            return tuple(children)
        search = minimal_set(children)
        try:
            kept = next(search)
            while True:
                away = tuple(path for path in children if path not in kept)
                seen = yield self._probe(unit, fenced=(*fenced, *away), purpose="region", path=where)
                kept = search.send(key in {fault_key(other) for other in seen.faults})
        except StopIteration as stop:
            return tuple(stop.value)

    def _climb(self, unit: Unit, fault: Fault, fenced: tuple[str, ...]) -> Generator[Probe, Observation, Stage | None]:
        """Climb the ladder of backends up to the first rung that shows the fault."""
        if fault.kind is Kind.TIMEOUT:
            return None
        for rung, stage in STAGE_OF_RUNG.items():
            seen = yield self._probe(unit, fenced=fenced, rung=rung, purpose="ladder", path=_place(unit, fault))
            if any(other.kind is fault.kind for other in seen.faults):
                return stage
        return Stage.INDUCTOR

    def _healthy_paths(self) -> set[str]:
        return {
            path
            for unit in self.units
            if (seen := self.results[unit.id].observation) is not None
            and seen.completed
            and not (seen.faults or seen.skipped)
            for path in unit.paths
        }

    def _introduced_below(self, unit: Unit) -> dict[str, list[Fault]]:
        found: dict[str, list[Fault]] = {}
        for path in self.tree.descendants(unit.path):
            if path in self.unit_of:
                faults = [item.fault for item in self.results[self.unit_of[path].id].introduced]
                if faults:
                    found[path] = faults
        return found

    def _probe(
        self,
        unit: Unit,
        *,
        fenced: tuple[str, ...] = (),
        rung: Rung | None = None,
        is_cold: bool = False,
        purpose: str = "check",
        path: str | None = None,
    ) -> Probe:
        path = unit.path if path is None else path
        return Probe(unit=unit.id, path=path, fenced=fenced, rung=rung, is_cold=is_cold, purpose=purpose)


def _place(unit: Unit, fault: Fault) -> str:
    """Return the instance of a unit that shows a fault; weights differ, so it need not be the first."""
    instance = fault.evidence.get("instance")
    return instance if instance in unit.paths else unit.path


def _is_wanted(path: str, only: Sequence[str], skip: Sequence[str]) -> bool:
    if any(fnmatchcase(path, pattern) for pattern in skip):
        return False
    return not only or any(fnmatchcase(path, pattern) for pattern in only)
