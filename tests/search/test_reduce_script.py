"""Reducing scripts that follow the exit statuses, without torch: the search and its proof are the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from compilebisect.errors import CannotTestError, UsageError
from compilebisect.progress import SilentProgress
from compilebisect.search.reduce_script import reduce_script, status_of
from compilebisect.search.script_runner import ScriptRunner

SCRIPT = """# A fault of a parser.
import sys


class Tokens:
    def __init__(self, text):
        self.text = text
        self.words = text.split()
        self.count = len(self.words)

    def widths(self):
        widths = []
        for word in self.words:
            widths.append(len(word))
        return widths

    def total(self):
        total = 0
        for width in self.widths():
            total = total + width
        return total


def make():
    tokens = Tokens("some words that nobody needs, and one that breaks it")
    return tokens


def main():
    tokens = make()
    if "breaks" in tokens.text:
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
"""
SMALL = """# A fault of a parser.
import sys


class Tokens:
    def __init__(self, text):
        self.text = text


def make():
    tokens = Tokens("some words that nobody needs, and one that breaks it")
    return tokens


def main():
    tokens = make()
    if "breaks" in tokens.text:
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
"""


def reduced(runner: ScriptRunner, folder: Path, text: str, *, budget_s: float = 100.0, any_script: bool = True):
    script = folder / "fault.py"
    script.write_text(text, encoding="utf-8")
    out = folder / "fault_reduced.py"
    done = reduce_script(
        script,
        out,
        runner,
        budget_s=budget_s,
        runs=2,
        args=(),
        environment=dict(os.environ),
        progress=SilentProgress(),
        any_script=any_script,
    )
    return done, out.read_text(encoding="utf-8")


def test_a_script_shrinks_to_what_shows_the_fault_and_is_proved(plain_runner: ScriptRunner, tmp_path: Path):
    done, text = reduced(plain_runner, tmp_path, SCRIPT)
    assert text == SMALL
    assert (done.shown, done.runs, done.is_finished) == (2, 2, True)
    assert done.after < done.before
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["fault.py", "fault_reduced.py"]


def test_no_time_leaves_the_script_as_it_is(plain_runner: ScriptRunner, tmp_path: Path):
    done, text = reduced(plain_runner, tmp_path, SCRIPT, budget_s=0.0)
    assert text == SCRIPT and not done.is_finished and done.candidates == 0


@pytest.mark.parametrize(("text", "said"), [("import sys; sys.exit(0)", "exit status 0"), ("1 / 0", "exit status 125")])
def test_a_script_that_shows_no_fault_is_not_reduced(plain_runner: ScriptRunner, tmp_path: Path, text: str, said: str):
    with pytest.raises(CannotTestError, match=said):
        reduced(plain_runner, tmp_path, text)


def test_what_is_no_script_is_said(plain_runner: ScriptRunner, tmp_path: Path):
    with pytest.raises(UsageError, match="no Python"):
        reduced(plain_runner, tmp_path, "this is no python")


def test_an_interrupt_keeps_the_smallest_so_far(
    plain_runner: ScriptRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runs = []

    def run(*args, **options):
        runs.append(time.monotonic())
        if len(runs) == 6:
            raise KeyboardInterrupt
        return ScriptRunner.run(plain_runner, *args, **options)

    monkeypatch.setattr(plain_runner, "run", run)
    done, text = reduced(plain_runner, tmp_path, SCRIPT)
    assert not done.is_finished and done.shown == 2
    assert len(SMALL) < len(text) < len(SCRIPT)


@pytest.mark.parametrize(
    "script",
    [
        "import sys; sys.exit(1)",
        "print('FAULT SHOWN: expected e; observed error \"E\"; torch 2'); print('more'); raise SystemExit(1)",
        "print('FAULT GONE: expected e; observed nothing; torch 2'); raise SystemExit(1)",
    ],
)
def test_a_repro_script_has_to_say_that_its_fault_shows(plain_runner: ScriptRunner, tmp_path: Path, script: str):
    with pytest.raises(CannotTestError, match="does not show its fault here"):
        reduced(plain_runner, tmp_path, script, any_script=False)


def test_a_smaller_script_that_cannot_be_written_is_told(plain_runner: ScriptRunner, tmp_path: Path):
    (tmp_path / "fault_reduced.py").mkdir()
    with pytest.raises(CannotTestError, match="cannot be written") as caught:
        reduced(plain_runner, tmp_path, SCRIPT)
    assert caught.value.detail == SMALL


@pytest.mark.parametrize(("said", "expected"), [([0, 0], 0), ([0, 1], 1), ([0, 125], 125), ([125, 1], 1)])
def test_runs_are_summed_up_as_an_exit_status(said: list[int], expected: int):
    assert status_of(said) == expected
