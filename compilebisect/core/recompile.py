"""Recompiles of one compiled module: which of them are to be expected, and what faults the others make.

Pure judgement over events; `runtime.recompiles` gathers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from compilebisect.core.guard_text import Cause
from compilebisect.core.outcome import Fault, Frame, Kind, Stage
from compilebisect.core.recompile_hints import hint_for

# Calls in a row with the same inputs: a number that changes is made dynamic in the second, so a third has to tell.
CALLS_IN_A_ROW = 4


class RecompileEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One time that Dynamo compiled a frame again.

    `frame` is the function that was compiled again, and `instance` the path of the module that it ran for (None where
    that is unknown). `owner` is the module that holds what changed, or whose frame got the changed argument; None where
    only the stack tells. `subject` names what changed in the user's terms (`self.step`, `x`), `before` and `after` its
    values. `during` says in which call it came. `made_for` is the module for which the code that did not fit was made,
    another instance of the class perhaps. `entries` counts the compiled versions that there were already.
    `is_first_change` marks a size or number that was not seen to change before, so that Dynamo now makes it dynamic.
    `frames` lead to the line that the guard comes from, `guard` is the guard's text, `marks` see `Guard.marks`.
    """

    frame: Frame
    instance: str | None = None
    owner: str | None = None
    cause: Cause
    subject: str = ""
    dim: int | None = None
    before: str = ""
    after: str = ""
    during: str = ""
    made_for: str | None = None
    is_first_change: bool = False
    is_attribute: bool = False
    entries: int = 1
    frames: tuple[Frame, ...] = ()
    guard: str = ""
    marks: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """Say what changed, without values: the same in every run."""
        subject = self.subject or "a value"
        if self.cause is Cause.SIZE:
            return f"size of dim {self.dim} of {subject}"
        if self.cause is Cause.VALUE:
            return f"value of {subject}"
        if self.cause is Cause.GLOBAL_STATE:
            return subject.replace("_", " ")
        if self.cause is Cause.ALIASING:
            return f"whether {subject} are one object"
        if self.cause is Cause.OTHER:
            return "a guard"
        return f"{self.cause.value} of {subject}"

    @property
    def is_of_size_one(self) -> bool:
        """Whether it comes from a size of 0 or 1, which Dynamo compiles apart from all others."""
        return self.cause is Cause.SIZE and bool({self.before, self.after} & {"0", "1"})

    @property
    def change(self) -> str:
        """Say what changed, with values where they are known: `value of self.step: 3 to 4`."""
        values = " to ".join(text for text in (self.before, self.after) if text)
        return f"{self.what}: {values}" if values else self.what


class Recompiles(msgspec.Struct, frozen=True):
    """How often frames were compiled again, and the faults that those make which were not to be expected."""

    count: int
    faults: tuple[Fault, ...]


def judge_recompiles(
    events: Sequence[RecompileEvent], *, can_turn_dynamic: bool, limit: int, in_variants: bool = False
) -> Recompiles:
    """Tell expected recompiles from faults.

    Args:
        events: in the order in which they came.
        can_turn_dynamic: whether Dynamo makes a size or number dynamic once it was seen to change.
        limit: the number of compiled versions of one function beyond which it runs in eager mode.
        in_variants: whether the calls had different inputs.
    """
    groups: dict[tuple[str | None, str], list[RecompileEvent]] = {}
    siblings: dict[tuple[str, int], list[RecompileEvent]] = {}
    for event in events:
        if event.made_for == event.instance:
            groups.setdefault((event.owner, event.what), []).append(event)
        else:
            siblings.setdefault((event.frame.file, event.frame.line), []).append(event)
    faults = [
        _fault(group, limit, in_variants=in_variants)
        for group in groups.values()
        if not (can_turn_dynamic and all(event.is_first_change for event in group))
    ]
    beyond: list[list[RecompileEvent]] = []
    for group in siblings.values():
        if max(event.entries for event in group) >= limit and not any(_is_same_cause(group, other) for other in beyond):
            beyond.append(group)
    faults += [_fault_of_siblings(group, limit) for group in beyond]
    return Recompiles(len(events), tuple(faults))


def _is_same_cause(group: Sequence[RecompileEvent], other: Sequence[RecompileEvent]) -> bool:
    """Say whether the same instances differ in the same thing, in two functions or two parts of one."""
    return group[-1].what == other[-1].what and not set(_instances(group)).isdisjoint(_instances(other))


def _instances(group: Sequence[RecompileEvent]) -> tuple[str, ...]:
    paths = [path for event in group for path in (event.made_for, event.instance)]
    return tuple(dict.fromkeys(path for path in paths if path is not None))


def _fault(group: Sequence[RecompileEvent], limit: int, *, in_variants: bool) -> Fault:
    # The last one tells more than the first, which may only have made a size dynamic.
    last = group[-1]
    located = next((event for event in reversed(group) if event.frames), last)
    times = "once" if len(group) == 1 else f"{len(group)} times"
    message = f"{last.frame.function} was compiled again {times}: {last.change}"
    return Fault(
        kind=Kind.RECOMPILE,
        type=last.what,
        message=message,
        stage=Stage.DYNAMO,
        frames=located.frames,
        location=located.frames[-1] if located.frames else None,
        hint=hint_for(group),
        evidence=_evidence(group, limit, in_variants=in_variants),
        owners=(last.owner,) if last.owner is not None else (),
    )


def _fault_of_siblings(group: Sequence[RecompileEvent], limit: int) -> Fault:
    last = group[-1]
    owners = _instances(group)
    located = next((event for event in group if event.frames), last)
    message = (
        f"{last.frame.function} is compiled anew for each of {len(owners)} instances ({last.change}); beyond "
        f"{limit} compiled versions Dynamo runs it in eager mode without a word"
    )
    return Fault(
        kind=Kind.RECOMPILE,
        type=f"{last.what} differs between instances",
        message=message,
        stage=Stage.DYNAMO,
        frames=located.frames,
        location=located.frames[-1] if located.frames else None,
        hint=hint_for(group, between_instances=True),
        evidence={**_evidence(group, limit, in_variants=False), "between_instances": True},
        owners=owners,
    )


def _evidence(group: Sequence[RecompileEvent], limit: int, *, in_variants: bool) -> dict[str, Any]:
    last = group[-1]
    return {
        "cause": last.cause.value,
        "count": len(group),
        "limit": limit,
        "limit_hit": max(event.entries for event in group) >= limit,
        "in_variants": in_variants,
        "between_instances": False,
        "is_attribute": last.is_attribute,
        "is_of_size_one": all(event.is_of_size_one for event in group),
        "marks": sorted({mark for event in group for mark in event.marks}),
        "recompiles": [
            {
                "call": event.during,
                "function": event.frame.function,
                "line": event.frame.line,
                "what": event.what,
                "before": event.before,
                "after": event.after,
                "guard": event.guard,
            }
            for event in group[:20]
        ],
    }
