"""The worker's process: answers requests one by one until its socket closes or it retires.

It knows nothing of what it calls. A function has the form `handler(state, payload) -> bytes`; `state` is a dict
that lives as long as the worker. Setting `state["retire"] = True` makes the worker leave after the reply.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import msgspec

from compilebisect.attempt import attempt
from compilebisect.error_text import error_text, error_type, traceback_text
from compilebisect.workers import process_control, protocol
from compilebisect.workers.protocol import ErrorText, Hello, Note, Reply, Request

Handler = Callable[[dict[str, Any], bytes], bytes]


class WorkerOptions(msgspec.Struct, frozen=True):
    """The worker's end of its socket, and the file for its Python stacks at a crash or SIGUSR1."""

    descriptor: int
    crash_log: str


class _Link:
    """The socket to the supervisor. Notes may come from any thread, but not from processes forked by a handler."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def send(self, message: msgspec.Struct) -> None:
        if os.getpid() == self._owner:
            with self._lock:
                protocol.send(self._connection, message)

    def receive(self) -> Request:
        return protocol.receive_request(self._connection)


_link: _Link | None = None


def report_phase(text: str) -> None:
    """Tell the supervisor what begins now, so that a crash or a hang can be put down to it.

    Outside of a worker, and in processes that a handler forked, nothing happens.
    """
    if _link is not None:
        _link.send(Note(text=text))


def enter_process(parent: int, log: str) -> None:
    """Turn a process just forked from the server into one of its own: session, signals, output, limits.

    Args:
        parent: process id of the fork server.
        log: file that gets what the worker and its children print.
    """
    os.setsid()
    process_control.die_with_parent(parent)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    process_control.forgo_core_dumps()
    process_control.volunteer_for_memory_killer()
    null = os.open(os.devnull, os.O_RDONLY)
    # O_APPEND lets the supervisor truncate a log that grows too large
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)


def main(options_text: str) -> NoReturn:
    """Run a worker in a fresh interpreter; `options_text` is a `WorkerOptions` as JSON."""
    serve(msgspec.json.decode(options_text, type=WorkerOptions))


def serve(options: WorkerOptions) -> NoReturn:
    """Answer requests, then leave without running exit handlers: after a device error they may hang or crash."""
    global _link
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    crash_file = open(options.crash_log, "a")  # noqa: SIM115 - faulthandler writes to it until the process ends
    faulthandler.enable(crash_file)
    # the handler is C code inside the signal handler, so it works even while C code holds the interpreter lock
    faulthandler.register(signal.SIGUSR1, crash_file, all_threads=True)
    _link = _Link(Connection(options.descriptor))
    state: dict[str, Any] = {"report_phase": report_phase}
    with contextlib.suppress(*protocol.CONNECTION_ERRORS):
        _link.send(Hello(pid=os.getpid()))
        while not state.get("retire"):
            _link.send(_answer(state, _link.receive()))
    flush_output()
    os._exit(0)


def _answer(state: dict[str, Any], request: Request) -> Reply:
    started = time.monotonic()
    answered = attempt(_handled, state, request)  # this is the border: even SystemExit must become data
    error = error_data(answered.error) if answered.error is not None else None
    flush_output()
    seconds = time.monotonic() - started
    payload = answered.value if error is None else None
    return Reply(request.call, seconds, payload, error, retire=bool(state.get("retire")))


def _handled(state: dict[str, Any], request: Request) -> bytes:
    payload = resolve(request.function)(state, request.payload)
    if not isinstance(payload, bytes):
        raise TypeError(f"{request.function} returned {type(payload).__name__} instead of bytes")
    return payload


def resolve(function: str) -> Handler:
    """Import the function named `package.module:function`."""
    module, _, name = function.partition(":")
    handler: Handler = getattr(importlib.import_module(module), name)
    return handler


def error_data(exception: BaseException) -> ErrorText:
    """Turn an exception, however broken, into data."""
    return ErrorText(error_type(exception), error_text(exception), traceback_text(exception))


def flush_output() -> None:
    """Flush what Python has buffered of both output streams."""
    for stream in (sys.stdout, sys.stderr):
        # user code may have closed or replaced the stream
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
