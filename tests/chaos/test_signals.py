"""No signal loses what was shown, and none leaves anything behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.chaos.hostile import Command, check_no_excuse, check_nothing_left, report_in, run_command

INT, TERM, HUP, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL
SHOWN = r"loud Loud: graph break"
LONG = pytest.mark.chaos

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "numbers", [(INT, INT, INT), (HUP,), pytest.param((TERM,), marks=LONG), pytest.param((INT, TERM, HUP), marks=LONG)]
)
def test_signals_in_the_walk_keep_what_was_shown(
    folder: Path, words: tuple[str, ...], numbers: tuple[signal.Signals, ...]
) -> None:
    command = Command(folder, *words)
    command.wait_for(SHOWN)
    command.send(*numbers)
    end = command.end()
    check_no_excuse(end)
    check_nothing_left(end)
    assert end.status == 130, end.said
    report = report_in(folder / "out")
    assert report["complete"] is False and report["ended_by"] == "interrupt"
    assert [finding["module"] for finding in report["findings"]] == ["loud"], end.said


def test_sigkill_in_the_walk_keeps_what_was_shown_and_the_next_run_clears_up(
    folder: Path, words: tuple[str, ...]
) -> None:
    command = Command(folder, *words)
    command.wait_for(SHOWN)
    command.send(KILL)
    end = command.end()
    assert end.status == -KILL and not end.processes, end.said
    report = report_in(folder / "out")
    assert report["complete"] is False and report["ended_by"] is None
    assert [finding["module"] for finding in report["findings"]] == ["loud"], end.said
    assert len(end.scratch) == 1
    end = run_command(folder, *words, "--no-repro")
    assert end.status == 1, end.said
    check_nothing_left(end)
    assert report_in(folder / "out")["complete"] is True


@pytest.mark.chaos
@pytest.mark.parametrize("numbers", [(INT,), (INT, INT, INT), (TERM,), (KILL,)])
@pytest.mark.parametrize("phase", ["starting torch", "in eager mode", "writing a script", "proving", "early_"])
def test_signals_at_every_phase(
    folder: Path, words: tuple[str, ...], phase: str, numbers: tuple[signal.Signals, ...]
) -> None:
    command = Command(folder, *words)
    command.wait_for(phase)
    command.send(*numbers)
    end = command.end()
    assert not end.processes, end.said
    if numbers != (KILL,):
        check_no_excuse(end)
        check_nothing_left(end)
        # with its last proof the run is complete
        assert end.status == 130 or (phase == "early_" and report_in(folder / "out")["complete"]), end.said
    if "F1" in end.stderr or "graph break" in end.stderr:
        report = report_in(folder / "out")
        assert [finding["module"] for finding in report["findings"]] == ["loud"], end.said
        for finding in report["findings"]:
            if finding["repro"] and finding["repro"]["path"]:
                assert (folder / "out" / finding["repro"]["path"]).is_file(), end.said


def test_nohup_is_obeyed(folder: Path, words: tuple[str, ...]) -> None:
    command = Command(folder, *words, "--no-repro", before="trap '' HUP")
    command.wait_for(SHOWN)
    command.send(HUP)
    end = command.end()
    assert end.status == 1 and report_in(folder / "out")["complete"] is True, end.said


@pytest.mark.parametrize(
    "phase", [SHOWN, pytest.param("in eager mode", marks=LONG), pytest.param("writing a script", marks=LONG)]
)
def test_a_killed_fork_server_costs_no_finding(folder: Path, words: tuple[str, ...], phase: str) -> None:
    command = Command(folder, *words)
    command.wait_for(phase)
    os.kill(command.fork_server(), KILL)
    end = command.end()
    check_no_excuse(end)
    check_nothing_left(end)
    assert end.status == 1, end.said
    report = report_in(folder / "out")
    assert [finding["module"] for finding in report["findings"]] == ["loud"], end.said
    assert report["complete"] is True, end.said
