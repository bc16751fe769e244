"""The walk over the units of a model: which probe comes next, and what each observation means.

Pure search: it proposes probes and is told what they saw. Units are checked leaves first; a unit that shows a fault
which nothing below shows introduces it. See `docs/explanation/how-it-works.md` for the rules.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from fnmatch import fnmatchcase

import msgspec

from compilebisect.core.context_search import ContextSearch
from compilebisect.core.dismissed import is_seen_as
from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.hidden_breaks import look_behind_breaks
from compilebisect.core.judge import ENDS_PROCESS, Judge
from compilebisect.core.module_tree import OPTIMIZER_PATH, ModuleTree, moved_path
from compilebisect.core.outcome import Fault, Kind, Observation, Rung
from compilebisect.core.unit_result import InheritedFault, IntroducedFault, Probe, Steps, UnitResult
from compilebisect.core.units import Unit, split_units
from compilebisect.core.variant_search import OF_VARIANTS, VariantSearch

# A container is left to its parent where it makes up at least this share of it: compiling both costs twice and tells
# nothing new as long as the parent is healthy. Measured: three nested, nearly equal ancestors took 76 % of one walk.
NEARLY_SAME = 0.6
# After these an instance leaves nothing to be run in the same process.
ENDS_RUN = (Kind.ERROR, Kind.CRASH, Kind.TIMEOUT)
# Probes that compile a module as the user would and compare all of it.
_COVERING = ("check", "fence", "left out")
# Probes without whose answer it is not known whether a module is healthy.
_TELLING_MORE = ("fence", "variants")


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
        backend: str = Rung.INDUCTOR.value,
        kinds: Sequence[Kind] = tuple(Kind),
        variants: int = 1,
        context: bool = False,
    ) -> None:
        self.tree = tree
        self.units = split_units(units, lambda path: _is_wanted(path, only, skip))
        self.results = {unit.id: UnitResult() for unit in self.units}
        self.unit_of = {path: unit for unit in self.units for path in unit.paths}
        self.probes_made = 0
        self._all_modules = all_modules
        self._judge = Judge(tree, self.units, self.results, backend=backend)
        self._kinds = frozenset(kinds)
        self._variants = (
            VariantSearch(tree, self.unit_of, self.results, variants, backend=backend) if variants > 1 else None
        )
        self._in_place = ContextSearch(tree, self.unit_of, self.results, self._judge)
        self._context = self._in_place if context else None
        self._below = {unit.id: self._units_below(unit) for unit in self.units}
        self._deferred: set[int] = set()
        self._started: set[int] = set()
        self._running: dict[int, Steps] = {}
        self._pending: dict[int, Probe] = {}
        self._in_flight: set[int] = set()
        self._seen: dict[int, Observation] = {}  # the first of each unit, until it is judged
        for unit in self.units:
            if not _is_wanted(unit.path, only, skip):
                self._leave_out(unit.id)
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
        self._note_what_it_covers(probe, observation)
        if probe.purpose == "check":
            self._seen[probe.unit] = observation
        try:
            self._pending[owner] = self._running[owner].send(observation)
        except StopIteration:
            del self._pending[owner], self._running[owner]

    def _wanted_of(self, observation: Observation) -> Observation:
        def wanted(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
            return tuple(fault for fault in faults if fault.kind in self._kinds)

        by_instance = {path: wanted(faults) for path, faults in observation.faults_by_instance.items()}
        left = wanted(observation.faults)
        untested = observation.untested
        ends = [fault for fault in observation.faults if fault.kind in ENDS_RUN]
        if not untested and not observation.completed and not any(fault in left for fault in ends):
            how = f"with {ends[0].kind.value} ({ends[0].type}), a kind that --check leaves out" if ends else "early"
            untested = f"its check ended {how}"
        if not untested and observation.is_all_eager and Kind.GRAPH_BREAK not in self._kinds:
            untested = "all of it ran in eager mode since graphs break in it, a kind that --check leaves out"
        return msgspec.structs.replace(
            observation,
            faults=left,
            faults_by_instance={path: faults for path, faults in by_instance.items() if faults},
            untested=untested,
        )

    def _note_what_it_covers(self, probe: Probe, seen: Observation) -> None:
        """Keep which modules a probe really compiled, and that one which was to tell more of a module told nothing."""
        result = self.results[probe.unit]
        if probe.purpose in _TELLING_MORE and seen.untested:
            result.untested = result.untested or seen.untested
        is_as_a_user_would = probe.rung is None and probe.compiles_only is None and not probe.in_place
        has_run = seen.completed and not (seen.untested or seen.is_all_eager) and bool(seen.graphs or not probe.fenced)
        if probe.purpose in _COVERING and probe.path == self.units[probe.unit].path and is_as_a_user_would and has_run:
            result.kept_out.append(probe.fenced)

    def is_finished(self) -> bool:
        """Return whether every unit has its verdict."""
        return all(result.is_done for result in self.results.values())

    def remaining(self) -> int:
        """Count the units that have no verdict yet."""
        return sum(not result.is_done for result in self.results.values())

    def unjudged_faults(self) -> dict[int, list[IntroducedFault]]:
        """Return, by unit, faults that were seen in a module with only healthy ones below, and are not judged yet.

        Where they belong is not known for sure, but a walk that ends here must not lose them.
        """
        found = {}
        for unit in self.units:
            result = self.results[unit.id]
            if result.is_done or unit.id not in self._seen or result.introduced or result.inherited:
                continue
            below = [self.results[other] for other in self._below[unit.id]]
            if all((other.is_done or other.is_implied) and not other.introduced for other in below):
                found[unit.id] = [IntroducedFault(path=unit.path, fault=fault) for fault in self._seen[unit.id].faults]
        return found

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

    def _leave_out(self, unit_id: int) -> None:
        result = self.results[unit_id]
        result.is_done = result.is_left_out = True

    # --- the check of one unit --------------------------------------------------------------------------------

    def _check(self, unit: Unit) -> Steps:
        result = self.results[unit.id]
        self._started.add(unit.id)
        if not self.tree[unit.path].calls and self._context is not None:  # only other methods of it ran
            yield from self._context.run(unit, unit.paths, self._check_implied_below)
            result.is_done = True
            return
        fatal = self._judge.fatal_below(unit.path)
        below = self._judge.introduced_below(unit.path)
        result.inherited.extend(
            InheritedFault(fault=fault) for path in fatal for fault in below[path] if fault.kind in ENDS_PROCESS
        )
        paths = self.paths_to_run(unit)
        observation = yield from self._observe(unit, paths, fatal)
        result.observation = observation
        result.untested = observation.untested
        result.untested_instances = dict(observation.untested_instances)
        result.notes.extend(observation.notes)
        deferred = [self.units[other] for other in sorted(self._below[unit.id] & self._deferred, key=self._depth)]
        if self._vouches(observation) and not fatal:
            for other in deferred:
                self._deferred.discard(other.id)
                self._started.add(other.id)
                self.results[other.id].is_implied = True
        else:
            for other in reversed(deferred):
                self._deferred.discard(other.id)
                yield from self._check(other)
        result.recompiles = observation.recompiles
        yield from self._judge.judge(unit, observation, paths, fatal)
        if Kind.GRAPH_BREAK in self._kinds:
            yield from look_behind_breaks(self.tree, self._judge, unit, result, observation, fatal)
        if not fatal:
            yield from self._dismiss_recompiles_below(unit, observation, fatal)
            self._dismiss_rows_below(unit, observation)
        if self._context is not None:
            yield from self._context.run(unit, paths, self._check_implied_below)
        elif self.tree[unit.path].uncaptured and self.tree[unit.path].shows_in_place:
            yield from self._in_place.check(unit, paths, self._check_implied_below)
        for other in deferred:
            self.results[other.id].is_done = True
        has_run = observation.completed and not observation.untested
        if self._variants is not None and self._kinds & OF_VARIANTS and has_run and self._is_outermost(unit):
            yield from self._variants.run(unit, fatal)
        result.is_done = True

    def _check_implied_below(self, unit: Unit) -> Steps:
        """Check what was implied to be healthy, now that something shows above it."""
        for other in self.units:  # leaves first
            if other.id in self._below[unit.id] and self.results[other.id].is_implied:
                self.results[other.id].is_implied = False
                yield from self._check(other)

    def _is_outermost(self, unit: Unit) -> bool:
        if unit.path == OPTIMIZER_PATH:
            return False  # no inputs reach it
        above = {self.unit_of[path].id for path in self.tree.ancestors(unit.path) if path in self.unit_of}
        return all(self.results[other].is_left_out for other in above)

    def _dismiss_recompiles_below(self, unit: Unit, observation: Observation, fatal: tuple[str, ...]) -> Steps:
        """Take back recompiles of modules that this one does not show: it puts back what they change, call by call."""
        below = {other for path in unit.paths for other in self.tree.descendants(path)}
        held = {
            other: [item for item in self.results[other].introduced if item.fault.kind is Kind.RECOMPILE]
            for other in sorted(self._below[unit.id])
            if below.issuperset(self.units[other].paths)
        }
        shown = _recompile_keys(observation)
        if not _tells_of_recompiles(observation):
            return
        latest, fenced = set(shown), fatal
        while latest and any(fault_key(item.fault) not in shown for items in held.values() for item in items):
            # Of several guards the first that fails hides the others: look again without those that are seen.
            culprits = self._showing_below(unit.path, latest)
            if not culprits:
                return
            fenced = (*fenced, *culprits)
            seen = yield Probe(unit=unit.id, path=unit.path, fenced=fenced, purpose="recompiles")
            latest = _recompile_keys(seen)
            if not _tells_of_recompiles(seen) or latest & shown:
                return
            shown |= latest
        for other, items in held.items():
            result = self.results[other]
            gone = [item for item in items if fault_key(item.fault) not in shown]
            if gone:
                result.introduced = [item for item in result.introduced if item not in gone]
                result.notes.append(f"compiled again in each call when called by itself, but not inside {_said(unit)}")
            result.inherited = [
                item
                for item in result.inherited
                if item.fault.kind is not Kind.RECOMPILE or fault_key(item.fault) in shown
            ]

    def _dismiss_rows_below(self, unit: Unit, observation: Observation) -> None:
        """Take back what shows in later calls of modules below and not in those of this one, which sets their state."""
        if not (observation.has_right_rows and _tells_of_recompiles(observation)) or observation.is_blind:
            return
        shown = {fault_key(fault) for fault in observation.faults}
        below = {other for path in unit.paths for other in self.tree.descendants(path)}
        for other in sorted(self._below[unit.id]):
            if not below.issuperset(self.units[other].paths):
                continue
            result = self.results[other]

            def is_gone(fault: Fault) -> bool:
                return fault.is_in_row and fault_key(fault) not in shown

            gone = [item for item in result.introduced if is_gone(item.fault)]
            result.introduced = [item for item in result.introduced if item not in gone]
            result.inherited = [item for item in result.inherited if not is_gone(item.fault)]
            result.notes.extend(
                f"when called by itself, but not inside {_said(unit)}: {item.fault.message}" for item in gone
            )

    def _showing_below(self, path: str, keys: set[FaultKey]) -> tuple[str, ...]:
        introduced = self._judge.introduced_below(path)
        return tuple(other for other, faults in introduced.items() if any(fault_key(fault) in keys for fault in faults))

    def _observe(
        self, unit: Unit, paths: Sequence[str], fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, Observation]:
        """Probe a unit with all its instances; where one of them ends the run, go on behind it."""
        is_cold = unit.path == ""
        probe = Probe(unit=unit.id, path=unit.path, instances=tuple(paths[1:]), fenced=fenced, is_cold=is_cold)
        seen = yield probe
        left = _unchecked(seen, paths)
        while left:
            moved = tuple(moved_path(other, unit.path, left[0]) for other in fenced)
            more = yield Probe(unit=unit.id, path=left[0], instances=tuple(left[1:]), fenced=moved, purpose="instances")
            if _fails_alike(seen, more):
                break  # the code fails, whatever the values are
            seen = _merged(seen, more, paths[0], left[0])
            left = left[1:] if more.untested else _unchecked(more, left)
        return _without_the_unrun(seen, paths)

    def paths_to_run(self, unit: Unit) -> tuple[str, ...]:
        """Return the instances of a unit whose own golden calls are run.

        Code that is compiled for one instance is the code of all, but weights differ, and so may values.
        """
        return unit.paths if Kind.DIVERGENCE in self._kinds else unit.paths[:1]

    def first_check_of(self, item: IntroducedFault) -> Probe | None:
        """Return the check that showed a fault first; None where only a later, narrower probe did."""
        path = item.path if item.seen_in is None else item.seen_in
        unit, evidence = self.unit_of[path], item.fault.evidence
        if evidence.get("only_in_place"):
            return Probe(unit=unit.id, path=path, in_place=True, purpose="again")
        seen = self.results[unit.id].observation
        if seen is None or evidence.get("in_variants") or not any(is_seen_as(item.fault, f) for f in seen.faults):
            return None
        return Probe(
            unit=unit.id,
            path=unit.path,
            instances=tuple(self.paths_to_run(unit)[1:]),
            fenced=self._judge.fatal_below(unit.path),
            is_cold=unit.path == "",
            purpose="again",
        )

    def _depth(self, unit_id: int) -> int:
        return len(self.tree.ancestors(self.units[unit_id].path))

    def _vouches(self, observation: Observation) -> bool:
        """Return whether a healthy observation says something of the parts that were compiled with it."""
        return (
            observation.completed
            and not observation.faults
            and not observation.untested
            and not observation.untested_instances
            and not observation.is_all_eager
            and not observation.is_blind
            and observation.graphs > 0
        )


def _recompile_keys(seen: Observation) -> set[FaultKey]:
    return {fault_key(fault) for fault in seen.faults if fault.kind is Kind.RECOMPILE}


def _tells_of_recompiles(seen: Observation) -> bool:
    return bool(seen.completed and not seen.untested and seen.frames_compiled)


def _unchecked(seen: Observation, paths: Sequence[str]) -> list[str]:
    """Return the instances that a fault of another one kept from being run; after a hang nobody waits again."""
    if seen.completed or seen.untested or any(fault.kind is Kind.TIMEOUT for fault in seen.faults):
        return []
    return _behind_the_last_failure(seen, paths)


def _behind_the_last_failure(seen: Observation, paths: Sequence[str]) -> list[str]:
    failed = [path for path in paths if any(f.kind in ENDS_RUN for f in seen.faults_by_instance.get(path, ()))]
    last = paths.index(failed[-1]) if failed else 0
    return list(paths[last + 1 :])


def _without_the_unrun(seen: Observation, paths: Sequence[str]) -> Observation:
    """Say of the instances behind one that hangs that they were not run."""
    if not any(fault.kind is Kind.TIMEOUT for faults in seen.faults_by_instance.values() for fault in faults):
        return seen
    why = "not run, since another instance of it did not get through in time"
    unrun = dict.fromkeys(_behind_the_last_failure(seen, paths), why)
    return msgspec.structs.replace(seen, untested_instances={**unrun, **seen.untested_instances})


def _fails_alike(seen: Observation, more: Observation) -> bool:
    """Return whether the first instance and the next one, compiled by itself, end in the same way."""
    ours, theirs = ({fault_key(f) for f in _fatal_of_code(one)} for one in (seen, more))
    return bool(ours & theirs)


def _fatal_of_code(seen: Observation) -> list[Fault]:
    keys = {fault_key(fault) for faults in seen.faults_by_instance.values() for fault in faults}
    return [fault for fault in seen.faults if fault.kind in ENDS_RUN and fault_key(fault) not in keys]


def _merged(seen: Observation, more: Observation, first: str, second: str) -> Observation:
    """Put two observations of one unit together; what ended only one of them belongs to that instance."""
    by_instance = dict(seen.faults_by_instance)
    for path, one in ((first, seen), (second, more)):
        if fatal := _fatal_of_code(one):
            by_instance[path] = (*by_instance.get(path, ()), *fatal)
    for path, faults in more.faults_by_instance.items():
        by_instance[path] = (*by_instance.get(path, ()), *faults)
    known = {fault_key(fault) for fault in seen.faults}
    untested = {**seen.untested_instances, **more.untested_instances}
    if more.untested:
        untested[second] = more.untested
    return msgspec.structs.replace(
        seen,
        faults=(*seen.faults, *(fault for fault in more.faults if fault_key(fault) not in known)),
        graphs=max(seen.graphs, more.graphs),
        compile_s=seen.compile_s + more.compile_s,
        is_all_eager=seen.is_all_eager or more.is_all_eager,
        is_blind=seen.is_blind or more.is_blind,
        has_excused=seen.has_excused or more.has_excused,
        notes=tuple(dict.fromkeys((*seen.notes, *more.notes))),
        faults_by_instance=by_instance,
        untested_instances=untested,
    )


def _said(unit: Unit) -> str:
    return f"'{unit.path}'" if unit.path else "the model"


def _is_wanted(path: str, only: Sequence[str], skip: Sequence[str]) -> bool:
    if any(fnmatchcase(path, pattern) for pattern in skip):
        return False
    return not only or any(fnmatchcase(path, pattern) for pattern in only)
