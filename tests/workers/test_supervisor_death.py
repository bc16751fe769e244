from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def start_program(*arguments: str | Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Run `supervised_program.py` in a process group of its own, as a shell would."""
    program = subprocess.Popen(
        [sys.executable, HERE / "supervised_program.py", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])},
    )
    assert program.stdout is not None
    return program, [int(pid) for pid in program.stdout.readline().split()]


@pytest.mark.parametrize("how", ["group", "daemon"])
def test_nothing_survives_a_killed_supervisor(tmp_path: Path, how: str, wait_gone: Callable[[int], None]) -> None:
    program, pids = start_program(tmp_path, how)
    with program:
        assert len(pids) == 4
        program.kill()
    for pid in pids:
        wait_gone(pid)


def test_workers_end_with_their_server_even_if_the_supervisor_is_frozen(
    tmp_path: Path, wait_gone: Callable[[int], None]
) -> None:
    program, [server, *workers, grandchild] = start_program(tmp_path, "group")
    with program:
        program.send_signal(signal.SIGSTOP)
        os.kill(server, signal.SIGKILL)
        for worker in workers:
            wait_gone(worker)
        program.send_signal(signal.SIGCONT)
        program.wait(timeout=10)
    wait_gone(grandchild)


def test_server_that_is_still_importing_does_not_survive_either(
    tmp_path: Path, wait_gone: Callable[[int], None]
) -> None:
    program, [server] = start_program(tmp_path, "preload", "worker_hanging_import")
    with program:
        time.sleep(0.5)
        program.kill()
    wait_gone(server)


def test_interrupt_from_the_terminal_reaches_the_supervisor_alone_and_ends_all(
    tmp_path: Path, wait_gone: Callable[[int], None]
) -> None:
    program, pids = start_program(tmp_path, "group")
    with program:
        started = time.monotonic()
        os.killpg(program.pid, signal.SIGINT)
        output, _ = program.communicate(timeout=10)
        assert time.monotonic() - started < 8
    assert output == "interrupted\n"
    assert program.returncode == 0
    assert len(pids) == 4
    for pid in pids:
        wait_gone(pid)
