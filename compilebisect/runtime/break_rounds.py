"""Tracing a module again with its graph breaks mended, round by round, until no further one comes.

A break in a loop, a `with` or a `try` makes Dynamo give up on the whole function, so what breaks behind it is never
met. Here one module is traced on one golden call; what is made of it is told elsewhere.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.module_tree import GoldenCall
from compilebisect.core.outcome import Fault
from compilebisect.error_text import error_line, error_text
from compilebisect.runtime import torch_internals
from compilebisect.runtime.faults import faults_from_breaks
from compilebisect.runtime.mending import CannotMend, Mend, is_run, mended, record_values
from compilebisect.runtime.probe import Compiled
from compilebisect.runtime.torch_internals import RESUMED, BreakEvent
from compilebisect.source_files import is_user_or_library_file

MAX_ROUNDS = 12
_Where = tuple[str, int, int | None, int | None]  # file, line, columns
#: No further round is begun when this many seconds may be over before it ends: the probe has a deadline.
BUDGET_S = 60.0


class Traced(NamedTuple):
    """One traced run: the first fault of each kind and place, all breaks, and what reached graphs.

    `operators` counts those that ran in graphs, each as often as it ran.
    """

    faults: dict[FaultKey, Fault]
    breaks: list[tuple[BreakEvent, Fault]]
    graphs: int
    operators: int


class Met(NamedTuple):
    """A graph break, and where it was hidden: the break that had to be mended for it to be met, None for none."""

    fault: Fault
    hidden_behind: Fault | None


class RunFailed(Exception):
    """A run with mended breaks raises; `error` is what, so nothing can be read from it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error_line(error))
        self.error = error


class OutOfTime(Exception):
    """Another run might take longer than there is time."""


