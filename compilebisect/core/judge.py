"""What an observation means: which of a unit's faults are its own, which come from below, which need an interplay.

Pure search, like the walk that it serves: where an observation alone does not tell, it asks for further probes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import msgspec

from compilebisect.core.blame import has_user_stack, is_same_as_child, owner_of
from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.module_tree import ModuleTree, moved_path
from compilebisect.core.outcome import Fault, Kind, Observation, Rung, Stage
from compilebisect.core.reduce.search import smallest_subset
from compilebisect.core.tolerance import ACCUMULATES_TO
from compilebisect.core.unit_result import InheritedFault, IntroducedFault, Probe, Steps, UnitResult
from compilebisect.core.units import Unit

LEFT_OUT = "left out by --only or --skip"
# Of fewer modules rounding does not add up to what is beyond the tolerance: a fault near it may hide in parts of them.
MANY = 8
# After a crash or a hang each further probe of the same unit costs a worker, or the whole deadline.
ENDS_PROCESS = (Kind.CRASH, Kind.TIMEOUT)
_ONLY_TOGETHER = "it is small, and no module brings it by itself"
STAGE_OF_RUNG = {
    Rung.EAGER: Stage.DYNAMO,
    Rung.AOT_EAGER: Stage.AOT_AUTOGRAD,
    Rung.AOT_EAGER_DECOMP_PARTITION: Stage.AOT_AUTOGRAD,
}


class Judge:
    """Reads the observations of units against the results of the units below, and writes its verdicts into `results`.

    `has_ladder` says whether the backends of the ladder are rungs below the user's own.
    """

    def __init__(
        self, tree: ModuleTree, units: Sequence[Unit], results: dict[int, UnitResult], *, has_ladder: bool
    ) -> None:
        self._tree = tree
        self._unit_of = {path: unit for unit in units for path in unit.paths}
        self._results = results
        self._has_ladder = has_ladder

    def introduced_below(self, path: str) -> dict[str, list[Fault]]:
        """Return the faults that the modules below `path` bring, by module."""
        found = {}
        for other in self._tree.descendants(path):
            if other in self._unit_of:
                introduced = self._results[self._unit_of[other].id].introduced
                if faults := [item.fault for item in introduced if item.is_of(other)]:
                    found[other] = faults
        return found

    def fatal_below(self, path: str) -> tuple[str, ...]:
        """Return the modules below `path` whose compile ends or blocks the process."""
        below = self.introduced_below(path)
        return tuple(other for other, faults in below.items() if any(fault.kind in ENDS_PROCESS for fault in faults))

    def judge(self, unit: Unit, observation: Observation, paths: Sequence[str], fenced: tuple[str, ...] = ()) -> Steps:
        """Give each fault of an observation to the module that brings it.

        Args:
            unit: the unit that was probed.
            observation: what was seen.
            paths: the instances that were run; the first was compiled.
            fenced: modules below the first that were kept eager.
        """
        for places in self._alike(observation, paths):
            shown = _shown(observation, places, paths[0])
            if shown.faults:
                moved = tuple(moved_path(other, paths[0], places[0]) for other in fenced)
                yield from self._judge_alike(unit, places, shown, moved)

    def _alike(self, observation: Observation, paths: Sequence[str]) -> list[list[str]]:
        """Put those instances together that show faults and have the same faults below."""
        groups: dict[frozenset[tuple[str, FaultKey]], list[str]] = {}
        for path in paths:
            if path == paths[0] or path in observation.faults_by_instance:
                below = self.introduced_below(path)
                sick = frozenset(
                    (moved_path(other, path, ""), fault_key(fault)) for other in below for fault in below[other]
                )
                groups.setdefault(sick, []).append(path)
        return list(groups.values())

    def _judge_alike(self, unit: Unit, places: Sequence[str], shown: _Shown, fenced: tuple[str, ...]) -> Steps:
        """Tell the faults of some instances from those below, probing without the sick ones where they hide some."""
        place = places[0]
        below = self.introduced_below(place)
        keys_below = {path: {fault_key(fault) for fault in found} for path, found in below.items()}
        hiding = {path for path, found in below.items() if any(f.kind is not Kind.GRAPH_BREAK for f in found)}
        own: dict[FaultKey, IntroducedFault] = {}
        while True:
            unfenced = {path: keys for path, keys in keys_below.items() if path not in fenced}
            own = {key: item for key, item in own.items() if _is_told_by_stack(item.fault)}
            unclear: set[FaultKey] = set()
            for fault in shown.faults:
                key = fault_key(fault)
                instances = shown.instances.get(key, ())
                same = is_same_as_child(self._tree, place, fault, unfenced)
                if same is False:
                    own.setdefault(key, IntroducedFault(path=place, fault=fault, instances=instances))
                    continue
                self._inherit(unit, fault, instances)
                if same is None:
                    unclear.add(key)
            culprits = [path for path, keys in unfenced.items() if (path in hiding and shown.faults) or keys & unclear]
            if not culprits:
                break
            # What a sick module does to the whole hides what this one brings itself: look again without it. What
            # then is gone came from there, unless its stack says otherwise.
            for item in own.values():
                if not _is_told_by_stack(item.fault):
                    self._inherit(unit, item.fault, item.instances)
            fenced = (*fenced, *culprits)
            # A recompile only hides others, which show with any backend.
            hidden = [fault for found in (shown.faults, *below.values()) for fault in found]
            observation = yield Probe(
                unit=unit.id,
                path=place,
                rung=Rung.EAGER if all(fault.shows_with_any_backend for fault in hidden) else None,
                fenced=fenced,
                purpose="fence",
                instances=tuple(places[1:]),
            )
            shown = _shown(observation, places, place)
        for item in own.values():
            yield from self._introduce(unit, item, fenced)

    def _inherit(self, unit: Unit, fault: Fault, instances: tuple[str, ...]) -> None:
        self._results[unit.id].inherited.append(InheritedFault(fault=fault, instances=instances))

    def _introduce(self, unit: Unit, item: IntroducedFault, fenced: tuple[str, ...]) -> Steps:
        """Enter a fault that is not from a sick module below, with its region and stage."""
        result, place, fault = self._results[unit.id], item.path, item.fault
        if item.instances:  # values differ, so it need not be the compiled one that shows it
            fenced = tuple(moved_path(other, place, item.instances[0]) for other in fenced)
            place = item.instances[0]
            item = msgspec.structs.replace(item, path=place)
        if has_user_stack(fault) or fault.kind is Kind.RECOMPILE:
            owner = owner_of(self._tree, place, fault, self._healthy_paths())
            if owner is None or owner not in self._unit_of:
                result.introduced.append(item)
                return
            # The code of a module below, which it reaches only where it stands here.
            self._give_to(owner, unit, item)
            return
        if (yield from self._is_of_left_out(unit, place, fault, fenced)):
            result.inherited.append(InheritedFault(fault=fault, instances=item.instances, is_of_left_out=True))
            return
        region = yield from self._region(unit, place, fault, fenced)
        item = msgspec.structs.replace(item, path=place, region=region)
        child = None
        if fault.kind is Kind.DIVERGENCE:
            child = yield from self._wrong_alone(unit, item, fenced)
            if (yield from self._only_adds_up(unit, item, child, fenced)):
                result.notes.append(f"accumulated rounding: {_ONLY_TOGETHER}: {fault.message}")
                return
        if fault.stage is None and self._has_ladder:
            stage = yield from self._climb(unit, place, fault, fenced)
            item = msgspec.structs.replace(item, fault=msgspec.structs.replace(fault, stage=stage))
        if child is None:
            result.introduced.append(item)
        else:
            self._give_to(child, unit, item)

    def _give_to(self, owner: str, unit: Unit, item: IntroducedFault) -> None:
        """Enter a fault that a unit shows as one of a module below, which shows it only where it stands there."""
        self._inherit(unit, item.fault, item.instances)
        target = self._results[self._unit_of[owner].id]
        if target.skipped == LEFT_OUT:
            return
        owners = item.fault.owners if len(item.fault.owners) > 1 else ()
        owners = owners or tuple(moved_path(owner, item.path, other) for other in item.instances)
        target.introduced.append(IntroducedFault(path=owner, fault=item.fault, seen_in=item.path, instances=owners))

    def _wrong_alone(
        self, unit: Unit, item: IntroducedFault, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, str | None]:
        """Return the innermost module of a region that brings a divergence while all around it runs in eager mode.

        By itself it is within its tolerance, which can be wider than that of the module above it.
        """
        found: str | None = None
        candidates: Sequence[str] = item.region
        while candidates:
            for path in candidates:
                if path in fenced or path not in self._unit_of:
                    continue
                seen = yield Probe(
                    unit=unit.id, path=item.path, compiles_only=path, fenced=fenced, purpose="alone inside"
                )
                if fault_key(item.fault) in {fault_key(other) for other in seen.faults}:
                    found, candidates = path, self._tree.called_children(path)
                    break
            else:
                break
        return found

    def _only_adds_up(
        self, unit: Unit, item: IntroducedFault, child: str | None, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, bool]:
        """Return whether a small divergence takes many modules, and so may be their rounding taken together.

        `child` is the one below that brings it alone, with all that is in it.
        """
        if item.fault.evidence.get("excess", ACCUMULATES_TO + 1.0) > ACCUMULATES_TO:
            return False
        together = [path for other in item.region for path in (other, *self._tree.descendants(other))]
        if child is None:
            return len(together) >= MANY
        below = tuple(path for path in self._tree.called_children(child) if path not in fenced)
        if len(self._tree.descendants(child)) < MANY:
            return False
        probe = Probe(
            unit=unit.id, path=item.path, compiles_only=child, fenced=(*fenced, *below), purpose="alone inside"
        )
        seen = yield probe
        return fault_key(item.fault) not in {fault_key(other) for other in seen.faults}

    def _is_of_left_out(
        self, unit: Unit, place: str, fault: Fault, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, bool]:
        """Return whether a fault is gone without the modules below that nobody was to look at."""
        left_out = tuple(
            path
            for path in self._tree.descendants(place)
            if path in self._unit_of and self._results[self._unit_of[path].id].skipped == LEFT_OUT
        )
        if not left_out:
            return False
        seen = yield Probe(unit=unit.id, path=place, fenced=(*fenced, *left_out), purpose="left out")
        return fault_key(fault) not in {fault_key(other) for other in seen.faults}

    def _region(
        self, unit: Unit, place: str, fault: Fault, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, tuple[str, ...]]:
        """Find the smallest set of children whose interplay brings a fault; empty if the module's own code does."""
        children = [path for path in self._tree.called_children(place) if path not in fenced]
        if not children:
            return ()
        key = fault_key(fault)
        alone = yield Probe(unit=unit.id, path=place, fenced=(*fenced, *children), purpose="region")
        if key in {fault_key(other) for other in alone.faults}:
            return ()
        if fault.kind is Kind.TIMEOUT or len(children) == 1:
            return tuple(children)
        search = smallest_subset(children)
        try:
            kept = next(search)
            while True:
                away = tuple(path for path in children if path not in kept)
                seen = yield Probe(unit=unit.id, path=place, fenced=(*fenced, *away), purpose="region")
                kept = search.send(key in {fault_key(other) for other in seen.faults})
        except StopIteration as stop:
            return tuple(stop.value)

    def _climb(
        self, unit: Unit, place: str, fault: Fault, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, Stage | None]:
        """Climb the ladder of backends up to the first rung that shows the fault."""
        if fault.kind is Kind.TIMEOUT:
            return None
        for rung, stage in STAGE_OF_RUNG.items():
            seen = yield Probe(unit=unit.id, path=place, fenced=fenced, rung=rung, purpose="ladder")
            if any(other.kind is fault.kind for other in seen.faults):
                return stage
        return Stage.INDUCTOR

    def _healthy_paths(self) -> set[str]:
        return {
            path
            for unit in set(self._unit_of.values())
            if (seen := self._results[unit.id].observation) is not None
            and seen.completed
            and not (seen.faults or seen.skipped)
            for path in unit.paths
        }


def _is_told_by_stack(fault: Fault) -> bool:
    # An error shows at the line that uses what a sick module gave, a tensor of a wrong shape for example.
    return has_user_stack(fault) and fault.kind is not Kind.ERROR


class _Shown(msgspec.Struct, frozen=True):
    """Faults that some instances show, each once, and for those that belong to values: which instances."""

    faults: list[Fault]
    instances: dict[FaultKey, tuple[str, ...]]


def _shown(observation: Observation, places: Sequence[str], compiled: str) -> _Shown:
    """Gather what instances show; what belongs to the code rather than to values is shown by the compiled one."""
    faults: dict[FaultKey, Fault] = {}
    instances: dict[FaultKey, tuple[str, ...]] = {}
    for place in places:
        for fault in observation.faults_by_instance.get(place, ()):
            key = fault_key(fault)
            faults.setdefault(key, fault)
            instances[key] = (*instances.get(key, ()), place)
    of_code = []
    if compiled in places:
        by_instance = {fault_key(fault) for found in observation.faults_by_instance.values() for fault in found}
        of_code = [fault for fault in observation.faults if fault_key(fault) not in by_instance]
    return _Shown([*faults.values(), *of_code], instances)
