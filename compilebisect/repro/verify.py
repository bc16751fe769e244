"""Runs a repro script in a fresh process and says whether it shows the expected fault."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path

import msgspec

from compilebisect.core.outcome import Fault
from compilebisect.repro.script_process import ScriptProcess
from compilebisect.repro.standby import Standby

_VERDICT = re.compile(r"(FAULT SHOWN|FAULT GONE|CANNOT TELL): expected (.*); observed (.*); torch (\S+)$")
_OBSERVED = re.compile(r'^(?P<kind>\w+) (?P<type>"(?:[^"\\]|\\.)*")(?: at (?P<code>"(?:[^"\\]|\\.)*"))?')
_STATUS = {"FAULT SHOWN": 1, "FAULT GONE": 0, "CANNOT TELL": 125}
_TAIL_CHARS = 4000
# What `python SCRIPT` would do, but for the status with which an exception ends it that nobody handles.
_RUN_ANY = """
import os, runpy, sys

def unhandled(*error):
    sys.__excepthook__(*error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(125)

sys.excepthook = unhandled
sys.argv = sys.argv[1:]
if sys.path[:1] == [""]:
    sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# How often a run looks whether it was called off.
_POLL_S = 0.2


class Proof(str, Enum):
    """What one run of a script proved."""

    SHOWN = "shown"
    GONE = "gone"
    OTHER_FAILURE = "another failure"
    CANNOT_TELL = "cannot tell"
    NO_END = "no end"


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a script: what it proved, its verdict line, seconds, and the end of its output."""

    proof: Proof
    line: str = ""
    seconds: float = 0.0
    exit_status: int | None = None
    tail: str = ""


class ScriptEnd(msgspec.Struct, frozen=True):
    """How a script ended: its exit status (None: killed at the deadline, or by a signal) and what it printed."""

    status: int | None
    output: str
    seconds: float

    @property
    def verdict_line(self) -> str:
        """The line with which our scripts say what they saw; empty where there is none."""
        found = (_VERDICT.search(text) for text in reversed(self.output.splitlines()))  # a model may print before it
        return next((match[0] for match in found if match), "")

    @property
    def last_line(self) -> str:
        """The last line that is not empty."""
        lines = self.output.rstrip().rsplit("\n", 1)
        return lines[-1].strip()

    def said(self, *, any_script: bool) -> int:
        """Return what it says of its fault: 1 it shows, 0 it does not, 125 this cannot be told.

        Args:
            any_script: believe the exit status alone; else a verdict in the last line has to say the same.
        """
        match = _VERDICT.search(self.last_line)
        is_said = any_script or (match is not None and _STATUS[match[1]] == self.status)
        return self.status if is_said and self.status in (0, 1) else 125


def run_fresh(
    script: Path,
    *,
    env: Mapping[str, str],
    python: str,
    timeout_s: float,
    args: Sequence[str] = (),
    runs: int = 1,
    is_called_off: Callable[[], bool] = lambda: False,
    standby: Standby | None = None,
    any_script: bool = False,
) -> list[ScriptEnd]:
    """Run a script some times, side by side, each with all that it starts killed at its end, or at the deadline.

    A script without arguments runs in the interpreters that stand by, as far as there are some. With `any_script` an
    exception that it does not handle ends it with 125, by which it can be told from an exit with 1.

    Raises:
        KeyboardInterrupt: `is_called_off` said so meanwhile.
    """
    script = script.resolve()  # it runs in its own folder
    started = time.monotonic()
    processes: list[ScriptProcess] = []
    command = [python, *(["-c", _RUN_ANY] if any_script else []), str(script), *args]
    try:
        for _ in range(runs):
            waiting = standby.run(script, env) if standby is not None and not args else None
            processes.append(waiting or ScriptProcess(command, env, script.parent))
        for process in processes:
            while (left_s := started + timeout_s - time.monotonic()) > 0 and not process.wait(min(left_s, _POLL_S)):
                if is_called_off():
                    raise KeyboardInterrupt
    finally:
        for process in processes:
            process.end()
    now = time.monotonic()
    return [ScriptEnd(process.status, process.output, (process.ended_at or now) - started) for process in processes]


def judge(end: ScriptEnd, expected: Fault, code: str = "") -> Verification:
    """Say what a run of a script proved of a fault, whose line of code is `code` where the script has it."""
    line = end.verdict_line
    proof = Proof.NO_END if end.status is None else _proof(line, end.status, expected, code)
    return Verification(
        proof=proof, line=line, seconds=end.seconds, exit_status=end.status, tail=end.output[-_TAIL_CHARS:]
    )


def _proof(line: str, status: int, expected: Fault, code: str) -> Proof:
    match = _VERDICT.match(line)
    if match is None or _STATUS[match[1]] != status:
        return Proof.CANNOT_TELL
    if status == 0:
        return Proof.GONE
    if status == 125:
        return Proof.OTHER_FAILURE if match[3].startswith("another failure") else Proof.CANNOT_TELL
    seen = _OBSERVED.match(match[3])
    if seen is None:
        return Proof.CANNOT_TELL
    is_same_kind = seen["kind"] == expected.kind.value
    # The type of a timeout is the deadline that was in force, which a script shortens.
    is_same_type = json.loads(seen["type"]) == expected.type or expected.kind.value == "timeout"
    is_same_place = not code or _squeezed(json.loads(seen["code"] or '""')) == _squeezed(code)
    return Proof.SHOWN if is_same_kind and is_same_type and is_same_place else Proof.OTHER_FAILURE


def identity(line: str) -> tuple[str, str, str] | None:
    """Return kind, type and line of code of the fault that a verdict line tells of; None where it tells of none."""
    match = _VERDICT.match(line)
    seen = _OBSERVED.match(match[3]) if match and match[1] == "FAULT SHOWN" else None
    if seen is None:
        return None
    type_name = "" if seen["kind"] == "timeout" else json.loads(seen["type"])
    return seen["kind"], type_name, json.loads(seen["code"] or '""')


def _squeezed(text: str) -> str:
    return " ".join(text.split())
