"""Functions that workers call in the tests of this folder."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from compilebisect.workers.worker import report_phase


def echo(state: dict[str, Any], payload: bytes) -> bytes:
    return payload


def sleep(state: dict[str, Any], payload: bytes) -> bytes:
    time.sleep(float(payload))
    return payload


def count(state: dict[str, Any], payload: bytes) -> bytes:
    state["count"] = state.get("count", 0) + 1
    return str(state["count"]).encode()


def describe_process(state: dict[str, Any], payload: bytes) -> bytes:
    facts = [os.getpid(), os.getppid(), os.getsid(0), os.readlink("/proc/self/fd/0"), os.getcwd(), sys.path]
    return repr((*facts, dict(os.environ))).encode()


def count_descriptors(state: dict[str, Any], payload: bytes) -> bytes:
    return str(len(os.listdir("/proc/self/fd"))).encode()


def segfault(state: dict[str, Any], payload: bytes) -> bytes:
    print("about to crash")
    report_phase("dynamo")
    state["report_phase"]("running")
    ctypes.string_at(0)
    return b""


def abort(state: dict[str, Any], payload: bytes) -> bytes:
    os.abort()


def leave(state: dict[str, Any], payload: bytes) -> bytes:
    sys.exit("enough")


def leave_at_once(state: dict[str, Any], payload: bytes) -> bytes:
    os._exit(3)


def kill_itself(state: dict[str, Any], payload: bytes) -> bytes:
    os.kill(os.getpid(), 9)
    time.sleep(10)
    return b""


def die_later(state: dict[str, Any], payload: bytes) -> bytes:
    threading.Timer(float(payload), os._exit, (4,)).start()
    return b""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def fail(state: dict[str, Any], payload: bytes) -> bytes:
    raise ValueError("wrong \udc80")


def fail_unprintably(state: dict[str, Any], payload: bytes) -> bytes:
    raise Unprintable


def give_text(state: dict[str, Any], payload: bytes) -> Any:
    return "text"


def retire(state: dict[str, Any], payload: bytes) -> bytes:
    state["retire"] = True
    return payload


def hang(state: dict[str, Any], payload: bytes) -> bytes:
    report_phase("backend")
    while True:
        time.sleep(0.01)


def hang_in_c(state: dict[str, Any], payload: bytes) -> bytes:
    """`PyDLL` keeps the interpreter lock, so no Python code runs any more."""
    while True:
        ctypes.PyDLL(None).pause()


def hang_deafly(state: dict[str, Any], payload: bytes) -> bytes:
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return hang_in_c(state, payload)


def start_child(state: dict[str, Any], payload: bytes) -> bytes:
    """Start a process that outlives this one; payload: how, and a file for its pid."""
    how, path = payload.decode().split(":", 1)
    command = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(100)"]
    child = subprocess.Popen(command, start_new_session=how == "daemon")
    Path(path).write_text(str(child.pid))
    if how == "crash":
        ctypes.string_at(0)
    return hang(state, b"")


def print_much(state: dict[str, Any], payload: bytes) -> bytes:
    for number in range(int(payload)):
        print("x" * 1000, number)
    return b""


def print_forever(state: dict[str, Any], payload: bytes) -> bytes:
    for number in itertools.count():
        print("y" * 1000, number)
    return b""


def note_much(state: dict[str, Any], payload: bytes) -> bytes:
    for number in range(int(payload)):
        report_phase(str(number))
    return b""


def note_from_fork(state: dict[str, Any], payload: bytes) -> bytes:
    pid = os.fork()
    if pid == 0:
        report_phase("from a fork")
        os._exit(0)
    os.waitpid(pid, 0)
    return b"done"


def break_socket(state: dict[str, Any], payload: bytes) -> bytes:
    os.closerange(3, 256)
    time.sleep(100)
    return b""


def write_rubbish(state: dict[str, Any], payload: bytes) -> bytes:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\x00\x00\x00\x02\xc1\xc1")
        except OSError:
            continue
    time.sleep(100)
    return b""


def stop_itself(state: dict[str, Any], payload: bytes) -> bytes:
    os.kill(os.getpid(), 19)
    return b""
