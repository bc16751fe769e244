"""Compares two reports by fingerprint, for regression triage and baselines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

import msgspec

from compilebisect.core.outcome import Kind
from compilebisect.core.report import Finding, Report, checked_kinds

# Settings that decide what a run can see.
_TELLING = (
    *("spec", "inputs", "init", "train", "optimizer", "context", "dtype", "device", "backend", "mode", "dynamic"),
    *("tolerance", "config"),
)


class Change(msgspec.Struct, frozen=True):
    """A finding of the base and what became of it: the same fault elsewhere, or another fault at the same place."""

    base: Finding
    new: Finding

    @property
    def is_same_fault(self) -> bool:
        """Whether only the module changed."""
        return self.base.fingerprint == self.new.fingerprint


class ReportDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of two reports, sorted by what became of them; `unchanged` are those of the new report.

    `notes` say why the comparison may mislead, such as an incomplete run.
    """

    new: tuple[Finding, ...] = ()
    fixed: tuple[Finding, ...] = ()
    changed: tuple[Change, ...] = ()
    unchanged: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def diff_reports(base: Report, new: Report) -> ReportDiff:
    """Pair the findings of two reports, each at most once, from the surest likeness to the weakest.

    First equal fingerprint in the same module (unchanged), then equal fingerprint in another module (changed),
    then another fingerprint of the same kind, module and place (changed). What is left is fixed or new.
    """
    base_left, new_left = dict(enumerate(base.findings)), dict(enumerate(new.findings))
    unchanged = _take_pairs(base_left, new_left, lambda finding: (finding.fingerprint, finding.module))
    moved = _take_pairs(base_left, new_left, lambda finding: finding.fingerprint)
    other_fault = _take_pairs(base_left, new_left, _place)
    return ReportDiff(
        new=tuple(new_left.values()),
        fixed=tuple(base_left.values()),
        changed=tuple(Change(*pair) for pair in moved + other_fault),
        unchanged=tuple(pair[1] for pair in unchanged),
        notes=_doubts(base, new, list(base_left.values())),
    )


def findings_beyond(baseline: Report, report: Report) -> tuple[Finding, ...]:
    """Return the findings that the baseline does not hold: the new ones, and other faults at known places."""
    diff = diff_reports(baseline, report)
    return diff.new + tuple(change.new for change in diff.changed if not change.is_same_fault)


def counted_findings(report: Report, fail_on: tuple[Kind, ...], baseline: Report | None = None) -> tuple[Finding, ...]:
    """Return the findings that make a run fail: of the given kinds, and not in the baseline."""
    findings = report.findings if baseline is None else findings_beyond(baseline, report)
    return tuple(finding for finding in findings if finding.kind in fail_on)


def exit_status(report: Report, fail_on: tuple[Kind, ...], baseline: Report | None = None) -> int:
    """Return what a run ends with.

    130 when it was interrupted, 1 when findings count, 125 when it failed, or when a part of the model could not be
    tested, which no baseline excuses, else 0.
    """
    if not report.complete and report.ended_by != "failure":
        return 130
    if counted_findings(report, fail_on, baseline):
        return 1
    return 125 if report.uncovered or not report.complete else 0


def _take_pairs(
    base: dict[int, Finding], new: dict[int, Finding], likeness: Callable[[Finding], Hashable]
) -> list[tuple[Finding, Finding]]:
    """Remove and return the pairs that are alike, in the order of `new`."""
    waiting: dict[Hashable, deque[int]] = {}
    for number, finding in base.items():
        waiting.setdefault(likeness(finding), deque()).append(number)
    pairs = []
    for number, finding in list(new.items()):
        if partners := waiting.get(likeness(finding)):
            pairs.append((base.pop(partners.popleft()), new.pop(number)))
    return pairs


def _place(finding: Finding) -> Hashable:
    """Return where a finding stands; the function counts, not the line, which moves with every edit above it."""
    location = finding.location
    return finding.kind, finding.module, location and (location.file, location.function)


def _doubts(base: Report, new: Report, fixed: list[Finding]) -> tuple[str, ...]:
    notes = []
    if not base.complete:
        notes.append("The base run is incomplete: what is new here may only not have been reached there.")
    if not new.complete:
        notes.append("The new run is incomplete: what is fixed here may only not have been reached.")
    seen = {entry.path for entry in new.modules if entry.status not in ("skipped", "not_called", "untested")}
    unseen = sorted({finding.module for finding in fixed if finding.module not in seen})
    if unseen:
        names = ", ".join(path or "the root" for path in unseen)
        notes.append(f"Modules with fixed findings that the new run did not test: {names}.")
    unchecked = sorted({finding.kind.value for finding in fixed if not _is_checked(finding.kind, new)})
    if unchecked:
        notes.append(f"Kinds that the new run did not look for: {', '.join(unchecked)}.")
    both = base.settings.keys() & new.settings.keys()
    differing = [name for name in _TELLING if name in both and base.settings[name] != new.settings[name]]
    if differing:
        notes.append(f"The runs had other settings, so they need not see the same: {', '.join(differing)}.")
    return tuple(notes)


def _is_checked(kind: Kind, report: Report) -> bool:
    """Whether the run looked for the kind; reports without that setting are taken to have looked for all."""
    checked = checked_kinds(report)
    return checked is None or kind in checked
