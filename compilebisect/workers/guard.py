"""Runs one command, and sees to it that nothing that it starts outlives it, or outlives whoever wanted it.

A process of its own, since a process that is killed can clear nothing away. It exits as the command did.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Sequence
from typing import NoReturn

from compilebisect.workers import process_control


def guarded(command: Sequence[str], lifeline: int) -> list[str]:
    """Return the command line of a guard for a command.

    Args:
        command: what to run; its standard streams are those of the guard.
        lifeline: descriptor of a pipe to read from; once nobody holds its other end, everything is killed.
    """
    return process_control.python_command(__name__, json.dumps([lifeline, list(command)]))


def main(text: str) -> NoReturn:
    """Run the command of a `guarded` command line."""
    lifeline, command = json.loads(text)
    os.set_inheritable(lifeline, False)
    process_control.adopt_orphans()
    process_control.forgo_core_dumps()
    wakes, wake = os.pipe()
    for descriptor in (wakes, wake):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    child = _start(command)
    while not _has_ended(child):
        ready, _, _ = select.select([lifeline, wakes], [], [])
        if lifeline in ready:
            break
        os.read(wakes, 4096)
    process_control.signal_group(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    process_control.kill_strays(set())  # also those that made a session of their own
    _end_like(os.waitstatus_to_exitcode(status))


def _start(command: list[str]) -> int:
    guard = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        process_control.die_with_parent(guard)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _has_ended(child: int) -> bool:
    # it stays a zombie until its group is killed, so that its number is nobody else's
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_like(status: int) -> NoReturn:
    if status < 0:
        if status not in (-signal.SIGKILL, -signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status % 256)
