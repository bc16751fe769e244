"""Processes that run scripts: nothing of them is left, nothing of them is waited for, little of them is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compilebisect.core.outcome import Fault, Kind
from compilebisect.repro.script_process import TAIL_BYTES
from compilebisect.repro.verify import Proof, ScriptEnd, judge, run_fresh

LEAVES_CHILDREN = """
import os, subprocess, sys, time
pids = []
for how in ("group", "session", "daemon"):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    if how == "daemon":
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            child = subprocess.Popen(command)
            os.write(writer, str(child.pid).encode())
            os._exit(0)
        pids.append(int(os.read(reader, 99)))
    else:
        pids.append(subprocess.Popen(command, start_new_session=how == "session").pid)
open("pids", "w").write(" ".join(map(str, pids + [os.getpid()])))
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def left_over(folder: Path) -> list[int]:
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    assert len(pids) == 4
    until = time.monotonic() + 20
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return [pid for pid in pids if is_running(pid)]


def written(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return path


def fresh(script: Path, timeout_s: float = 60, **options: object) -> ScriptEnd:
    (end,) = run_fresh(script, env=dict(os.environ), python=sys.executable, timeout_s=timeout_s, **options)  # type: ignore[arg-type]
    return end


def test_children_that_hold_the_output_open_are_neither_waited_for_nor_left(tmp_path: Path) -> None:
    end = fresh(written(tmp_path, LEAVES_CHILDREN + "print('done', flush=True); os._exit(7)"))
    assert (end.status, end.last_line) == (7, "done")
    assert not left_over(tmp_path)


def test_at_the_deadline_the_script_and_its_children_are_killed(tmp_path: Path) -> None:
    end = fresh(written(tmp_path, LEAVES_CHILDREN + "print('on', flush=True); time.sleep(600)"), timeout_s=5)
    assert end.status is None and end.last_line == "on"
    assert judge(end, Fault(kind=Kind.ERROR, type="E")).proof is Proof.NO_END
    assert not left_over(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_tool_that_is_killed_leaves_no_script_behind(tmp_path: Path, number: int) -> None:
    script = written(tmp_path, LEAVES_CHILDREN + "time.sleep(600)")
    code = (
        "import os, sys; from pathlib import Path; from compilebisect.repro.verify import run_fresh;"
        f"run_fresh(Path({str(script)!r}), env=dict(os.environ), python=sys.executable, timeout_s=600, runs=1)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as tool:
        while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
            time.sleep(0.05)
        tool.send_signal(number)
        tool.wait(20)
    assert not left_over(tmp_path)


def test_of_endless_output_the_end_is_kept(tmp_path: Path) -> None:
    text = "import sys\nfor _ in range(200): sys.stdout.write('x' * 1_000_000)\nprint('\\nthe end')\n"
    end = fresh(written(tmp_path, text))
    assert end.status == 0 and end.last_line == "the end"
    assert len(end.output) <= TAIL_BYTES


def test_no_run_waits_for_the_output_of_another(tmp_path: Path) -> None:
    script = written(tmp_path, "print('x' * 3_000_000); print('end')")
    ends = run_fresh(script, env=dict(os.environ), python=sys.executable, timeout_s=60, runs=3)
    assert [(end.status, end.last_line) for end in ends] == [(0, "end")] * 3


def test_a_signal_is_no_exit_status(tmp_path: Path) -> None:
    end = fresh(written(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert end.status is None and not list(tmp_path.glob("core*"))


def test_an_interpreter_that_is_not_there_is_said(tmp_path: Path) -> None:
    script = written(tmp_path, "")
    (end,) = run_fresh(script, env=dict(os.environ), python=str(tmp_path / "python"), timeout_s=30)
    assert end.status == 127 and "cannot be started" in end.output


SHOWN = 'FAULT SHOWN: expected e; observed error "E"; torch 2'
GONE = "FAULT GONE: expected e; observed nothing; torch 2"


@pytest.mark.parametrize(
    ("status", "output", "said", "of_any_script"),
    [
        (1, f"{SHOWN}\n", 1, 1),
        (1, f"step {SHOWN}\n\n", 1, 1),
        (0, f"{GONE}\n", 0, 0),
        (1, "Traceback\nValueError: x\n", 125, 1),
        (1, f"{SHOWN}\nTraceback\nValueError: x\n", 125, 1),
        (1, f"{GONE}\n", 125, 1),
        (0, f"{SHOWN}\n", 125, 0),
        (0, "", 125, 0),
        (125, f"{SHOWN}\n", 125, 125),
        (3, f"{SHOWN}\n", 125, 125),
        (None, f"{SHOWN}\n", 125, 125),
    ],
)
def test_the_fault_shows_where_the_script_says_so_last(
    status: int | None, output: str, said: int, of_any_script: int
) -> None:
    end = ScriptEnd(status, output, 0.0)
    assert end.said(any_script=False) == said
    assert end.said(any_script=True) == of_any_script


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("import sys\nsys.exit(1)", 1),
        ("import sys\nsys.exit(0)", 0),
        ("", 0),
        ("1 / 0", 125),
        ("this is no python", 125),
        ("x = '\x00'", 125),
        ("raise KeyboardInterrupt", 125),
        ("import sys\nsys.exit(sys.argv[1:] != ['--device', 'cpu'] or __name__ != '__main__')", 0),
    ],
)
def test_of_any_script_an_exception_is_no_fault(tmp_path: Path, text: str, status: int) -> None:
    end = fresh(written(tmp_path, text), args=("--device", "cpu"), any_script=True)
    assert end.status == status, end.output
