"""Which module makes the model slower when it is compiled.

Pure search, like the walk that it follows: it asks for timings and is told them. Leaves first, so that what a container
loses can be set against what the slow modules inside it lose.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import msgspec

from compilebisect.core.judge import ENDS_PROCESS
from compilebisect.core.module_tree import ModuleTree
from compilebisect.core.outcome import Fault, Kind, Rung, Stage
from compilebisect.core.timing import ENTRIES, Loss, UnitTiming, is_beyond_noise
from compilebisect.core.unit_result import InheritedFault, IntroducedFault, UnitResult
from compilebisect.core.units import Unit

TYPE = "slower than eager"
_ENTERING = "compiled by itself it is slower by what entering compiled code costs, and by no more: no finding"


class TimingProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A module to time: eager mode alone, or what is compiled beside it, as `core.unit_result.Probe` says the rest."""

    unit: int
    path: str
    compiles: bool = True
    fenced: tuple[str, ...] = ()
    rung: Rung | None = None


TimingSteps = Generator[TimingProbe, UnitTiming, None]


class SlowdownSearch:
    """Times the modules that a walk left fit to run, and writes into `results` who introduces a slowdown."""

    def __init__(
        self, tree: ModuleTree, units: Sequence[Unit], results: Mapping[int, UnitResult], *, backend: str
    ) -> None:
        self._tree, self._units, self._results, self._backend = tree, units, results, backend
        self._unit_of = {path: unit for unit in units for path in unit.paths}
        self._slow: set[int] = set()

    def run(self) -> TimingSteps:
        """Time and judge each unit."""
        for unit in self._units:
            result = self._results[unit.id]
            if not _is_fit(result):
                continue
            # What is implied healthy was never compiled, and has to be only where something below it is slow.
            yield from self._time(unit, compiles=not result.is_implied or bool(self._slow_below(unit.path)))
            timing = result.timing
            if timing is not None and timing.is_of_compiled:
                yield from self._judge(unit, timing)

    def _time(self, unit: Unit, *, compiles: bool) -> TimingSteps:
        result = self._results[unit.id]
        known = result.timing
        if known is not None and (known.is_of_compiled or known.note or not compiles):
            return
        result.timing = yield TimingProbe(unit=unit.id, path=unit.path, compiles=compiles)
        if result.timing.note:
            result.notes.append(f"not timed: {result.timing.note}")

    def _judge(self, unit: Unit, timing: UnitTiming) -> TimingSteps:
        result = self._results[unit.id]
        if not is_beyond_noise(timing.loss, timing):
            if timing.loss.low_s > 0:
                result.notes.append(_ENTERING)
            return
        fenced = self._slow_below(unit.path)
        without = timing
        if fenced:
            without = yield TimingProbe(unit=unit.id, path=unit.path, fenced=fenced)
            if not without.is_of_compiled or not is_beyond_noise(without.loss, without):
                self._inherit(unit, timing)
                return
        own, dynamo = without.loss, None
        if self._backend == Rung.INDUCTOR.value:
            seen = yield TimingProbe(unit=unit.id, path=unit.path, fenced=fenced, rung=Rung.EAGER)
            dynamo = seen.loss if seen.is_of_compiled else None
        breaks = self._own_breaks(unit)
        if not breaks and dynamo is not None and (fenced or self._parent_of(unit) is not None):
            # It breaks no graph itself. So it is not entered by itself where it is compiled as part of another, nor in
            # pieces where nothing inside it breaks the graph: what its kernels lose is what counts.
            own = own.minus(dynamo)
            if not is_beyond_noise(own, without):
                if fenced:
                    self._inherit(unit, timing)
                else:
                    result.notes.append(_ENTERING)
                return
        shown = yield from self._shown_above(unit, own, needs_proof=not breaks)
        if shown is None:
            return
        known = dynamo if own != without.loss else None
        if not (yield from self._shows_again(unit, fenced, known)):
            if fenced:
                self._inherit(unit, timing)
            return
        stage = Stage.DYNAMO if self._backend == Rung.EAGER.value else None  # that backend has no kernels of its own
        stage = stage if dynamo is None else _stage(without, dynamo)
        evidence = {**shown, "dynamo_loss_s": None if dynamo is None else dynamo.middle_s}
        fault = _fault(timing, own, stage=stage, evidence=evidence, is_broken=bool(breaks) or timing.graphs > 1)
        self._introduce(unit, fault, () if breaks or stage is Stage.INDUCTOR else self._breaking_below(unit.path))

    def _shows_again(
        self, unit: Unit, fenced: tuple[str, ...], known: Loss | None
    ) -> Generator[TimingProbe, UnitTiming, bool]:
        """Return whether a second measurement says the same: near the limit, chance would decide otherwise.

        `known` is the part of the loss that is not the module's own.
        """
        again = yield TimingProbe(unit=unit.id, path=unit.path, fenced=fenced)
        own = again.loss if known is None else again.loss.minus(known)
        if again.is_of_compiled and is_beyond_noise(own, again):
            return True
        self._results[unit.id].notes.append("slower than eager in one measurement and not in the next: no finding")
        return False

    def _introduce(self, unit: Unit, fault: Fault, breaking: Sequence[Unit]) -> None:
        """Enter a slowdown of a module; what is lost by its broken graph belongs to those who break it."""
        if len(breaking) == 1:
            owner = breaking[0]
            self._results[unit.id].inherited.append(InheritedFault(fault=fault))
            notes = self._results[owner.id].notes
            notes[:] = [note for note in notes if note != _ENTERING]  # of its own time, which is no excuse here
            name = f"'{unit.path}'" if unit.path else "the whole model"
            message = f"{fault.message} (measured on {name}, whose graph it breaks)"
            seen = msgspec.structs.replace(fault, message=message)
            item = IntroducedFault(path=owner.path, fault=seen, seen_in=unit.path)
        else:
            owner = unit
            item = IntroducedFault(path=unit.path, fault=fault, region=tuple(other.path for other in breaking))
        self._slow.add(owner.id)
        self._results[owner.id].introduced.append(item)

    def _breaking_below(self, path: str) -> list[Unit]:
        units = (self._unit_of[other] for other in self._tree.descendants(path) if other in self._unit_of)
        return [unit for unit in dict.fromkeys(units) if self._own_breaks(unit)]

    def _inherit(self, unit: Unit, timing: UnitTiming) -> None:
        self._results[unit.id].inherited.append(InheritedFault(fault=_fault(timing, timing.loss)))

    def _slow_below(self, path: str) -> tuple[str, ...]:
        """List the outermost of the slow modules below."""
        slow = [
            other
            for other in self._tree.descendants(path)
            if other in self._unit_of and self._unit_of[other].id in self._slow
        ]
        return tuple(other for other in slow if not any(above in slow for above in self._tree.ancestors(other)))

    def _own_breaks(self, unit: Unit) -> int:
        introduced = self._results[unit.id].introduced
        return sum(item.fault.kind is Kind.GRAPH_BREAK and item.is_of(unit.path) for item in introduced)

    def _parent_of(self, unit: Unit) -> str | None:
        return next((path for path in self._tree.called_parents(unit.path) if path in self._unit_of), None)

    def _shown_above(
        self, unit: Unit, own: Loss, *, needs_proof: bool
    ) -> Generator[TimingProbe, UnitTiming, dict[str, object] | None]:
        """Return evidence that the module that calls it loses by it, None where it does not.

        Compiled as part of another module, its kernels may be fused with others: what is slow alone need not be slow
        there. So the module above is timed with it and without it. Without `needs_proof` it stays slow unless the
        module above clearly gains by it.
        """
        parent = self._parent_of(unit)
        if parent is None or not _is_fit(self._results[self._unit_of[parent].id]):
            return {}
        above = self._unit_of[parent]
        yield from self._time(above, compiles=True)
        whole = self._results[above.id].timing
        inside = tuple(path for path in self._tree.descendants(above.path) if self._unit_of.get(path) is unit)
        if whole is None or not whole.is_of_compiled or not inside:
            return {}
        without = yield TimingProbe(unit=above.id, path=above.path, fenced=inside)
        if not without.is_of_compiled:
            return {}
        gain = whole.loss.minus(without.loss)
        if gain.high_s < 0 or (needs_proof and gain.low_s <= 0):
            name = f"'{parent}'" if parent else "the model"
            note = f"compiled by itself it is slower by {_time(own.middle_s)} a run, but not as part of {name}"
            self._results[unit.id].notes.append(note)
            return None
        return {
            "inside": parent,
            "inside_compiled_s": whole.compiled_s,
            "inside_with_this_eager_s": without.compiled_s,
            "inside_gain_s": [gain.low_s, gain.middle_s, gain.high_s],
        }


