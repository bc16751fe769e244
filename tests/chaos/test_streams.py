"""Closed and full standard streams, and folders that go away, change no verdict and no exit status."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from compilebisect.core.report import report_json
from tests.chaos.hostile import Command, check_no_excuse, check_nothing_left, report_in, run_command
from tests.sample_reports import healthy_report, large_report

LOST = ">&-", ">/dev/full", ">&- 2>&- <&-", ">/dev/full 2>/dev/full"
KEPT = "2>&-", "2>/dev/full", "<&-", "| head -c 1", "2>&1 | true"


@pytest.fixture
def reports(folder: Path) -> Path:
    (folder / "large.json").write_bytes(report_json(large_report()))
    (folder / "healthy.json").write_bytes(report_json(healthy_report()))
    return folder


@pytest.mark.parametrize("redirect", LOST)
@pytest.mark.parametrize(
    "words", [("show", "large.json"), ("diff", "healthy.json", "large.json"), ("--help",), ("show", "--help")]
)
def test_output_that_cannot_be_written_is_said(reports: Path, words: tuple[str, ...], redirect: str) -> None:
    end = run_command(reports, *words, redirect=redirect)
    check_no_excuse(end)
    assert end.status == 125, end.said
    assert ("standard output cannot be written" in end.stderr) is ("2>" not in redirect), end.said


@pytest.mark.parametrize("redirect", KEPT)
def test_the_other_streams_and_a_reader_that_leaves_change_nothing(reports: Path, redirect: str) -> None:
    end = run_command(reports, "diff", "healthy.json", "large.json", redirect=redirect, before="set -o pipefail")
    check_no_excuse(end)
    assert end.status == 1, end.said


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full", "2>&- <&- >&-", ">/dev/full 2>&1"])
def test_wrong_commands_stay_wrong(folder: Path, redirect: str) -> None:
    for words in (["run"], ["model.py:Net", "--frmat", "json"], ["show", "absent.json"], []):
        assert run_command(folder, *words, redirect=redirect).status == 2, words


def test_standard_input_that_is_closed_is_told(folder: Path) -> None:
    end = run_command(folder, "model.py:Net", "--input-spec", "-", redirect="<&-")
    assert end.status == 2 and "standard input is closed" in end.stderr, end.said


@pytest.mark.slow
@pytest.mark.parametrize(
    "redirect",
    [
        ">&- 2>&- <&-",
        ">/dev/full 2>/dev/full",
        *(pytest.param(text, marks=pytest.mark.chaos) for text in (">&-", "<&-", "2>&-", ">/dev/full", "2>/dev/full")),
    ],
)
def test_a_run_ends_with_its_verdict_whatever_its_streams(folder: Path, words: tuple[str, ...], redirect: str) -> None:
    for name, status in (("Net", 1), ("Healthy", 0)):
        end = run_command(folder, f"model.py:{name}", *words[1:], "--no-repro", redirect=redirect)
        check_no_excuse(end)
        check_nothing_left(end)
        assert end.status == status, end.said
        assert len(report_in(folder / "out")["findings"]) == status
        if redirect in (">&-", ">/dev/full"):
            assert "the report is in out/report.json" in end.stderr, end.said


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["json", "tree", "junit"])
def test_a_reader_that_leaves_does_not_matter(folder: Path, words: tuple[str, ...], format_name: str) -> None:
    end = run_command(
        folder, *words, "--no-repro", "--format", format_name, redirect="| true", before="set -o pipefail"
    )
    check_no_excuse(end)
    assert end.status == 1, end.said


@pytest.mark.slow
def test_a_folder_that_goes_away_costs_no_verdict(folder: Path, words: tuple[str, ...]) -> None:
    (folder / "tmp").mkdir()
    command = Command(folder, *words, "--no-repro", "--format", "json", env={"TMPDIR": str(folder / "tmp")})
    command.wait_for("loud Loud: graph break")
    shutil.rmtree(folder / "out")
    end = command.end()
    check_no_excuse(end)
    check_nothing_left(end)
    assert end.status == 1, end.said
    [saved] = (folder / "tmp").glob("compilebisect-out-*")
    assert str(saved) in end.stderr and report_in(saved) == json.loads(end.stdout)
