"""A probe of modules where they stand: one is compiled in place, while the rest of the model runs in eager mode."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch

from compilebisect.attempt import attempt
from compilebisect.core.fingerprint import fault_key
from compilebisect.core.messages import INSTANCE_MARK, ProbeOrder
from compilebisect.core.outcome import Fault, Observation
from compilebisect.error_text import error_line, error_text
from compilebisect.runtime import torch_internals
from compilebisect.runtime.compare import Comparison, Difference
from compilebisect.runtime.describe import first_paths
from compilebisect.runtime.faults import causes, fault_from_break, fault_from_error, faults_from_comparison
from compilebisect.runtime.impact import impact_of
from compilebisect.runtime.in_place import CALL, Compiled, Door, InPlace
from compilebisect.runtime.observing import NotObservedError
from compilebisect.runtime.oracle import WITHDRAWN, Oracle
from compilebisect.runtime.probe import compile_options, fences
from compilebisect.runtime.session import Session

_DOOR = re.compile(r"output\['inside'\]\[(\d+)\]\['(in|out)'\]")


def probe_in_place(session: Session, order: ProbeOrder, *, on_phase: Callable[[str], None]) -> tuple[Observation, bool]:
    """Carry out the probe and return what it saw, and whether the process can go on with others after it.

    All instances are compiled at once first, which costs one run of the model where they are healthy. Where that run
    shows anything, each of them is compiled alone, so that what enters it comes from eager modules.
    """
    torch.compiler.reset()
    look = _Look(session, order, on_phase)
    with fences(session.model, order.fenced, order.methods):
        look.run()
    torch.compiler.reset()
    return look.observation(), look.is_usable


class _Look:
    def __init__(self, session: Session, order: ProbeOrder, on_phase: Callable[[str], None]) -> None:
        self._session, self._order, self._on_phase = session, order, on_phase
        self._paths = (order.path, *(path for path, _ in order.instances))
        calls = {order.path: order.calls, **dict(order.instances)}
        doors = [
            Door(path, [index for call in calls[path] for index in call.indices], order.methods.get(path, ()))
            for path in self._paths
        ]
        self._whole = InPlace(session.model, doors)
        self.is_usable = True
        self._faults: dict[Any, Fault] = {}
        self._by_instance: dict[str, list[Fault]] = {}
        self._notes: list[str] = []
        self._untested: dict[str, str] = {}
        self._impact: dict[str, Any] = {}
        self._has_failed = self._has_excused = False
        self._graphs = 0
        self._frames = 0
        self._compile_s = 0.0

    def run(self) -> None:
        args, kwargs = self._session.inputs()
        loss = self._session.loss()
        oracle = Oracle(
            self._whole,
            args,
            kwargs,
            self._session.context(),
            seed=self._order.seed,
            train=None if loss is None else lambda returned: loss(returned["output"]),
            tolerance=self._order.tolerance_for(""),
        )
        functions: dict[str, dict[tuple[str, str], Callable[..., Any]]] = {}
        for path in self._paths:
            compiled = attempt(self._whole.compiled, path, **compile_options(self._order))
            if compiled.error is not None:
                self._take_error(oracle, path, compiled.error)
                return
            functions[path] = compiled.value
        if len(self._paths) > 1 and self._is_healthy(oracle, functions):
            return
        for path in self._paths:
            self._on_phase(f"running{INSTANCE_MARK}{path}" if path != self._order.path else "running")
            self._look_at(oracle, path, functions[path])
            if not self.is_usable:
                return

    def _is_healthy(self, oracle: Oracle, functions: dict[str, dict[tuple[str, str], Callable[..., Any]]]) -> bool:
        """Say whether nothing shows with all instances compiled at once."""
        together: Compiled = {way: function for ways in functions.values() for way, function in ways.items()}
        call = self._whole.with_compiled(together)

        def judged() -> Comparison:
            record = self._compiled_run(oracle, call)
            self._on_phase("comparing")
            return oracle.judge(record, call)

        seen = attempt(judged)
        if seen.error is not None:  # each instance alone tells what this is
            self.is_usable = not torch_internals.is_device_failure(seen.error)
            return False
        self._has_excused = self._has_excused or seen.value.has_excused
        return seen.value.is_equal

    def _look_at(self, oracle: Oracle, path: str, functions: Compiled) -> None:
        call = self._whole.with_compiled(functions)
        ran = attempt(self._compiled_run, oracle, call)
        if ran.error is not None:
            self.is_usable = not torch_internals.is_device_failure(ran.error)
            self._take_error(oracle, path, ran.error)
            return
        record = ran.value
        self._on_phase("comparing")
        comparison = oracle.judge(record, call)
        self._has_excused = self._has_excused or comparison.has_excused
        passages = oracle.eager().output["inside"]
        own = [number for number, passage in enumerate(passages) if passage["module"] == path]
        differences = attributable(comparison.differences, own)
        if comparison.differences and not differences:
            self._take_unjudged(path, "what enters it differs from one eager run of the model to the next")
        self._notes += [f"in place: {_in_words(text, passages)}" for text in comparison.notes if WITHDRAWN in text]
        if path == self._order.path or differences:
            impact = impact_of(oracle, record, train=self._order.train)
            if path == self._order.path:
                self._impact = impact
            told = [
                replace(item, path=_in_words(item.path, passages), text=_in_words(item.text, passages))
                for item in differences
            ]
            for fault in faults_from_comparison(Comparison(told)):
                self._add(path, fault, impact=impact)

    def _compiled_run(self, oracle: Oracle, call: Callable[..., Any]) -> Any:
        started = time.perf_counter()
        try:
            with torch_internals.watch_compile(on_phase=self._on_phase) as watcher:
                return oracle.run(call)
        finally:
            self._compile_s += time.perf_counter() - started
            self._graphs += watcher.graph_count
            self._frames += watcher.frames_compiled
            golden = self._order.calls
            for event in causes(watcher.breaks) if golden else ():
                fault = fault_from_break(event, golden[0])
                self._faults.setdefault(fault_key(fault), fault)

    def _take_error(self, oracle: Oracle, path: str, error: BaseException) -> None:
        """An error that eager mode raises as well is none of the compiler's."""
        self._on_phase("comparing")
        failure = attempt(oracle.eager).error
        if isinstance(error, NotObservedError):
            self._take_unjudged(path, error_text(error))
            return
        if failure is not None:
            self._take_unjudged(path, f"the model fails in eager mode: {error_line(failure)}")
            return
        self._has_failed = True
        self._add(path, fault_from_error(error, first_paths(self._session.model)))

    def _take_unjudged(self, path: str, why: str) -> None:
        self._untested[path] = f"not judged in place: {why}"
        self._notes.append(self._untested[path])

    def _add(self, path: str, fault: Fault, **evidence: Any) -> None:
        fault = msgspec.structs.replace(fault, evidence={**fault.evidence, **evidence, "instance": path})
        self._faults.setdefault(fault_key(fault), fault)
        self._by_instance.setdefault(path, []).append(fault)

    def observation(self) -> Observation:
        return Observation(
            faults=tuple(self._faults.values()),
            completed=not self._has_failed,
            has_excused=self._has_excused,
            graphs=self._graphs,
            frames_compiled=self._frames,
            compile_s=self._compile_s,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            untested=self._untested.pop(self._order.path, ""),
            untested_instances=self._untested,
            notes=tuple(dict.fromkeys(self._notes)),
            faults_by_instance={path: tuple(faults) for path, faults in self._by_instance.items()},
            impact=self._impact,
        )


