"""Faults from what a probe meets: graph breaks, exceptions, and differences between two runs."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from compilebisect.core.break_cures import cure_of
from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.mended_source import enclosing_block
from compilebisect.core.module_tree import GoldenCall
from compilebisect.core.outcome import BACKEND_FAILED, Fault, Frame, Kind, Stage
from compilebisect.error_text import error_lines
from compilebisect.runtime import torch_internals
from compilebisect.runtime.changed_code import CannotChange, file_tree
from compilebisect.runtime.compare import Comparison, Difference
from compilebisect.runtime.frames import frames_of
from compilebisect.runtime.torch_internals import (
    EFFECTS,
    FRAME_SKIPPED,
    RESUMED,
    BreakEvent,
    is_of_dynamo,
    without_resume_prefix,
)
from compilebisect.source_files import is_user_or_library_file

_STAGE_OF_ORIGIN = {
    "dynamo": Stage.DYNAMO,
    "inductor": Stage.INDUCTOR,
    "cpp": Stage.CPP,
    "triton": Stage.TRITON,
}
# The name by which a graph break at a fence is told from the model's own.
FENCE_NAME = "compilebisect_fence"
# Dynamo puts a generator together again after a break inside it, and may fail at that; seen with torch 2.13 and 2.11.
_GENERATOR_IN_PIECES = ("Read uninitialized cell", "Generator reconstruction with mutations")
# What Dynamo names where it has already resumed from the break that it met in the loop; seen with torch 2.11.
_LOOP_WITH_A_BREAK = "graph break in loop"
_COMPREHENSIONS = frozenset({"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"})
# Where an object lies in memory differs from run to run, and so would reports.
_AT_ADDRESS = re.compile(r" at 0x[0-9a-f]+\b")
# In what Inductor's check of sizes and strides says of an operator.
_OPERATOR = re.compile(r"Error in op: torch\.ops\.([\w.]+)")
# What Dynamo says when it is handed a running iterator; seen with torch 2.13 and 2.14.
_ITERATOR = re.compile(r"iterator|[Gg]enerator|enumerate|\.0\b|C-implemented special method")


def causes(events: list[BreakEvent]) -> list[BreakEvent]:
    """Leave out breaks at our own fences, and those that only follow from another break.

    Once Dynamo has given up on a frame, the comprehensions and generators in it are compiled as frames of their own,
    which fail on the iterator that they are handed. These vanish with the first cause. So does a loop that is given up
    for a break inside it, and a frame that the backend does not take for what it calls.
    """
    own = [event for event in events if FENCE_NAME not in event.message and not _is_at_fence(event)]
    own = [event for event in own if not _is_met_while_compiling(event)]
    own = [event for event in own if not _follows_from_a_break_inside(event, events)]
    own = _without_loops(own)
    own = [event for event in own if not any(_holds(event, other) for other in own)]
    gave_up = {event.compiled_frame for event in own if event.effect == FRAME_SKIPPED} - _COMPREHENSIONS
    return [event for event in own if not (gave_up and _fails_on_its_iterator(event))]


def _without_loops(events: list[BreakEvent]) -> list[BreakEvent]:
    """Leave out loops that were given up for a break on the same line, which then is what skips the frame."""
    kept = []
    for event in events:
        place = _innermost(event)
        inside = [
            other
            for other in events
            if other.type != _LOOP_WITH_A_BREAK and place in {(line.filename, line.lineno) for line in other.stack}
        ]
        if event.type != _LOOP_WITH_A_BREAK or place is None or not inside:
            kept.append(event)
        else:
            inside[0].effect = event.effect
    return kept


def _holds(event: BreakEvent, other: BreakEvent) -> bool:
    """Say whether the backend failed on a frame only for what a function called by it, a frame later on, holds.

    Dynamo hands the backend the graph of the outermost frame first. When that fails, the frame runs in eager mode and
    each function that it calls is compiled alone, down to the one that the backend cannot compile.
    """
    if not event.type == other.type == BACKEND_FAILED:
        return False
    file, first = event.compiled_place
    return (
        other.compiled_place != event.compiled_place
        and _message_parts(other.message)[0] == _message_parts(event.message)[0]
        and any(
            (line.filename, without_resume_prefix(line.name)) == (file, without_resume_prefix(event.compiled_frame))
            and first <= (line.lineno or 0) <= event.compiled_end
            for line in other.stack
        )
    )


def _innermost(event: BreakEvent) -> tuple[str, int | None] | None:
    return (event.stack[-1].filename, event.stack[-1].lineno) if event.stack else None


def _is_met_while_compiling(event: BreakEvent) -> bool:
    """Say whether the frame is of torch's own compiler at work, which compiles a backward pass only when it is run.

    Dynamo watches that run, and so the compiler too: it takes up, and gives up on, frames of it that are nobody's.
    """
    if is_user_or_library_file(event.compiled_place[0]):
        return False
    for summary in reversed(event.stack[: len(event.stack) - event.own_depth]):
        if is_user_or_library_file(summary.filename):
            return False
        if any(folder in summary.filename for folder in torch_internals.COMPILER_FOLDERS):
            return True
    return False


def _follows_from_a_break_inside(event: BreakEvent, events: list[BreakEvent]) -> bool:
    """Say whether a frame broke only because another break lies inside a generator on its line."""
    if event.type not in _GENERATOR_IN_PIECES or not event.stack:
        return False
    place = _innermost(event)
    return any(
        place in {(summary.filename, summary.lineno) for summary in other.stack}
        for other in events
        if other.type not in _GENERATOR_IN_PIECES
    )


def _fails_on_its_iterator(event: BreakEvent) -> bool:
    is_own_frame = event.compiled_frame in _COMPREHENSIONS and event.own_depth <= 1
    return is_own_frame and _ITERATOR.search(f"{event.type} {event.message}") is not None


def _is_at_fence(event: BreakEvent) -> bool:
    return any(summary.name == FENCE_NAME for summary in event.stack[-1:])


def faults_from_breaks(events: list[BreakEvent], call: GoldenCall) -> list[tuple[BreakEvent, Fault]]:
    """Turn graph breaks into faults, each with an event that it was made from, those that skip a frame first.

    The same break is met again in each enclosing frame; the worst that it does anywhere is what counts.
    """
    made = [(event, fault_from_break(event, call)) for event in causes(events)]
    made.sort(key=lambda pair: pair[0].effect != FRAME_SKIPPED)
    effects: dict[FaultKey, dict[str, Any]] = {}
    for event, fault in made:
        effect = effects.setdefault(fault_key(fault), {"effect": event.effect, "skipped_frames": []})
        effect["effect"] = max(effect["effect"], event.effect, key=EFFECTS.index)
        if event.effect == RESUMED or not is_user_or_library_file(event.compiled_place[0]):
            continue
        if (skipped := _skipped_frame(event)) not in effect["skipped_frames"]:
            effect["skipped_frames"].append(skipped)
    return [
        (event, msgspec.structs.replace(fault, evidence={**fault.evidence, **effects[fault_key(fault)]}))
        for event, fault in made
    ]


def _skipped_frame(event: BreakEvent) -> dict[str, Any]:
    """Describe the function that Dynamo gave up on: where it begins, and in which block of it the break stands."""
    file, first = event.compiled_place
    frame: dict[str, Any] = {"file": file, "line": first, "function": without_resume_prefix(event.compiled_frame)}
    if event.own_depth and (line := event.stack[-event.own_depth].lineno):
        with suppress(CannotChange):
            if block := enclosing_block(file_tree(file), line):
                frame |= {"block": block[0], "block_line": block[1]}
    return frame


def fault_from_break(event: BreakEvent, call: GoldenCall) -> Fault:
    """Turn a graph break into a fault; where no user frame exists, its place is the line that calls the module."""
    frames = frames_of(event.stack)
    message = _AT_ADDRESS.sub("", event.message).strip()
    explanation, hints = _message_parts(message)
    fault = Fault(
        kind=Kind.GRAPH_BREAK,
        type=event.type,
        message=message,
        # torch makes a break of what AOTAutograd says of an operator, in forward or backward, that has no fake kernel
        stage=Stage.AOT_AUTOGRAD if event.type == BACKEND_FAILED else Stage.DYNAMO,
        frames=frames or ((call.call_site,) if call.call_site else ()),
        location=frames[-1] if frames else call.call_site,
        hint=hints[0] if hints else "",
        evidence={"explanation": explanation, "hints": hints},
    )
    return msgspec.structs.replace(fault, hint=cure_of(fault).hint)


def _message_parts(message: str) -> tuple[str, list[str]]:
    explanation, hints = "", []
    for line in message.splitlines():
        text = line.strip()
        if text.startswith("Explanation:") and not explanation:
            explanation = text.removeprefix("Explanation:").strip()
        elif text.startswith("Hint:"):
            hints.append(text.removeprefix("Hint:").strip())
    return explanation, hints


def fault_from_error(error: BaseException, paths: Mapping[int, str] | None = None) -> Fault:
    """Turn an exception of a compiled run into a fault; the stage is left open where the ladder has to name it.

    `paths` are those of the model's modules, by their ids.
    """
    known = torch_internals.compile_error(error)
    evidence = {"exception": type(error).__name__}
    text = _AT_ADDRESS.sub("", error_lines(error)).strip()
    hint = ""
    if "fake" in text and (operator := _OPERATOR.search(text)):
        hint = (
            f"The fake kernel of {operator[1]} gives other sizes, strides or dtypes than its kernel; "
            f"torch.library.opcheck(torch.ops.{operator[1]}, args) tells which."
        )
    if "no fake impl" in text:
        hint = (
            "Register a fake kernel for the operator that is named there (torch.library.register_fake); one that only "
            "the backward pass calls needs it too."
        )
    if known is None:
        frames = frames_of(traceback.extract_tb(error.__traceback__))
        stage = Stage.RUNTIME
        return Fault(
            kind=Kind.ERROR,
            type=type(error).__name__,
            message=text,
            stage=stage,
            frames=(),
            location=frames[-1] if frames else None,
            hint=hint,
            evidence=evidence,
        )
    origin, name, stack = known
    is_dynamo = origin == "dynamo"
    frames = frames_of(stack)
    asked = _asked_by_compiler(error, paths or {}) if is_dynamo else None
    if asked is not None:  # the line that Dynamo was at only uses the module whose code raises
        return Fault(
            kind=Kind.ERROR,
            type=name,
            message=text,
            stage=Stage.DYNAMO,
            location=asked[1],
            hint=hint,
            evidence=evidence,
            owners=(asked[0],),
        )
    return Fault(
        kind=Kind.ERROR,
        type=name,
        message=text,
        stage=_STAGE_OF_ORIGIN.get(origin),
        # After capture, Dynamo's stack only says where the graph ended, which has nothing to do with the fault.
        frames=frames if is_dynamo else (),
        location=frames[-1] if frames and is_dynamo else None,
        hint=hint,
        evidence=evidence,
    )


def _asked_by_compiler(error: BaseException, paths: Mapping[int, str]) -> tuple[str, Frame] | None:
    """Return the module whose own code raised when Dynamo asked it for something, as its `__getattr__`; and where."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if is_user_or_library_file(file):
            owner = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
            place = frames_of([traceback.FrameSummary(file, line, frame.f_code.co_name)])
            found = (paths[id(owner)], place[0]) if id(owner) in paths and place else found
        elif is_of_dynamo(file):
            found = None  # what called the compiler, or was called by what it called
    return found


