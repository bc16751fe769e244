from __future__ import annotations

import io

import pytest
from rich.console import Console

from compilebisect.cli.progress import LiveProgress, PlainProgress, RunClock
from compilebisect.core.report import Repro
from compilebisect.progress import ProgressListener
from tests.sample_reports import large_report


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drawn(listener: LiveProgress, width: int = 60) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, markup=False, emoji=False)
    console.print(listener)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


def test_remaining_time_grows_from_what_finished() -> None:
    clock = FakeClock()
    run = RunClock(clock)
    clock.now += 20  # starting torch takes its time and says nothing about probes
    assert run.remaining_s() is None
    run.begin("a", "A", "inductor", 0, 4)
    assert run.remaining_s() is None
    clock.now += 3
    assert run.end("a", 1, 4) == ("A", 3.0)
    assert run.remaining_s() == 9.0
    run.end("b", 3, 4)
    assert run.remaining_s() == 1.0
    assert run.elapsed_s() == 23.0


def test_a_probe_that_climbs_the_ladder_keeps_its_start() -> None:
    clock = FakeClock()
    run = RunClock(clock)
    run.begin("a", "A", "inductor", 0, 1)
    clock.now += 2
    run.begin("a", "A", "aot_eager", 0, 1)
    assert run.probe_s("a") == 2.0


def test_end_of_an_unknown_probe_is_survived() -> None:
    assert RunClock(FakeClock()).end("never begun", 1, 1) == ("", 0.0)


def test_plain_lines_say_module_status_and_time_left() -> None:
    clock, stream = FakeClock(), io.StringIO()
    listener = PlainProgress(stream, clock=clock)
    listener.phase_started("running the model\nin eager mode")
    listener.probe_started("", "Net", "inductor", 0, 3)
    clock.now += 1.5
    listener.probe_finished("", "graph_break", 1, 3)
    listener.probe_started("head", "Head", "inductor", 1, 3)
    listener.probe_finished("head", "ok", 3, 3)
    assert stream.getvalue().splitlines() == [
        "running the model in eager mode …",
        "[1/3] Net: graph break (1.5 s, about 3.0 s left)",
        "[3/3] head Head: ok (0.0 s)",
    ]


def test_verbose_lines_say_the_rung() -> None:
    stream = io.StringIO()
    PlainProgress(stream, is_verbose=True, clock=FakeClock()).probe_started("head", "Head", "aot_eager", 0, 3)
    assert stream.getvalue() == "[0/3] head: aot_eager …\n"


def test_live_drawing_shows_running_modules_and_figures() -> None:
    clock = FakeClock()
    listener = LiveProgress(Console(file=io.StringIO()), clock=clock)
    listener.phase_started("starting torch")
    assert "starting torch" in drawn(listener)[0]
    listener.probe_started("encoder.layers.0", "Block", "inductor", 0, 10)
    clock.now += 4
    listener.probe_finished("encoder.layers.0", "ok", 1, 10)
    for number in range(8):
        listener.probe_started(f"part.{number}", "Part", "inductor", 1, 10)
    clock.now += 2
    head, *lines = drawn(listener)
    assert "1/10 units  6.0 s so far, about 54 s left" in head
    assert lines[0] == "  part.0  Part  inductor  2.0 s"
    assert len(lines) == 7 and lines[-1] == "  and 2 more"


def test_long_paths_do_not_wrap_the_live_drawing() -> None:
    listener = LiveProgress(Console(file=io.StringIO()), clock=FakeClock())
    listener.probe_started("a_long_name." * 12, "Block", "inductor", 0, 10)
    assert len(drawn(listener, width=40)) == 2


@pytest.mark.parametrize("is_live", [True, False])
def test_findings_and_warnings_leave_one_line_each(is_live: bool) -> None:
    stream = io.StringIO()
    listener: ProgressListener
    if is_live:
        listener = LiveProgress(Console(file=stream, width=300), clock=FakeClock())
    else:
        listener = PlainProgress(stream, clock=FakeClock())
    for finding in large_report().findings:
        listener.finding_made(finding)
    listener.script_made("crash in decoder.kernel", Repro(path="early_1.py", verified=True, runs=3, shown=3, lines=40))
    listener.script_made("hang in head", Repro(path="", note="no script could be written"))
    listener.warned("two\nlines \x1b[31m[red]")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("F1: crash in decoder.kernel: the worker was killed by SIGSEGV")
    assert lines[8] == "crash in decoder.kernel: early_1.py: verified, 40 lines"
    assert lines[9] == "hang in head: NOT verified, no script could be written"
    assert lines[-1] == r"warning: two lines \x1b[31m[red]"
