"""The process that imports what is slow to import, once, and forks workers from then on.

It runs no user code, starts no threads, and lives as long as the supervisor's end of its socket is open.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn

import msgspec

from compilebisect.attempt import attempt
from compilebisect.error_text import traceback_text
from compilebisect.workers import process_control, protocol, worker
from compilebisect.workers.protocol import ServerReady, StartFailed, StartWorker, WorkerExited, WorkerStarted


class ServerOptions(msgspec.Struct, frozen=True):
    """What the supervisor puts on the server's command line, as JSON.

    `supervisor` is a process id, or 0 where its life is not tied to the thread that starts the server.
    """

    descriptor: int
    supervisor: int
    preload: list[str]


def main(options_text: str) -> NoReturn:
    """Run the server; `options_text` is a `ServerOptions` as JSON."""
    options = msgspec.json.decode(options_text, type=ServerOptions)
    # an import cannot watch the socket, so for as long as that lasts the kernel watches the supervisor
    if options.supervisor:
        process_control.die_with_parent(options.supervisor)
    faulthandler.enable()
    connection = Connection(options.descriptor)
    ready = preload(options.preload)
    process_control.outlive_parent()
    process_control.adopt_orphans()
    server = ForkServer(connection)
    try:
        protocol.send(connection, ready)
        server.run()
    except protocol.CONNECTION_ERRORS:
        pass  # the supervisor is gone
    finally:
        server.kill_workers()
        os._exit(0)


def preload(modules: Sequence[str]) -> ServerReady:
    """Import modules; those that cannot be imported become data."""
    started = time.monotonic()
    errors = {}
    for name in modules:
        imported = attempt(importlib.import_module, name)
        if imported.error is not None:  # libraries raise anything while they are imported
            errors[name] = worker.error_data(imported.error)
    worker.flush_output()  # or each worker would print it again
    # what exists now never dies: keep the collector from touching, and so copying, pages shared with workers
    gc.collect()
    gc.freeze()
    return ServerReady(time.monotonic() - started, errors, _count_threads())


def _count_threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 1


class ForkServer:
    """Forks a worker for each order and reports each worker's end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._worker_by_pid: dict[int, int] = {}
        self._wake_reader, self._wake_writer = os.pipe()
        for descriptor in (self._wake_reader, self._wake_writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def run(self) -> None:
        """Serve until the supervisor's end of the socket closes, which raises one of `CONNECTION_ERRORS`."""
        while True:
            ready = wait([self._connection, self._wake_reader])
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
                self._reap()
            if self._connection in ready:
                order = protocol.receive_start(self._connection)
                _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
                self._start(order, descriptors[0])

    def _start(self, order: StartWorker, descriptor: int) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            print(traceback_text(error), file=sys.stderr)
            os.close(descriptor)
            protocol.send(self._connection, StartFailed(order.worker))
            return
        if pid == 0:
            try:
                self._become_worker(order, descriptor, server)
            except BaseException as error:  # noqa: BLE001 - the copy of the server's loop on this stack must not run
                print(traceback_text(error), file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        os.close(descriptor)
        self._worker_by_pid[pid] = order.worker
        protocol.send(self._connection, WorkerStarted(order.worker, pid))

    def _become_worker(self, order: StartWorker, descriptor: int, server: int) -> NoReturn:
        signal.set_wakeup_fd(-1)
        self._socket.close()
        for own in (self._connection.fileno(), self._wake_reader, self._wake_writer):
            os.close(own)
        worker.enter_process(server, order.log)
        options = worker.WorkerOptions(descriptor, order.crash_log)
        if order.fresh_interpreter:
            os.set_inheritable(descriptor, True)
            command = process_control.python_command(worker.__name__, msgspec.json.encode(options).decode())
            os.execv(command[0], command)
        worker.serve(options)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._worker_by_pid.pop(pid, None)
            if number is not None:
                process_control.signal_group(pid, signal.SIGKILL)  # compilers that the worker left behind
                process_control.kill_strays(set(self._worker_by_pid))
                protocol.send(self._connection, WorkerExited(number, os.waitstatus_to_exitcode(status)))

    def kill_workers(self) -> None:
        """Kill all workers and all that they started."""
        for pid in self._worker_by_pid:
            process_control.signal_group(pid, signal.SIGKILL)
        for pid in self._worker_by_pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        process_control.kill_strays(set())
