"""Runs a repro script in a fresh process and says whether it shows the expected fault."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path

import msgspec

from compilebisect.core.outcome import Fault
from compilebisect.repro.standby import Standby, start

_VERDICT = re.compile(r"(FAULT SHOWN|FAULT GONE|CANNOT TELL): expected (.*); observed (.*); torch (\S+)$")
_OBSERVED = re.compile(r'^(?P<kind>\w+) (?P<type>"(?:[^"\\]|\\.)*")(?: at (?P<code>"(?:[^"\\]|\\.)*"))?')
_STATUS = {"FAULT SHOWN": 1, "FAULT GONE": 0, "CANNOT TELL": 125}
_TAIL_CHARS = 4000
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
) -> list[ScriptEnd]:
    """Run a script some times, side by side, each in a process group of its own that is killed at the deadline.

    A script without arguments runs in the interpreters that stand by, as far as there are some.

    Raises:
        KeyboardInterrupt: `is_called_off` said so meanwhile.
    """
    script = script.resolve()  # it runs in its own folder
    started = time.monotonic()
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(runs):
            waiting = standby.run(script, env) if standby is not None and not args else None
            processes.append(waiting or start([python, str(script), *args], env, script.parent))
        return [_end_of(process, started, started + timeout_s, is_called_off) for process in processes]
    finally:
        for process in processes:
            _kill_group(process)  # compilers and other children of the script must not outlive it
            process.wait()


def _end_of(
    process: subprocess.Popen[str], started: float, deadline: float, is_called_off: Callable[[], bool]
) -> ScriptEnd:
    has_ended = False
    while not has_ended and time.monotonic() < deadline:
        if is_called_off():
            raise KeyboardInterrupt
        try:
            output, _ = process.communicate(timeout=_POLL_S)
            has_ended = True
        except subprocess.TimeoutExpired:
            continue
    _kill_group(process)
    if not has_ended:
        output, _ = process.communicate()
    status = process.returncode if has_ended and process.returncode >= 0 else None
    return ScriptEnd(status, output, time.monotonic() - started)


def judge(end: ScriptEnd, expected: Fault, code: str = "") -> Verification:
    """Say what a run of a script proved of a fault, whose line of code is `code` where the script has it."""
    line = end.verdict_line
    proof = Proof.NO_END if end.status is None else _proof(line, end.status, expected, code)
    return Verification(
        proof=proof, line=line, seconds=end.seconds, exit_status=end.status, tail=end.output[-_TAIL_CHARS:]
    )


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


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
