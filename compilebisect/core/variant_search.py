"""Which module goes wrong, or makes compiled code unusable, for other inputs: from the whole model downwards.

Pure search, like the walk that it ends. What the whole model is spared is no user's problem, so the modules below are
only looked at where the model that holds them shows something.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

import msgspec

from compilebisect.core.blame import owner_of
from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.ladder import with_stage
from compilebisect.core.module_tree import ModuleTree, moved_path
from compilebisect.core.outcome import Fault, Kind, Observation, Rung
from compilebisect.core.unit_result import InheritedFault, IntroducedFault, Probe, Steps, UnitResult
from compilebisect.core.units import Unit

#: What may show with further variants. What ends the process leaves the module untested.
OF_VARIANTS = frozenset({Kind.RECOMPILE, Kind.DIVERGENCE, Kind.ERROR})
_OF_RESULTS = (Kind.DIVERGENCE, Kind.ERROR)
# Lists the faults of an observation that a search is about.
_Pick = Callable[[Observation], list[Fault]]


class VariantSearch:
    """Feeds `count` variants of the inputs to modules and writes into `results` who introduces what shows with them."""

    def __init__(
        self,
        tree: ModuleTree,
        unit_of: Mapping[str, Unit],
        results: dict[int, UnitResult],
        count: int,
        *,
        backend: str = Rung.INDUCTOR.value,
    ) -> None:
        self._tree, self._unit_of, self._results, self._count = tree, unit_of, results, count
        self._backend = backend
        self._known: set[FaultKey] = set()

    def run(self, unit: Unit, fenced: tuple[str, ...]) -> Steps:
        """Search below and at a unit; `fenced` are modules that end the process when they are compiled."""
        # What the first variant shows already is judged.
        introduced = [item for result in self._results.values() for item in result.introduced]
        self._known = {fault_key(item.fault) for item in introduced}
        sick = [path for path in self._tree if path and self._brings_wrong_results(path) and path not in fenced]
        seen = yield self._probe(unit.path, fenced)
        self._results[unit.id].recompiles += seen.recompiles
        result = self._results[unit.id]
        result.notes.extend(seen.notes)
        result.untested = result.untested or _why_not_all_run(seen)
        # Whatever gets a tensor with a size of 1 is compiled apart for it: that is said where the inputs come in.
        for fault in self._recompiles(seen, of_size_one=True):
            yield from self._introduce(unit.path, fault, fenced)
        yield from self._judge(unit.path, self._recompiles(seen), fenced, self._recompiles)
        wrong = _wrong_results(seen)
        if wrong and sick:  # faults of this sort have no line by which one is told from another
            fenced = (*fenced, *sick)
            wrong = _wrong_results((yield self._probe(unit.path, fenced)))
        if wrong and not self._brings_wrong_results(unit.path):
            yield from self._judge(unit.path, wrong, fenced, _wrong_results)

    def _brings_wrong_results(self, path: str) -> bool:
        unit = self._unit_of.get(path)
        found = self._results[unit.id].introduced if unit is not None else []
        return any(item.fault.kind in _OF_RESULTS and item.is_of(path) for item in found)

    def _judge(
        self, path: str, faults: Sequence[Fault], fenced: tuple[str, ...], pick: _Pick
    ) -> Generator[Probe, Observation, bool]:
        """Give faults of a module to those that bring them; returns whether there were any."""
        if not faults:
            return False
        culprits: list[str] = []
        answers: dict[int, bool] = {}
        for child in self._tree.called_children(path):
            unit = self._unit_of.get(child)
            if unit is None or child in fenced or self._results[unit.id].is_left_out or self._results[unit.id].untested:
                continue
            if unit.id not in answers:
                below = tuple(moved_path(other, child, unit.path) for other in fenced)
                seen = yield self._probe(unit.path, below)
                self._results[unit.id].recompiles += seen.recompiles if pick == self._recompiles else 0
                answers[unit.id] = yield from self._judge(unit.path, pick(seen), below, pick)
            if answers[unit.id]:
                culprits.append(child)
        if culprits:
            result = self._results[self._unit_of[path].id]
            result.inherited.extend(InheritedFault(fault=fault) for fault in faults)
            # One fault comes first and hides the others: look again without those that are known.
            fenced = (*fenced, *culprits)
            faults = pick((yield self._probe(path, fenced)))
        for fault in faults:
            yield from self._introduce(path, fault, fenced)
        return True

    def _introduce(self, path: str, fault: Fault, fenced: tuple[str, ...]) -> Steps:
        if fault.kind in _OF_RESULTS:
            fault = yield from with_stage(
                fault, self._backend, lambda rung: msgspec.structs.replace(self._probe(path, fenced), rung=rung)
            )
        result = self._results[self._unit_of[path].id]
        owner = owner_of(self._tree, path, fault)
        if owner is None or owner not in self._unit_of:
            result.introduced.append(IntroducedFault(path=path, fault=fault))
            return
        result.inherited.append(InheritedFault(fault=fault))
        owners = fault.owners if len(fault.owners) > 1 else ()
        self._results[self._unit_of[owner].id].introduced.append(
            IntroducedFault(path=owner, fault=fault, seen_in=path, instances=owners)
        )

    def _recompiles(self, seen: Observation, *, of_size_one: bool = False) -> list[Fault]:
        """List the recompiles that are not known yet: those of sizes of 0 and 1, or all others."""
        new = [fault for fault in seen.faults if fault.kind is Kind.RECOMPILE and fault_key(fault) not in self._known]
        return [fault for fault in new if fault.evidence.get("is_of_size_one", False) == of_size_one]

    def _probe(self, path: str, fenced: tuple[str, ...]) -> Probe:
        return Probe(unit=self._unit_of[path].id, path=path, fenced=fenced, purpose="variants", variants=self._count)


def _wrong_results(seen: Observation) -> list[Fault]:
    return [fault for fault in seen.faults if fault.kind in _OF_RESULTS]


def _why_not_all_run(seen: Observation) -> str:
    failed = "; ".join(fault.message for fault in seen.faults if fault.kind not in OF_VARIANTS)
    return f"the further variants of the inputs were not all run: {failed}" if failed else seen.untested