def attributable(differences: Sequence[Difference], own: Sequence[int]) -> list[Difference]:
    """Return what a compiled module answers for, what leaves it first.

    `own` are the numbers of the passages through its door. What enters it first comes from eager modules, before
    anything compiled ran: where that differs already, nothing behind it tells of the module.
    """
    entering, leaving, elsewhere = set(), [], []
    for difference in differences:
        match = _DOOR.match(difference.path)
        if match is None:
            elsewhere.append(difference)
        elif match[2] == "in":
            entering.add(int(match[1]))
        elif int(match[1]) in own:
            leaving.append((int(match[1]), difference))
    first_wrong = min((number for number, _ in leaving if number not in entering), default=None)
    if entering.intersection(own) and (first_wrong is None or min(entering.intersection(own)) < first_wrong):
        return []
    return [*(difference for number, difference in leaving if number not in entering), *elsewhere]


def _in_words(text: str, passages: Sequence[dict[str, Any]]) -> str:
    """Write the paths of what `InPlace` returns as a user reads them."""

    def written(match: re.Match[str]) -> str:
        passage = passages[int(match[1])]
        way = "" if passage["way"] == CALL else f".{passage['way']}"
        return f"{'input' if match[2] == 'in' else 'output'} of {passage['module']}{way}"

    text = _DOOR.sub(written, text).replace("output['output']", "output of the model")
    return re.sub(r"\b(state|grad)\.model\.", r"\1.", text)
