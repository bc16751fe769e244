"""What an observation means: which of a unit's faults are its own, which come from below, which need an interplay.

Pure search, like the walk that it serves: where an observation alone does not tell, it asks for further probes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import msgspec

from compilebisect.core.blame import has_user_stack, is_same_as_child, owner_of
from compilebisect.core.culprit_search import CulpritSearch, places_of, showing
from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.ladder import with_stage
from compilebisect.core.module_tree import ModuleTree, moved_path
from compilebisect.core.outcome import Fault, Kind, Observation, Rung
from compilebisect.core.shown_faults import Shown, shown_by, small_keys
from compilebisect.core.unit_result import InheritedFault, IntroducedFault, Probe, Steps, UnitResult
from compilebisect.core.units import Unit

LEFT_OUT = "left out by --only or --skip"
# After a crash or a hang each further probe of the same unit costs a worker, or the whole deadline.
ENDS_PROCESS = (Kind.CRASH, Kind.TIMEOUT)
#: So many modules that bring a divergence only inside one and the same other are sought; each costs some probes.
MOST_INSIDE = 8


class Judge:
    """Reads the observations of units against the results of the units below, and writes its verdicts into `results`.

    `backend` is the user's own, which says what the rungs of the ladder can tell.
    """

    def __init__(
        self, tree: ModuleTree, units: Sequence[Unit], results: dict[int, UnitResult], *, backend: str
    ) -> None:
        self._tree = tree
        self._unit_of = {path: unit for unit in units for path in unit.paths}
        self._results = results
        self._backend = backend
        self._inside = CulpritSearch(tree, self._unit_of, self._is_exact)

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
            shown = shown_by(observation, places, paths[0])
            if shown.faults:
                moved = tuple(moved_path(other, paths[0], places[0]) for other in fenced)
                yield from self._judge_alike(unit, places, shown, moved)

    def _alike(self, observation: Observation, paths: Sequence[str]) -> list[list[str]]:
        """Put those instances together that show faults, have the same faults below, and differ by as little."""
        groups: dict[tuple[frozenset[tuple[str, FaultKey]], frozenset[FaultKey]], list[str]] = {}
        for path in paths:
            if path == paths[0] or path in observation.faults_by_instance:
                below = self.introduced_below(path)
                sick = frozenset(
                    (moved_path(other, path, ""), fault_key(fault)) for other in below for fault in below[other]
                )
                groups.setdefault((sick, small_keys(observation.faults_by_instance.get(path, ()))), []).append(path)
        return list(groups.values())

    def _judge_alike(self, unit: Unit, places: Sequence[str], shown: Shown, fenced: tuple[str, ...]) -> Steps:
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
                in_row=any(fault.is_in_row for fault in hidden),
            )
            shown = shown_by(observation, places, place)
        for item in own.values():
            yield from self._introduce(unit, item, fenced)

    def _inherit(self, unit: Unit, fault: Fault, instances: tuple[str, ...]) -> None:
        self._results[unit.id].inherited.append(InheritedFault(fault=fault, instances=instances))

    def _introduce(self, unit: Unit, item: IntroducedFault, fenced: tuple[str, ...], found: int = 0) -> Steps:
        """Enter a fault that is not from a sick module below, with its region and stage.

        `found` counts the modules inside that bring it alone and are known by now.
        """
        result, place, fault = self._results[unit.id], item.path, item.fault
        if item.instances:  # values differ, so it need not be the compiled one that shows it
            fenced = tuple(moved_path(other, place, item.instances[0]) for other in fenced)
            place = item.instances[0]
            item = msgspec.structs.replace(item, path=place)
        owner = None
        if has_user_stack(fault) or fault.owners or fault.kind is Kind.RECOMPILE:
            owner = owner_of(self._tree, place, fault, self._healthy_paths())
            if owner is None or owner not in self._unit_of:
                result.introduced.append(item)
                return
            if not (self._results[self._unit_of[owner].id].is_left_out and self._hides_the_rest(unit, fault)):
                # The code of a module below, which it reaches only where it stands here.
                self._give_to(owner, unit, item)
                return
        left_out = tuple(path for path in self._left_out_below(place) if path not in fenced)
        if left_out:
            fenced = (*fenced, *left_out)
            seen = yield Probe(unit=unit.id, path=place, fenced=fenced, purpose="left out", in_row=fault.is_in_row)
            is_gone = not showing(seen, item, (place,))
            if is_gone or owner is not None:
                result.inherited.append(InheritedFault(fault=fault, instances=item.instances, is_of_left_out=True))
                if seen.untested or not seen.completed or not (seen.graphs or seen.frames_compiled):
                    how = "; ".join(f"{other.kind.value} ({other.type})" for other in seen.faults)
                    why = seen.untested or how or "nothing of it was compiled"
                    result.untested = f"with what was left out kept in eager mode: {why}"
                elif self._hides_the_rest(unit, fault):
                    yield from self._judge_rest(unit, place, seen, fenced)
                return
        region, sharing = yield from self._inside.region(unit, item, fenced)
        item = msgspec.structs.replace(item, path=place, region=region)
        if fault.kind is Kind.DIVERGENCE:
            yield from self._introduce_divergence(unit, item, sharing, fenced, found)
        else:
            result.introduced.append((yield from self._with_stage(unit, item, fenced)))

    def _hides_the_rest(self, unit: Unit, fault: Fault) -> bool:
        """Return whether a fault keeps a module from being compiled and compared."""
        seen = self._results[unit.id].observation
        is_all_eager = seen is not None and seen.is_all_eager
        return fault.kind in (Kind.ERROR, *ENDS_PROCESS) or (is_all_eager and fault.kind is Kind.GRAPH_BREAK)

    def _judge_rest(self, unit: Unit, place: str, seen: Observation, fenced: tuple[str, ...]) -> Steps:
        """Judge what shows only without the modules that were left out."""
        result = self._results[unit.id]
        met = [*(item.fault for item in result.introduced), *(item.fault for item in result.inherited)]
        known = {fault_key(fault) for fault in met}

        def is_new(fault: Fault) -> bool:
            return fault_key(fault) not in known

        rest = tuple(filter(is_new, seen.faults))
        own = tuple(filter(is_new, seen.faults_by_instance.get(place, ())))
        if rest:
            seen = msgspec.structs.replace(seen, faults=rest, faults_by_instance={place: own} if own else {})
            yield from self.judge(unit, seen, [place], fenced)

    def _introduce_divergence(
        self, unit: Unit, item: IntroducedFault, sharing: tuple[str, ...], fenced: tuple[str, ...], found: int
    ) -> Steps:
        """Enter a divergence as that of the module itself or of one below that brings it alone, or as rounding.

        What holds for some of the instances only leaves the others to be looked at again: `sharing` are those with
        the same region.
        """
        result, places = self._results[unit.id], places_of(item)
        item = msgspec.structs.replace(item, instances=sharing)
        child = None
        if not item.fault.evidence.get("only_in_place"):  # in place, each module below was looked at alone before
            child, sharing = yield from self._inside.wrong_alone(unit, item, fenced)
            item = msgspec.structs.replace(item, instances=sharing)
        reason = yield from self._inside.why_rounding(unit, item, child, fenced)
        if reason:
            note = f"{reason}: "
            if not any(known.startswith(note) for known in result.notes):
                result.notes.append(note + item.fault.message)
        else:
            told = yield from self._with_stage(unit, item, fenced)
            if child is None:
                result.introduced.append(told)
            else:
                self._give_to(child, unit, told)
        if child is not None:
            yield from self._look_again(unit, item, sharing, (*fenced, child), found + (not reason))
        if others := tuple(place for place in places if place not in sharing):
            yield from self._look_again(unit, item, others, fenced, found)

    def _look_again(
        self, unit: Unit, item: IntroducedFault, places: tuple[str, ...], fenced: tuple[str, ...], found: int
    ) -> Steps:
        """Enter what instances still show of a divergence, now that some of it is known."""
        fenced = tuple(moved_path(other, item.path, places[0]) for other in fenced)
        seen = yield Probe(
            unit=unit.id,
            path=places[0],
            fenced=fenced,
            purpose="rest",
            instances=places[1:],
            in_row=item.fault.is_in_row,
        )
        shown, key = shown_by(seen, places, places[0]), fault_key(item.fault)
        left = [fault for fault in shown.faults if fault_key(fault) == key]
        if left and found == MOST_INSIDE:
            self._results[unit.id].notes.append(
                f"further modules inside bring a divergence, beside {found} that are named"
            )
            return
        for fault in left:
            rest = IntroducedFault(path=places[0], fault=fault, instances=shown.instances.get(key, ()))
            yield from self._introduce(unit, rest, fenced, found)

    def _give_to(self, owner: str, unit: Unit, item: IntroducedFault) -> None:
        """Enter a fault that a unit shows as one of a module below, which shows it only where it stands there."""
        self._inherit(unit, item.fault, item.instances)
        target = self._results[self._unit_of[owner].id]
        if target.is_left_out:
            return
        target.is_implied = False
        owners = item.fault.owners if len(item.fault.owners) > 1 else ()
        owners = owners or tuple(moved_path(owner, item.path, other) for other in item.instances)
        target.introduced.append(IntroducedFault(path=owner, fault=item.fault, seen_in=item.path, instances=owners))

    def _is_exact(self, path: str) -> bool:
        """Return whether all that a module gave in its own check was within the floor of its dtype."""
        # what was implied healthy was looked at with one of those above it
        vouching = (path, *reversed(self._tree.ancestors(path)))
        results = (self._results[self._unit_of[other].id] for other in vouching if other in self._unit_of)
        seen = next((result.observation for result in results if not result.is_implied), None)
        if seen is None or not seen.completed or seen.untested or seen.has_excused:
            return False
        return not any(fault.kind is Kind.DIVERGENCE for fault in seen.faults)

    def _left_out_below(self, place: str) -> tuple[str, ...]:
        return tuple(
            path
            for path in self._tree.descendants(place)
            if path in self._unit_of and self._results[self._unit_of[path].id].is_left_out
        )

    def _with_stage(
        self, unit: Unit, item: IntroducedFault, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, IntroducedFault]:
        """Name the stage of a fault, where it is not known, by the first rung of the ladder that shows it."""
        fault = yield from with_stage(
            item.fault,
            self._backend,
            lambda rung: Probe(
                unit=unit.id,
                path=item.path,
                fenced=fenced,
                rung=rung,
                purpose="ladder",
                in_row=item.fault.is_in_row,
            ),
        )
        return msgspec.structs.replace(item, fault=fault)

    def _healthy_paths(self) -> set[str]:
        return {
            path
            for unit in set(self._unit_of.values())
            if (seen := self._results[unit.id].observation) is not None
            and seen.completed
            and not (seen.faults or seen.untested)
            for path in unit.paths
        }


def _is_told_by_stack(fault: Fault) -> bool:
    # An error shows at the line that uses what a sick module gave, a tensor of a wrong shape for example.
    return has_user_stack(fault) and fault.kind is not Kind.ERROR
