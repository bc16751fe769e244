"""A probe of the optimizer's step: compiled, from the golden parameters and gradients, beside eager steps."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from compilebisect.attempt import attempt
from compilebisect.core.fingerprint import fault_key
from compilebisect.core.messages import ProbeOrder
from compilebisect.core.module_tree import OPTIMIZER_PATH
from compilebisect.core.outcome import Fault, Kind, Observation
from compilebisect.error_text import error_line
from compilebisect.runtime import torch_internals
from compilebisect.runtime.compare import Difference
from compilebisect.runtime.faults import fault_from_break, fault_from_error, faults_from_comparison
from compilebisect.runtime.golden import load_golden
from compilebisect.runtime.optimizer import OptimizerSteps
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.probe import compile_options
from compilebisect.runtime.recompile_calls import judged
from compilebisect.runtime.recompiles import RecompileLog

_PLACE = re.compile(r"output\['(parameters|updates|state)'\]\['([^']+)'\](?:\['(\w+)'\])?")
_UPDATES = "output['updates']"
#: What an update may be off by, relative to itself. Rounding of a parameter is large beside the small step that it
#: took, and compiled steps count in float32: one ulp in 1 - beta ** step is 1.2e-4 of it in the first step of Adam
#: (source: torch/optim/adam.py, beta of 0.999).
UPDATE_FLOOR = 1e-3
#: The first step makes the state, so code for the second one is made anew.
_MAKES_STATE = ("step 1", "step 2")


def optimizer_oracle(steps: OptimizerSteps, order: ProbeOrder) -> Oracle:
    """Return the oracle for steps from the golden parameters and gradients."""
    args, kwargs = load_golden(Path(order.folder), OPTIMIZER_PATH, order.calls[0].index)
    return Oracle(
        steps,
        args,
        kwargs,
        order.calls[0].context,
        seed=order.seed,
        tolerance=order.tolerance_for(OPTIMIZER_PATH),
    )


def probe_optimizer(
    steps: OptimizerSteps, order: ProbeOrder, *, on_phase: Callable[[str], None]
) -> tuple[Observation, bool]:
    """Carry out the probe and return what it saw, and whether the process can go on with others after it."""
    torch.compiler.reset()
    oracle, call = optimizer_oracle(steps, order), order.calls[0]
    log = RecompileLog(steps, "") if order.looks_for_recompiles else None

    def compiled(around: Callable[[int], AbstractContextManager[Any]]) -> Callable[..., Any]:
        return steps.with_compiled(lambda step: torch.compile(step, **compile_options(order)), around)

    def watched(number: int) -> AbstractContextManager[Any]:
        return log.watching(f"step {number}") if log else nullcontext()

    faults: dict[Any, Fault] = {}
    notes: list[str] = []
    untested, recompiles = "", 0
    started = time.perf_counter()
    on_phase("running")
    with torch_internals.watch_compile(on_phase=on_phase) as watcher:
        ran = attempt(lambda: oracle.run(compiled(watched)))
    error = ran.error
    compile_s = time.perf_counter() - started
    on_phase("comparing")
    failure = attempt(oracle.eager).error
    if failure is not None:
        return Observation(untested=f"its step fails in eager mode: {error_line(failure)}"), error is None
    found = [fault_from_break(event, call) for event in watcher.breaks if not torch_internals.is_own_break(event)]
    if error is not None:
        found.append(fault_from_error(error))
    elif not watcher.graph_runs:
        untested = "its step was not captured: all of it ran in eager mode"
    elif order.compares_values:
        # Each run makes an optimizer of its own, so what is compiled for another seed is compiled anew.
        comparison = oracle.judge(ran.value, compiled(lambda number: nullcontext()))
        notes += [_in_words(note) for note in comparison.notes if _UPDATES not in note]
        found_wrong = _beyond_floor(comparison.differences, max(UPDATE_FLOOR, steps.coarseness))
        told = [replace(item, path=_in_words(item.path), text=_in_words(item.text)) for item in found_wrong]
        found += faults_from_comparison(replace(comparison, differences=told))
    if log is not None and error is None:
        recompiles = len(log.events)
        log.events = [event for event in log.events if event.during not in _MAKES_STATE]
        seen = judged(log, order)
        found += [msgspec.structs.replace(fault, owners=()) for fault in seen.faults]
    for fault in found:
        faults.setdefault(fault_key(fault), fault)
    torch.compiler.reset()
    is_usable = error is None or not torch_internals.is_device_failure(error)
    # A break in code of torch's own leaves no graph to compare, and is what there is to tell.
    has_break = any(fault.kind is Kind.GRAPH_BREAK for fault in faults.values())
    return (
        Observation(
            faults=tuple(faults.values()),
            completed=error is None,
            graphs=watcher.graph_count,
            operators=watcher.operators,
            frames_compiled=watcher.frames_compiled,
            recompiles=recompiles,
            compile_s=compile_s,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            is_all_eager=has_break and bool(untested),
            untested="" if has_break else untested,
            notes=tuple(dict.fromkeys([*notes, untested] if has_break and untested else notes)),
        ),
        is_usable,
    )


def _beyond_floor(differences: Sequence[Difference], floor: float) -> list[Difference]:
    """Leave out values of parameters whose update is right, and updates that rounding of the parameter explains."""
    measured = [(item, _PLACE.match(item.path)) for item in differences if item.figures is not None]
    wrong: dict[str, set[str]] = {"parameters": set(), "updates": set()}
    for item, place in measured:
        if place is not None and place[1] in wrong and item.figures is not None:
            is_wrong = place[1] == "parameters" or item.figures.difference.largest >= floor
            wrong[place[1]].update([place[2]] if is_wrong else [])
    excused = [
        item
        for item, place in measured
        if place is not None and place[1] in wrong and place[2] not in wrong["parameters"] & wrong["updates"]
    ]
    return [item for item in differences if item not in excused]


def _in_words(text: str) -> str:
    def written(match: re.Match[str]) -> str:
        part, name, entry = match.groups()
        return {"parameters": name, "updates": f"update of {name}", "state": f"{entry or 'state'} of {name}"}[part]

    return _PLACE.sub(written, text)
