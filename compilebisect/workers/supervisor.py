"""Starts the fork server and its workers, sends them calls, and says how each call ended, whatever happens to them.

One thread uses a supervisor. No call is ever lost: each ends in an `Outcome`, at its deadline at the latest.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType

import msgspec

from compilebisect.workers import fork_server, process_control, protocol
from compilebisect.workers.call_outcome import Outcome
from compilebisect.workers.journal import Journal
from compilebisect.workers.protocol import ServerReady, StartWorker, WorkerExited, WorkerStarted
from compilebisect.workers.remote_worker import Worker

#: How often the size of logs is looked at.
_LONGEST_WAIT_S = 0.25
#: The longest that the server may take to kill its workers and leave.
_SERVER_END_S = 2.0
#: A peer that takes or gives no byte for so long in the middle of a message is stuck.
_STALL_S = 10


class Supervisor:
    """The fork server and its workers; a context manager that leaves no process behind.

    Args:
        env: the whole environment of the server and its workers, as for `subprocess`.
        scratch: existing folder for logs and crash records.
        preload: modules that the server imports before it forks.
        journal: file that records each call before it begins.
        start_timeout_s: the longest that a worker may take until it answers, the server's imports included.
        on_wait: called again and again while something is waited for; what it raises ends the wait.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        scratch: Path,
        preload: Sequence[str] = (),
        *,
        journal: Path | None = None,
        start_timeout_s: float = 300.0,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self.start_timeout_s = start_timeout_s
        self.on_wait = on_wait
        self.journal = Journal(journal)
        self.server_log = scratch / "server.log"
        self._env = dict(env)
        self._scratch = scratch
        self._preload = list(preload)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._ready: ServerReady | None = None
        self._workers: dict[int, Worker] = {}
        self._numbers = itertools.count(1)
        self._calls = itertools.count(1)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def server_pid(self) -> int | None:
        """Process id of the fork server while it runs."""
        return None if self._process is None else self._process.pid

    def next_call(self) -> int:
        """Number the next call."""
        return next(self._calls)

    def start(self) -> None:
        """Start the fork server if it does not run; returns while it is still importing."""
        if self._connection is not None:
            return
        ours, theirs = socket.socketpair()
        options = fork_server.ServerOptions(
            descriptor=theirs.fileno(),
            # the kernel watches the thread that starts a process, and only the main one lives long enough
            supervisor=os.getpid() if threading.current_thread() is threading.main_thread() else 0,
            preload=self._preload,
        )
        with theirs, open(self.server_log, "ab") as log:
            self._connection = _connection_from_socket(ours)
            self._process = subprocess.Popen(
                process_control.python_command(fork_server.__name__, msgspec.json.encode(options).decode()),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float) -> ServerReady | None:
        """Wait for the end of the server's imports; None if they last longer or the server died of them."""
        self.start()
        until = time.monotonic() + timeout_s
        while self._ready is None and self._connection is not None and time.monotonic() < until:
            self.pump(until)
        return self._ready

    def start_worker(self, *, fresh_interpreter: bool = False) -> Worker:
        """Start a worker, and the server again if it is gone; returns at once, and calls wait for the start.

        Args:
            fresh_interpreter: run a new Python instead of a fork of the server, for libraries that cannot be forked.
        """
        if self._connection is not None:
            self.pump(0.0)  # notice that the server is gone
        self.start()
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        worker = self._workers[number] = Worker(self, number, _connection_from_socket(ours), self._scratch)
        with theirs:
            try:
                if self._connection is not None:
                    order = StartWorker(number, str(worker.log), str(worker.crash_log), fresh_interpreter)
                    protocol.send(self._connection, order)
                    with socket.socket(fileno=os.dup(self._connection.fileno())) as link:
                        socket.send_fds(link, [b"f"], [theirs.fileno()])
            except OSError:
                self._lose_server()
        return worker

    def wait_any(self, workers: Iterable[Worker], timeout_s: float | None = None) -> list[tuple[Worker, Outcome]]:
        """Wait until at least one call of these workers has ended.

        Args:
            workers: workers of this supervisor.
            timeout_s: the longest wait; None waits for the calls' own deadlines.

        Returns:
            Workers and their outcomes; empty when the time was up or none of them is busy.
        """
        workers = list(workers)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        is_last = False
        while True:
            ended = [(worker, outcome) for worker in workers if (outcome := worker.take_outcome()) is not None]
            if ended or is_last or not any(worker.is_busy for worker in workers):
                return ended
            is_last = until is not None and time.monotonic() >= until
            self.pump(until)

    def pump(self, until: float | None) -> None:
        """Wait for the next message or deadline, at most until then, and act on it."""
        self.on_wait()
        workers = {worker.connection: worker for worker in self._workers.values() if worker.connection is not None}
        dues = [due for worker in self._workers.values() if (due := worker.due()) is not None]
        now = time.monotonic()
        latest = min([now + _LONGEST_WAIT_S, *dues, *([] if until is None else [until])])
        server = [] if self._connection is None else [self._connection]
        ready = wait([*workers, *server], max(0.0, latest - now))
        for connection, worker in workers.items():
            if connection in ready:
                worker.receive()
        if self._connection is not None and self._connection in ready:
            self._receive(self._connection)
        for worker in list(self._workers.values()):
            worker.act(time.monotonic())
            if worker.is_gone:
                del self._workers[worker.number]

    def _receive(self, connection: Connection) -> None:
        try:
            message = protocol.receive_from_server(connection)
        except protocol.CONNECTION_ERRORS:
            self._lose_server()
            return
        if isinstance(message, ServerReady):
            self._ready = message
            return
        worker = self._workers.get(message.worker)
        if worker is None:
            return
        if isinstance(message, WorkerStarted):
            worker.pid = message.pid
        elif isinstance(message, WorkerExited):
            worker.ended(message.status)
        else:
            worker.ended(None, with_server=True)

    def _lose_server(self) -> None:
        """Clean up after a server that died; its workers died with it, but not what they started."""
        self._end_server(0.0)
        for worker in self._workers.values():
            worker.kill()
            worker.ended(None, with_server=True)
        self._workers.clear()

    def _end_server(self, patience_s: float) -> None:
        if self._connection is not None:
            self._connection.close()  # upon which the server kills its workers and leaves
            self._connection = None
        self._ready = None
        if self._process is not None:
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        """End all workers, what they started, and the server, at once; calls on their way are given up."""
        for worker in self._workers.values():
            worker.kill()
        # while it imports it cannot see that its socket closed, and has no workers yet
        self._end_server(_SERVER_END_S if self._ready is not None else 0.0)
        for worker in self._workers.values():
            worker.ended(None, with_server=True)
        self._workers.clear()
        self.journal.close()


def _connection_from_socket(ours: socket.socket) -> Connection:
    stall = struct.pack("ll", _STALL_S, 0)  # struct timeval
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stall)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, stall)
    return Connection(ours.detach())