def _stage(timing: UnitTiming, dynamo: Loss) -> Stage:
    """Return whose the greater part of a loss is, given what is lost without a compiler behind Dynamo."""
    loss_s = timing.loss.middle_s
    if dynamo.middle_s > loss_s / 2:
        return Stage.DYNAMO
    # Pieces of a broken graph are entered one by one, through the backend's wrappers too.
    is_entering = timing.graphs > 1 and loss_s <= ENTRIES * timing.entering_s * timing.graphs
    return Stage.DYNAMO if is_entering else Stage.INDUCTOR


def _is_fit(result: UnitResult) -> bool:
    if (
        result.is_left_out
        or result.untested
        or not result.is_done
        or any(item.fault.kind in ENDS_PROCESS for item in result.inherited)
    ):
        return False
    seen = result.observation
    return result.is_implied or (seen is not None and seen.completed)


def _fault(
    timing: UnitTiming,
    own: Loss,
    *,
    stage: Stage | None = None,
    evidence: Mapping[str, object] | None = None,
    is_broken: bool = False,
) -> Fault:
    eager, compiled = timing.eager_s, timing.compiled_s
    return Fault(
        kind=Kind.SLOWDOWN,
        type=TYPE,
        stage=stage,
        message=f"{_time(compiled)} compiled, {_time(eager)} in eager mode: {compiled / eager:.2f} times as long",
        hint=_hint(stage, is_broken=is_broken),
        evidence={
            "eager_s": eager,
            "compiled_s": compiled,
            "ratio": compiled / eager,
            "loss_s": timing.loss.middle_s,
            "spread_s": [timing.loss.low_s, timing.loss.high_s],
            "own_loss_s": own.middle_s,
            "runs": timing.runs,
            "calls": timing.calls_per_run,
            "graphs": timing.graphs,
            "entering_s": timing.entering_s,
            **(evidence or {}),
        },
    )


def _hint(stage: Stage | None, *, is_broken: bool) -> str:
    keep_out = "keep it out of the compiled code with torch.compiler.disable"
    if is_broken and stage is not Stage.INDUCTOR:
        return f"Its graph is broken, and each part is entered by itself: mend the graph breaks, or {keep_out}."
    if stage is Stage.INDUCTOR:
        return f"The generated kernels are slower than eager's: try --mode max-autotune, or {keep_out}."
    return f"Its guards and wrappers cost more than its kernels gain: compile a larger module around it, or {keep_out}."


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
