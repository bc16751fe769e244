"""Faults that are no findings of their own: what only shows behind another one and has no proof, what merely follows
from another one, and what was not seen again. Each is told where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.outcome import Fault, Kind
from compilebisect.core.unit_result import IntroducedFault

NOT_PROVED = "no script shows it"
NOT_TRIED = "no script was tried"
SEEN_ONCE = "it was seen once, and neither its script nor a second check in a fresh process shows it again"


class Dismissed(msgspec.Struct, frozen=True):
    """A fault that was taken back, the modules that it was laid to, and why; no reason: it follows from another one."""

    item: IntroducedFault
    paths: tuple[str, ...]
    reason: str


def hider_of(fault: Fault) -> FaultKey | None:
    """Return the key of the fault that has to be out of the way for this one to show, None for none."""
    key = fault.evidence.get("hidden_behind")
    return _key(key) if key else None


def cause_of(fault: Fault) -> FaultKey | None:
    """Return the key of the fault that this one merely follows from, None for none."""
    key = fault.evidence.get("follows_from")
    return _key(key) if key else None


def is_hidden(fault: Fault) -> bool:
    """Return whether a fault only shows once another one is out of the way."""
    return hider_of(fault) is not None


def _key(parts: Sequence[str]) -> FaultKey:
    kind, type_name, file, place = parts
    return kind, type_name, file, place


class DismissedFaults:
    """The faults that were taken back, as texts for the findings that they hang on and for their modules.

    Args:
        faults: what was taken back.
        ids: the findings that are left, by the keys of their faults.
        said: says a fault in a few words, with its place.
    """

    def __init__(self, faults: Sequence[Dismissed], ids: Mapping[FaultKey, str], said: Callable[[Fault], str]) -> None:
        self._faults, self._ids, self._said = faults, ids, said
        self._above = {
            fault_key(one.item.fault): cause_of(one.item.fault) or hider_of(one.item.fault) for one in faults
        }

    def evidence_of(self, fault: Fault) -> dict[str, list[str]]:
        """Return what hangs on a finding's fault: what is `not_proved` behind it, and what `follows` from it."""
        ours = [one for one in self._faults if self._finding_above(one.item.fault) == fault_key(fault)]
        found = {
            "not_proved": [f"{self._said(one.item.fault)} ({one.reason})" for one in ours if one.reason],
            "follows": [self._said(one.item.fault) for one in ours if not one.reason],
        }
        return {name: texts for name, texts in found.items() if texts}

    def notes_of(self, path: str) -> list[str]:
        """Return the notes for a module that such faults were laid to."""
        return [self._note(one) for one in self._faults if path in one.paths]

    def _note(self, one: Dismissed) -> str:
        text, key = self._said(one.item.fault), self._finding_above(one.item.fault)
        other = self._ids[key] if key is not None else "another fault"
        if not one.reason:
            return f"{text}: no finding of its own, for it is gone once {other} is mended"
        if is_hidden(one.item.fault):
            return f"{text}: no finding, for it shows only once {other} is out of the way, and {one.reason}"
        return f"{text}: no finding, for {one.reason}"

    def _finding_above(self, fault: Fault) -> FaultKey | None:
        """Return the fault that a dismissed one hangs on and that is a finding; None where there is none."""
        return first_above(fault_key(fault), self._above, self._ids)


def followers(faults: Sequence[Fault]) -> set[FaultKey]:
    """Return which of some faults merely follow from another one that follows from none."""
    causes = {fault_key(fault): cause for fault in faults if (cause := cause_of(fault)) is not None}
    roots = {fault_key(fault) for fault in faults} - set(causes)
    return {key for key in causes if first_above(key, causes, roots) is not None}


def first_above(
    key: FaultKey, above: Mapping[FaultKey, FaultKey | None], wanted: Collection[FaultKey]
) -> FaultKey | None:
    """Go from a fault to what it hangs on, and so on, until a wanted one is met; None where none is."""
    seen, other = {key}, above.get(key)
    while other is not None and other not in wanted and other not in seen:
        seen.add(other)
        other = above.get(other)
    return other if other in wanted else None


def is_seen_as(fault: Fault, other: Fault) -> bool:
    """Return whether a second look that shows `other` saw the fault again; where in doubt, it did."""
    if fault.kind is Kind.GRAPH_BREAK:
        return fault_key(fault) == fault_key(other)
    return fault.kind is other.kind
