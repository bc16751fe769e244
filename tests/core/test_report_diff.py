from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilebisect.core.outcome import Kind
from compilebisect.core.report import Finding, Location, Report, Uncovered
from compilebisect.core.report_diff import diff_reports, exit_status, findings_beyond
from compilebisect.settings import DEFAULT_KINDS
from tests.sample_reports import healthy_report, large_report, module


def finding(fingerprint: str, path: str = "a", kind: Kind = Kind.ERROR, line: int | None = 3) -> Finding:
    location = None if line is None else Location(file="m.py", line=line, function="Net.forward")
    return Finding(id="F1", kind=kind, module=path, summary="it fails", fingerprint=fingerprint, location=location)


def report(*findings: Finding, complete: bool = True, **fields: object) -> Report:
    base = healthy_report()
    modules = tuple(module(path, "M") for path in ("", "a", "b"))
    return msgspec.structs.replace(base, findings=findings, complete=complete, modules=modules, **fields)


def test_equal_fingerprint_in_the_same_module_is_unchanged_whatever_else_moved() -> None:
    diff = diff_reports(report(finding("p", line=3)), report(finding("p", line=40)))
    assert [len(part) for part in (diff.new, diff.fixed, diff.changed, diff.unchanged)] == [0, 0, 0, 1]


def test_a_fault_that_moved_to_another_module_is_changed_and_not_new() -> None:
    diff = diff_reports(report(finding("p", "a")), report(finding("p", "b")))
    assert [(change.base.module, change.new.module, change.is_same_fault) for change in diff.changed] == [
        ("a", "b", True)
    ]
    assert not (diff.new or diff.fixed or diff.unchanged)


def test_another_fault_at_the_same_place_is_changed_but_beyond_the_baseline() -> None:
    base, new = report(finding("p")), report(finding("q", line=9))
    diff = diff_reports(base, new)
    assert [change.is_same_fault for change in diff.changed] == [False]
    assert not (diff.new or diff.fixed)
    assert findings_beyond(base, new) == new.findings


def test_a_second_instance_of_a_known_fault_is_new() -> None:
    diff = diff_reports(report(finding("p", "a")), report(finding("p", "a"), finding("p", "b")))
    assert [item.module for item in diff.new] == ["b"]
    assert [item.module for item in diff.unchanged] == ["a"]


def test_surest_pairs_are_made_first() -> None:
    base = report(finding("p", "a"), finding("q", "b"))
    new = report(finding("q", "a"), finding("p", "a"))
    diff = diff_reports(base, new)
    assert [item.fingerprint for item in diff.unchanged] == ["p"]
    assert [(change.base.module, change.new.module) for change in diff.changed] == [("b", "a")]


def test_other_kind_in_the_same_module_is_new_and_fixed() -> None:
    diff = diff_reports(report(finding("p", kind=Kind.CRASH)), report(finding("q", kind=Kind.ERROR)))
    assert len(diff.new) == len(diff.fixed) == 1


FINDINGS = st.lists(
    st.builds(
        finding, st.sampled_from("pqr"), st.sampled_from(["a", "b"]), st.sampled_from(Kind), st.sampled_from([None, 3])
    ),
    max_size=6,
)


@given(FINDINGS, FINDINGS)
def test_every_finding_lands_in_exactly_one_group(base: list[Finding], new: list[Finding]) -> None:
    diff = diff_reports(report(*base), report(*new))
    assert len(new) == len(diff.new) + len(diff.changed) + len(diff.unchanged)
    assert len(base) == len(diff.fixed) + len(diff.changed) + len(diff.unchanged)


@given(FINDINGS)
def test_a_report_against_itself_is_unchanged(findings: list[Finding]) -> None:
    diff = diff_reports(report(*findings), report(*findings))
    assert len(findings) == len(diff.unchanged)


def test_doubts_are_said() -> None:
    base = report(finding("p", "gone"), finding("q", kind=Kind.CRASH))
    new = report(complete=False, settings={"check": ["error"], "device": "cuda", "out": "elsewhere"})
    notes = " ".join(diff_reports(base, new).notes)
    assert "new run is incomplete" in notes
    assert "did not test: gone" in notes
    assert "did not look for: crash" in notes
    assert "other settings, so they need not see the same: device." in notes


def test_no_doubts_between_whole_runs() -> None:
    assert not diff_reports(large_report(), large_report()).notes


@pytest.mark.parametrize(
    ("new", "fail_on", "baseline", "status"),
    [
        (report(), DEFAULT_KINDS, None, 0),
        (report(finding("p")), DEFAULT_KINDS, None, 1),
        (report(finding("p")), (Kind.CRASH,), None, 0),
        (report(finding("p", kind=Kind.SLOWDOWN)), DEFAULT_KINDS, None, 0),
        (report(finding("p")), DEFAULT_KINDS, report(finding("p")), 0),
        (report(finding("p", line=30)), DEFAULT_KINDS, report(finding("p", line=3)), 0),
        (report(finding("q")), DEFAULT_KINDS, report(finding("p")), 1),
        (report(finding("p"), finding("p", "b")), DEFAULT_KINDS, report(finding("p")), 1),
        (report(complete=False), DEFAULT_KINDS, None, 130),
        (report(finding("p"), complete=False), DEFAULT_KINDS, None, 130),
    ],
)
def test_exit_status_follows_kinds_baseline_and_interrupt(
    new: Report, fail_on: tuple[Kind, ...], baseline: Report | None, status: int
) -> None:
    assert status == exit_status(new, fail_on, baseline)


@pytest.mark.parametrize(
    ("found", "fail_on", "baseline", "status"),
    [
        ((), DEFAULT_KINDS, None, 125),
        ((finding("p"),), DEFAULT_KINDS, None, 1),
        ((finding("p"),), (Kind.SLOWDOWN,), None, 125),
        ((finding("p"),), DEFAULT_KINDS, report(finding("p")), 125),
        ((), DEFAULT_KINDS, report(uncovered=(Uncovered(path="b", reason="why"),)), 125),
    ],
)
def test_no_option_excuses_a_part_that_could_not_be_tested(
    found: tuple[Finding, ...], fail_on: tuple[Kind, ...], baseline: Report | None, status: int
) -> None:
    untested = report(*found, uncovered=(Uncovered(path="b", reason="why"),))
    assert exit_status(untested, fail_on, baseline) == status
