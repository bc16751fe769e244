"""Which units are looked at once more with their graph breaks mended, and what follows from what is seen then."""

from __future__ import annotations

import msgspec

from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.judge import Judge
from compilebisect.core.module_tree import ModuleTree
from compilebisect.core.outcome import Fault, Kind, Observation, Rung
from compilebisect.core.unit_result import IntroducedFault, Probe, Steps, UnitResult
from compilebisect.core.units import Unit

# What the look adds to a break that was known before.
_ADDED = ("graphs", "operators_in_graphs", "cures", "follows_from")


def look_behind_breaks(
    tree: ModuleTree,
    judge: Judge,
    unit: Unit,
    result: UnitResult,
    observation: Observation,
    fenced: tuple[str, ...],
) -> Steps:
    """Look behind the graph breaks of a unit: those that it brings, and those below that keep it from being traced.

    What a mended module shows counts for graph breaks alone.
    """
    place = _place(unit, observation)
    if place is None or not observation.completed:
        return
    below = {fault_key(fault) for faults in judge.introduced_below(place).values() for fault in faults}
    own = [item for item in result.introduced if _is_of_dynamo(item.fault)]
    if not own and not any(_skips_code_of(tree, place, fault) for fault in observation.faults):
        return
    seen = yield Probe(
        unit=unit.id,
        path=place,
        rung=Rung.EAGER,
        fenced=fenced,
        is_cold=place == "",
        purpose="breaks",
        mends_breaks=True,
        breaks_below=tuple(sorted(below - {fault_key(item.fault) for item in own})),
    )
    if any(fault.kind in (Kind.CRASH, Kind.TIMEOUT) for fault in seen.faults):
        result.notes.append("a look behind its graph breaks did not come to an end")
        return
    result.notes.extend(note for note in seen.notes if note not in result.notes)
    breaks = {fault_key(fault): fault for fault in seen.faults if fault.kind is Kind.GRAPH_BREAK}
    result.introduced = [_with_evidence(item, breaks) for item in result.introduced]
    shown = {fault_key(fault) for fault in observation.faults}
    hidden = tuple(
        fault for key, fault in breaks.items() if "hidden_behind" in fault.evidence and key not in shown | below
    )
    if hidden:
        by_instance = {place: hidden} if place in observation.faults_by_instance else {}
        yield from judge.judge(unit, Observation(faults=hidden, faults_by_instance=by_instance), [place], fenced)


def _place(unit: Unit, observation: Observation) -> str | None:
    """Return the instance to look at: the one that was compiled, or the first that has breaks of its own."""

    def breaks(faults: tuple[Fault, ...]) -> set[FaultKey]:
        return {fault_key(fault) for fault in faults if fault.kind is Kind.GRAPH_BREAK}

    by_instance = {path: breaks(faults) for path, faults in observation.faults_by_instance.items()}
    of_code = breaks(observation.faults) - {key for keys in by_instance.values() for key in keys}
    if of_code or by_instance.get(unit.path):
        return unit.path
    return next((path for path in unit.paths if by_instance.get(path)), None)


def _is_of_dynamo(fault: Fault) -> bool:
    """Whether it is a break at an expression: what the backend does not take, Dynamo has traced."""
    return fault.kind is Kind.GRAPH_BREAK and fault.shows_with_any_backend


def _skips_code_of(tree: ModuleTree, path: str, fault: Fault) -> bool:
    """Return whether a break makes Dynamo give up on a function that is not known to be of a module below."""
    if not _is_of_dynamo(fault):
        return False
    below = [span for other in tree.descendants(path) for span in tree[other].methods]
    own = list(tree[path].methods)

    def is_own(frame: dict[str, object]) -> bool:
        where = str(frame["file"]), int(str(frame["line"]))
        return any(span.holds(*where) for span in own) or not any(span.holds(*where) for span in below)

    return any(is_own(frame) for frame in fault.evidence.get("skipped_frames", ()))


def _with_evidence(item: IntroducedFault, seen: dict[FaultKey, Fault]) -> IntroducedFault:
    found = seen.get(fault_key(item.fault))
    if found is None:
        return item
    added = {name: found.evidence[name] for name in _ADDED if name in found.evidence}
    fault = msgspec.structs.replace(item.fault, hint=found.hint, evidence={**item.fault.evidence, **added})
    return msgspec.structs.replace(item, fault=fault)