class BreakRounds:
    """The rounds for one module and call.

    Args:
        compile_and_run: compiles the module with the backend of that name and runs it once.
        run_eager: runs the module once in eager mode, on the same inputs.
        call: the golden call.

    Attributes:
        met: all graph breaks, those first that show in the module as it is.
        unmended: why a break could not be mended, by its key.
        last: the run in which all that could be mended was.
    """

    def __init__(
        self, compile_and_run: Callable[[str], Compiled], run_eager: Callable[[], Any], call: GoldenCall
    ) -> None:
        self._compile_and_run = compile_and_run
        self._run_eager = run_eager
        self._call = call
        self._started = time.perf_counter()
        self._longest_s = 0.0
        self._mends: dict[_Where, tuple[FaultKey, Mend]] = {}
        self.unmended: dict[FaultKey, str] = {}
        self.met: dict[FaultKey, Met] = {}
        self.first = self.last = Traced({}, [], 0, 0)

    def run(self) -> None:
        """Go through the rounds.

        Raises:
            RunFailed: a run fails; what was met before it stays.
            OutOfTime: there may be more.
        """
        self.first = self.last = self._traced([])
        self.met = {key: Met(fault, None) for key, fault in self.first.faults.items()}
        for _ in range(MAX_ROUNDS):
            front = self.last
            mended_now = self._mend(front.breaks)
            if not mended_now:
                return
            self._record()
            self.last = self._traced(self.mends())
            for event, fault in self.last.breaks:
                key = fault_key(fault)
                if key not in self.met:
                    self.met[key] = Met(fault, _hider(event, front.breaks, mended_now))
        raise OutOfTime

    def mends(self, *, without: Iterable[FaultKey] = ()) -> list[Mend]:
        """Return the mends of all breaks but some."""
        return [mend for key, mend in self._mends.values() if key not in set(without)]

    def is_mended(self, key: FaultKey) -> bool:
        """Return whether a break is gone once it is mended."""
        return key not in self.unmended and any(key == other for other, _ in self._mends.values())

    def is_gone_without_trace(self, key: FaultKey) -> bool:
        """Return whether a break can be mended, and nothing but plain values stands in for it.

        A tensor that stands in is cut off from what it was computed from, and that alone may do away with other breaks.
        """
        return self.is_mended(key) and all(mend.is_plain for other, mend in self._mends.values() if other == key)

    def traced_without(self, key: FaultKey) -> Traced:
        """Trace the module with one break mended and all others as they are.

        Raises:
            RunFailed: the run fails.
            OutOfTime: it might take too long.
        """
        return self._traced([mend for other, mend in self._mends.values() if other == key])

    def runs(self, key: FaultKey, away: FaultKey) -> bool:
        """Return whether eager mode gets to where a break is, also where another one is mended."""
        watched = [mend for other, mend in self._mends.values() if other == key]
        standing_in = [mend for other, mend in self._mends.values() if other == away]
        return bool(watched) and all(is_run(mend, standing_in, self._run_eager) for mend in watched)

    def call_at(self, key: FaultKey) -> Mend | None:
        """Return the mend of the function that is called where a break is, with the function as its values.

        None where nothing is called there, or several functions are.
        """
        calls = [mend for other, mend in self._mends.values() if other == key]
        callee = calls[0].callee() if len(calls) == 1 else None
        if callee is None:
            return None
        try:
            record_values([callee], self._run_eager)
        except CannotMend:
            return None
        return callee if callee.values and all(value == callee.values[0] for value in callee.values) else None

    def traced_with(self, key: FaultKey, config: Mapping[str, Any] | None = None, callee: Mend | None = None) -> Traced:
        """Trace the module with one break as it is and all others mended.

        Args:
            key: the break.
            config: settings of Dynamo for this run.
            callee: what is to be called at the break instead; its run goes through AOTAutograd, as a function that
                Dynamo does not look into may fail there.

        Raises:
            RunFailed: the run fails.
            OutOfTime: it might take too long.
        """
        mends = self.mends(without=[key])
        return self._traced(mends, config) if callee is None else self._traced([*mends, callee], backend="aot_eager")

    def _mend(self, breaks: Sequence[tuple[BreakEvent, Fault]]) -> set[FaultKey]:
        """Take on what broke off in the last run; returns the breaks that have a new mend."""
        changed = set()
        for place, key in dict.fromkeys((_place_of(event), fault_key(fault)) for event, fault in breaks):
            if key in self.unmended:
                continue
            try:
                if place is None:
                    raise CannotMend("it stands in torch's own code")
                known = self._mends.get(place)
                self._mends[place] = (key, known[1].wider() if known else Mend.at(*place))
                changed.add(key)
            except CannotMend as error:
                self._give_up(key, error_text(error))
        return changed

    def _record(self) -> None:
        """Run in eager mode until all mends have their values, without those that cannot have any."""
        while self._mends:
            mends = self.mends()
            try:
                record_values(mends, self._run_eager)
            except CannotMend as error:
                for key, _ in list(self._mends.values()):
                    self._give_up(key, error_text(error))
                return
            failed = False
            for key, mend in list(self._mends.values()):
                try:
                    mend.check()
                except CannotMend as error:
                    self._give_up(key, error_text(error))
                    failed = True
            if not failed:
                return

    def _give_up(self, key: FaultKey, reason: str) -> None:
        self.unmended.setdefault(key, reason)
        self._mends = {place: pair for place, pair in self._mends.items() if pair[0] != key}

    def _traced(self, mends: Sequence[Mend], config: Mapping[str, Any] | None = None, backend: str = "eager") -> Traced:
        started = time.perf_counter()
        if started + 1.5 * self._longest_s > self._started + BUDGET_S:
            raise OutOfTime
        torch.compiler.reset()
        with (
            mended(mends) if mends else nullcontext(),
            torch_internals.dynamo_config(config) if config else nullcontext(),
        ):
            compiled = self._compile_and_run(backend)
        self._longest_s = max(self._longest_s, time.perf_counter() - started)
        if compiled.error is not None:
            raise RunFailed(compiled.error)
        watcher = compiled.watcher
        breaks = faults_from_breaks(watcher.breaks, self._call)
        faults: dict[FaultKey, Fault] = {}
        for _, fault in breaks:
            faults.setdefault(fault_key(fault), fault)
        return Traced(faults, breaks, watcher.graph_count, watcher.operator_runs)


def _place_of(event: BreakEvent) -> _Where | None:
    """Return file, line and columns of the innermost expression outside of torch and Python."""
    found = [summary for summary in event.stack if is_user_or_library_file(summary.filename) and summary.lineno]
    return (found[-1].filename, found[-1].lineno or 0, *_columns(found[-1])) if found else None


def _columns(summary: traceback.FrameSummary) -> tuple[int | None, int | None]:
    # From Python 3.11 on; torch hands them on since 2.12.
    return getattr(summary, "colno", None), getattr(summary, "end_colno", None)


def _hider(event: BreakEvent, front: Sequence[tuple[BreakEvent, Fault]], mended_now: set[FaultKey]) -> Fault | None:
    """Return the break without which `event` is met: rather one that gave up on the same function."""

    def rank(pair: tuple[BreakEvent, Fault]) -> tuple[bool, bool]:
        other = pair[0]
        return other.compiled_place != event.compiled_place or other.effect == RESUMED, other.effect == RESUMED

    candidates = [pair for pair in front if fault_key(pair[1]) in mended_now]
    return min(candidates, key=rank)[1] if candidates else None
