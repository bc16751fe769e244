"""Carries out the walk: hands probes to worker processes and turns how they end into observations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from compilebisect import errors
from compilebisect.core.fingerprint import worst
from compilebisect.core.input_spec import parse_spec
from compilebisect.core.messages import Answer, CaptureOrder, Description, ProbeOrder
from compilebisect.core.module_tree import GoldenCall, ModuleTree
from compilebisect.core.outcome import Kind, Observation
from compilebisect.core.unit_result import IntroducedFault, Probe
from compilebisect.core.units import units_of
from compilebisect.core.walk import Walk
from compilebisect.error_text import error_text
from compilebisect.errors import CannotTestError, LostWorker, UsageError
from compilebisect.progress import ProgressListener
from compilebisect.search.errands import Errands
from compilebisect.search.golden_store import GoldenStore
from compilebisect.search.process_end import observation_from_death, observation_from_timeout, place_in_stack
from compilebisect.settings import Settings
from compilebisect.workers.call_outcome import Died, Failed, Outcome, Replied, TimedOut
from compilebisect.workers.remote_worker import Worker
from compilebisect.workers.supervisor import Supervisor

_SERVICE = "compilebisect.runtime.service"
# Loading a large model, or one eager run of it, may take this many times --timeout, and at least so many seconds.
_LOAD_SHARE, _LEAST_LOAD_S = 6.0, 60.0
# Workers that went down through no fault of what they were asked, before the run is given up.
_MAX_LOSSES = 5
# Probes that look whether one fault, never a recompile, shows in another way.
_ABOUT_ONE_FAULT = ("ladder", "region", "alone inside", "rest", "left out")
# How long an errand may have to wait until it is looked at.
_POLL_S = 0.05


class Bisection:
    """One run of the walk, with the workers that it needs.

    `walk` and `description` exist after `open()`.
    """

    def __init__(self, settings: Settings, supervisor: Supervisor, scratch: Path, progress: ProgressListener) -> None:
        self.settings = settings
        self.supervisor = supervisor
        self.scratch = scratch
        self.progress = progress
        self.notes: list[str] = []
        self.worker_peak_bytes = 0
        self.description: Description
        self.walk: Walk
        self.store: GoldenStore
        try:
            self._settings_bytes = msgspec.msgpack.encode(settings)
        except OverflowError as error:
            raise UsageError(
                f"a number in the options or the spec does not fit 64 bits: {error_text(error)}",
                fix="Make large numbers in Python, with --inputs or a factory function.",
            ) from error
        self.needs_fresh_interpreter = False
        self._tolerances = parse_spec(settings.spec).tolerances if settings.inputs is None else {}
        #: For the thread that proves faults while the walk goes on.
        self.errands = Errands(supervisor)
        #: Told of all faults whose module is known, after each probe anew.
        self.on_introduced: Callable[[IntroducedFault], None] = lambda item: None
        #: Called when a probe saw a fault, before it is shown to anybody.
        self.on_fault: Callable[[], object] = lambda: None
        self._idle: list[Worker] = []
        self._busy: dict[Worker, Probe] = {}
        self._load_timeout_s = max(_LOAD_SHARE * settings.timeout_s, _LEAST_LOAD_S)
        self._has_loaded = False
        self._golden: Worker | None = None
        self._losses = 0

    def open(self) -> None:
        """Load the model, run it once in eager mode and lay out the walk.

        Raises:
            CompilebisectError: the target or the spec is wrong, or the model cannot be tested.
        """
        self.progress.phase_started("starting torch")
        self.supervisor.start()
        self.progress.phase_started("loading the model and running it in eager mode")
        self._golden, answer = self.ask_one(self.loaded_worker, "describe", b"", self._load_timeout_s, "the eager run")
        assert answer.description is not None
        self.description = answer.description
        tree = ModuleTree(self.description.modules)
        self.walk = Walk(
            tree,
            units_of(tree, with_methods=self.settings.context),
            only=self.settings.only,
            skip=self.settings.skip,
            all_modules=self.settings.all_modules,
            backend=self.settings.backend,
            kinds=_kinds_to_judge(self.settings.check),
            variants=self.description.variants,
            context=self.settings.context,
        )
        self.store = GoldenStore(self.walk, self.scratch, self._capture)

    def walk_all(self) -> None:
        """Probe until every unit has its verdict."""
        count = self._worker_count()
        try:
            while not self.walk.is_finished():
                while len(self._busy) < count:
                    probe = self.walk.next_probe()
                    if probe is None:
                        break
                    self._dispatch(probe)
                if not self._busy and self.walk.is_finished():
                    break  # the last units ended without a probe
                if not self._busy:
                    raise RuntimeError("the walk has units left and no probe to run")
                self._wait()
        finally:
            for worker in self._busy:
                worker.stop()
            self._busy.clear()

    def look_again(self, probe: Probe) -> Observation:
        """Make a probe that the walk made once more, in a worker that did nothing before."""
        reason = "" if probe.in_place else self.store.prepare(probe)
        if reason:
            return Observation(untested=reason)
        worker = self.loaded_worker()
        payload = msgspec.msgpack.encode(self.order_for(probe))
        outcome = worker.call(f"{_SERVICE}:run_probe", payload, self.settings.timeout_s, label=f"{probe.path} [again]")
        self.give_back(worker)
        return self._observation(outcome)

    def serve_errands_until(self, is_done: Callable[[], bool]) -> None:
        """Do nothing but errands."""
        while not is_done():
            self._wait()

    def _wait(self) -> None:
        """Wait a little, take what ended, and do what the second thread asks for."""
        self.supervisor.on_wait()
        busy, errands = list(self._busy), self.errands.workers
        self.errands.serve(0.0 if busy or errands else _POLL_S)
        for worker, outcome in self.supervisor.wait_any([*busy, *errands], _POLL_S):
            if worker in self._busy:
                self._take(worker, outcome)
                self._tell_introduced()
            else:
                self.errands.finish(worker, outcome)

    def _tell_introduced(self) -> None:
        for result in self.walk.results.values():
            for item in result.introduced if result.is_done else ():
                self.on_introduced(item)

    def loaded_worker(self, phase: str = "") -> Worker:
        """Start a worker and load the model in it.

        Raises:
            CompilebisectError: the model cannot be loaded.
        """
        if phase:
            self.progress.phase_started(phase)

        def start() -> Worker:
            return self.supervisor.start_worker(fresh_interpreter=self.needs_fresh_interpreter)

        payload, doing = self._settings_bytes, "loading the model"
        worker, answer = self.ask_one(start, "load", payload, self._load_timeout_s, doing, checked=False)
        if answer.error is not None and answer.error.name == "BadFork" and not self.needs_fresh_interpreter:
            worker.stop()
            self.needs_fresh_interpreter = True
            return self.loaded_worker()
        if answer.error is not None and self._has_loaded:
            error = answer.error
            raise CannotTestError(
                f"the model could be loaded once, and not again in a second process: {error.what}",
                where=error.where,
                fix="It is built in several processes: let it keep no port, lock, file or counter to itself.",
                detail=error.detail,
            )
        _raise_error(answer)
        self._has_loaded = True
        return worker

    def idle_worker(self) -> Worker:
        """Return a worker that has the model loaded and nothing to do."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
        return self.loaded_worker()

    def give_back(self, worker: Worker) -> None:
        """Keep a worker for later use."""
        if worker.is_alive:
            self._idle.append(worker)

    def ask_one(
        self,
        start: Callable[[], Worker],
        function: str,
        payload: bytes,
        timeout_s: float,
        doing: str,
        *,
        checked: bool = True,
    ) -> tuple[Worker, Answer]:
        """Call the service in a worker that `start` gives, and in another one where that goes down by no fault of its.

        Raises:
            CompilebisectError: as `ask`.
        """
        while True:
            worker = start()
            try:
                return worker, self.ask(worker, function, payload, timeout_s, doing, checked=checked)
            except LostWorker as error:
                self._count_loss(error.detail)

    def _count_loss(self, detail: str) -> None:
        self._losses += 1
        if self._losses > _MAX_LOSSES:
            raise CannotTestError("worker processes keep dying before they get to work", detail=detail)

    def ask(
        self, worker: Worker, function: str, payload: bytes, timeout_s: float, doing: str, *, checked: bool = True
    ) -> Answer:
        """Call the service in a worker and wait for its answer.

        Raises:
            LostWorker: it went down, and the call is not the cause.
            CompilebisectError: the worker says so, or it did not survive.
        """
        outcome = worker.call(f"{_SERVICE}:{function}", payload, timeout_s)
        if isinstance(outcome, Replied):
            answer = msgspec.msgpack.decode(outcome.payload, type=Answer)
            if checked:
                _raise_error(answer)
            return answer
        if isinstance(outcome, Failed):
            raise CannotTestError(f"{doing} failed: {outcome.type}: {outcome.message}", detail=outcome.traceback)
        if outcome.is_blameless:
            raise LostWorker(f"the process died while {doing}", detail=outcome.stack or outcome.output)
        if isinstance(outcome, TimedOut):
            place = place_in_stack(outcome.stack)
            at = f"; it was at {place}" if place else ""
            raise CannotTestError(
                f"{doing} did not finish within {timeout_s:.0f} s{at}",
                fix="Mend what takes so long, or raise --timeout: loading and eager runs may take six times as much.",
                detail=outcome.stack,
            )
        how = outcome.signal or f"exit status {outcome.exit_code}"
        raise CannotTestError(f"the process died while {doing}: {how}", detail=outcome.stack or outcome.output)

    def order_for(self, probe: Probe) -> ProbeOrder:
        """Return what a worker must know to carry out a probe."""
        settings, tree = self.settings, self.walk.tree

        def calls_of(path: str) -> tuple[GoldenCall, ...]:
            # In place a module gets what the model itself hands it.
            return tree[path].calls if probe.in_place else self.store.calls(path)

        return ProbeOrder(
            path=probe.path,
            folder=str(self.store.folder),
            calls=calls_of(probe.path),
            instances=tuple((path, calls) for path in probe.instances if (calls := calls_of(path))),
            backend=probe.rung.value if probe.rung else settings.backend,
            mode=settings.mode if probe.rung is None else None,
            dynamic=settings.dynamic,
            fenced=probe.fenced,
            train=settings.train,
            seed=settings.seed,
            tolerance=settings.tolerance,
            tolerances=self._tolerances,
            compares_values=self._compares_values(),
            compares_rows=self._compares_values() and (probe.in_row or probe.purpose not in _ABOUT_ONE_FAULT),
            looks_for_recompiles=Kind.RECOMPILE in settings.check and probe.purpose not in _ABOUT_ONE_FAULT,
            tells_of_below=probe.purpose == "recompiles",
            variants=probe.variants,
            mends_breaks=probe.mends_breaks,
            breaks_below=probe.breaks_below,
            compiles_only=probe.compiles_only,
            in_place=probe.in_place,
            methods=self._other_methods() if settings.context else {},
        )

    def _other_methods(self) -> dict[str, tuple[str, ...]]:
        """Return by module which methods besides `forward` ran."""
        return {path: self.walk.tree[path].other_methods for path in self.walk.unit_of}

    # --- one probe ----------------------------------------------------------------------------------------------

    def _dispatch(self, probe: Probe) -> None:
        done = len(self.walk.units) - self.walk.remaining()
        record = self.walk.tree[probe.path]
        rung = probe.rung.value if probe.rung else self.settings.backend
        self.progress.probe_started(probe.path, record.class_name, rung, done, len(self.walk.units))
        reason = "" if probe.in_place else self.store.prepare(probe)
        if not reason and not record.is_traceable:
            reason = "it is a ScriptModule, which torch.compile leaves alone"
        if reason:
            self.walk.record(probe, Observation(untested=reason))
            return
        self._send(probe)

    def _send(self, probe: Probe) -> None:
        worker = self.loaded_worker() if probe.is_cold else self.idle_worker()
        label = (
            f"{probe.path or '(root)'} [{probe.rung.value if probe.rung else self.settings.backend}, {probe.purpose}]"
        )
        payload = msgspec.msgpack.encode(self.order_for(probe))
        worker.send(f"{_SERVICE}:run_probe", payload, timeout_s=self.settings.timeout_s, label=label)
        self._busy[worker] = probe

    def _take(self, worker: Worker, outcome: Outcome) -> None:
        probe = self._busy.pop(worker)
        if isinstance(outcome, (Died, TimedOut)) and outcome.is_blameless:
            self._count_loss(outcome.stack or outcome.output)
            self._send(probe)
            return
        observation = self._observation(outcome)
        if not probe.in_place:
            left_out = {path: why for path in probe.instances if (why := self.store.why_none(path))}
            untested = {**left_out, **observation.untested_instances}
            observation = msgspec.structs.replace(observation, untested_instances=untested)
        self.worker_peak_bytes = max(self.worker_peak_bytes, observation.peak_bytes)
        self.give_back(worker)
        self.walk.record(probe, observation)
        kinds = [fault.kind for fault in observation.faults if fault.kind in self.settings.check]
        found = worst(kinds)
        status = found.value if found else ("untested" if observation.untested else "ok")
        if found:
            self.on_fault()
        done = len(self.walk.units) - self.walk.remaining()
        self.progress.probe_finished(probe.path, status, done, len(self.walk.units))

    def _observation(self, outcome: Outcome) -> Observation:
        if isinstance(outcome, Replied):
            answer = msgspec.msgpack.decode(outcome.payload, type=Answer)
            _raise_error(answer)
            assert answer.observation is not None
            return answer.observation
        if isinstance(outcome, Failed):
            text = f"the check of a module itself failed: {outcome.type}: {outcome.message}"
            self.notes.append(text)
            self.progress.warned(text)
            return Observation(untested=text)
        if isinstance(outcome, Died):
            return observation_from_death(outcome)
        return observation_from_timeout(outcome, self.settings.timeout_s)

    def _capture(self, order: CaptureOrder) -> dict[str, dict[int, str]]:
        def start() -> Worker:
            return self._golden if self._golden is not None and self._golden.is_alive else self.loaded_worker()

        payload = msgspec.msgpack.encode(order)
        self._golden, answer = self.ask_one(start, "capture", payload, self._load_timeout_s, "the eager run")
        return answer.capture_failures

    def _compares_values(self) -> bool:
        return Kind.DIVERGENCE in self.settings.check

    def _worker_count(self) -> int:
        if self.settings.workers:
            return self.settings.workers
        if self.description.device != "cpu":
            return 1
        import os

        return max(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 1)


def _kinds_to_judge(check: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """Add what has to be known to judge the wanted kinds: who breaks the graph, for who is slow by it."""
    return (*check, Kind.GRAPH_BREAK) if Kind.SLOWDOWN in check else check


def _raise_error(answer: Answer) -> None:
    if answer.error is not None:
        error: Any = getattr(errors, answer.error.name, CannotTestError)
        raise error(answer.error.what, where=answer.error.where, fix=answer.error.fix, detail=answer.error.detail)