def figures_as_data(difference: Difference) -> dict[str, Any]:
    """Return the figures of a difference and what decided, as plain data for the report."""
    data: dict[str, Any] = {}
    if difference.figures is not None:
        data["figures"] = msgspec.to_builtins(difference.figures)
    if difference.verdict is not None:
        data["verdict"] = msgspec.to_builtins(difference.verdict)
    return data


def faults_from_comparison(comparison: Comparison) -> list[Fault]:
    """Make one fault of all differences of a comparison: they have one cause more often than not."""
    if not comparison.differences:
        return []
    first = comparison.differences[0]
    return [
        Fault(
            kind=Kind.DIVERGENCE,
            type=first.type,
            message=first.text,
            evidence={
                "differences": [
                    {"type": item.type, "path": item.path, "text": item.text, **figures_as_data(item)}
                    for item in comparison.differences[:20]
                ],
                "count": len(comparison.differences),
                "yardstick": first.verdict.yardstick if first.verdict is not None else "has to be equal",
                **_excess_of(comparison),
                "pass": "backward" if all(d.path.startswith("grad.") for d in comparison.differences) else "forward",
            },
        )
    ]


def in_call(fault: Fault, number: int) -> Fault:
    """Return a fault that shows in one of several calls in a row; in the first it shows without the others too."""
    if number < 2:
        return fault
    evidence = {**fault.evidence, "call_in_row": number}
    return msgspec.structs.replace(fault, evidence=evidence, message=f"in call {number} in a row: {fault.message}")


def with_variant(fault: Fault, number: int) -> Fault:
    """Return a fault that shows with a further variant of the inputs, 1 being the first."""
    evidence = {**fault.evidence, "in_variants": True, "variant": number}
    message = f"with variant {number} of the inputs: {fault.message}"
    return msgspec.structs.replace(fault, evidence=evidence, message=message)


def _excess_of(comparison: Comparison) -> dict[str, float]:
    """Give how far values are off, in multiples of what is allowed, where that was measured for all that differs."""
    measured = [item.verdict.excess if item.verdict is not None else None for item in comparison.differences]
    known = [excess for excess in measured if excess is not None]
    return {"excess": round(max(known), 3)} if len(known) == len(measured) and math.isfinite(max(known)) else {}
