"""One worker as the supervisor sees it: its call, its deadline, and how it is brought to an end."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import msgspec

from compilebisect.workers import process_control, protocol
from compilebisect.workers.call_outcome import Died, Failed, Outcome, Replied, TimedOut, signal_name
from compilebisect.workers.journal import Entry, Journal
from compilebisect.workers.protocol import Hello, Note, Reply, Request

_STACK_DUMP_S = 0.5
_TERMINATION_S = 1.0
#: A process that survives SIGKILL this long sits in a driver; it is given up.
_GIVE_UP_S = 5.0
#: A worker whose socket closed is about to end; after this long it is made to.
_LINK_LOST_S = 2.0
#: More than a socket's buffer holds, so that a reply is never left unread behind notes while its deadline passes.
_MOST_MESSAGES = 1000
_TAIL_BYTES = 4096
_LARGEST_STACK_BYTES = 1 << 18
_LARGEST_LOG_BYTES = 16 << 20


class Owner(Protocol):
    """What a worker needs of its supervisor."""

    journal: Journal
    server_log: Path
    start_timeout_s: float

    def next_call(self) -> int:
        """Number the next call."""

    def pump(self, until: float | None) -> None:
        """Wait for the next message or deadline, at most until then, and act on it."""

    def wait_any(self, workers: Iterable[Worker], timeout_s: float | None = None) -> list[tuple[Worker, Outcome]]:
        """Wait until at least one call of these workers has ended."""


class _Call(msgspec.Struct):
    """A call on its way. `began` is None until the worker is up and has got the request."""

    request: Request
    label: str
    timeout_s: float
    on_note: Callable[[str], None] | None
    memory_kills: int | None
    began: float | None = None
    phase: str = ""


class Worker:
    """One worker's process, seen from the supervisor; made by `Supervisor.start_worker`."""

    def __init__(self, owner: Owner, number: int, connection: Connection, scratch: Path) -> None:
        self.number = number
        self.pid: int | None = None
        self.log = scratch / f"worker-{number}.log"
        self.crash_log = scratch / f"worker-{number}.crash"
        self.connection: Connection | None = connection
        self._owner = owner
        self._start_deadline = time.monotonic() + owner.start_timeout_s
        self._is_up = False
        self._call: _Call | None = None
        self._outcome: Outcome | None = None
        self._end: Died | None = None  # how the process ended
        self._timed_out = False
        self._killed = False
        self._plan: list[tuple[float, int]] = []  # times and signals, 0 for giving up
        self._log_start = 0
        self._earlier_output = ""  # of the present call, from a log that was emptied
        self._crash_start = 0

    @property
    def is_alive(self) -> bool:
        """Whether the worker can take a call."""
        return self._end is None and not self._plan

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self._end is not None

    @property
    def is_busy(self) -> bool:
        """Whether a call is on its way and its outcome is not known yet."""
        return self._call is not None

    def send(
        self,
        function: str,
        payload: bytes,
        *,
        timeout_s: float,
        label: str = "",
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        """Begin a call; `Supervisor.wait_any` gives its outcome.

        Args:
            function: `package.module:function`, of the form `handler(state, payload) -> bytes`.
            payload: what it gets.
            timeout_s: seconds from the moment when the worker has the request; its start is not counted.
            label: what the journal calls it.
            on_note: gets each note that the function reports, while somebody waits.

        Raises:
            RuntimeError: the worker is busy, or an earlier outcome was not taken.
        """
        if self._call is not None or self._outcome is not None:
            raise RuntimeError(f"worker {self.number} has a call already")
        request = Request(self._owner.next_call(), function, payload)
        self._call = _Call(request, label, timeout_s, on_note, process_control.memory_kills())
        self._owner.journal.write(Entry(request.call, label, "started"))
        if self._end is not None:
            self._finish(self._end)  # it died idle
        elif self._is_up:
            self._deliver()

    def call(
        self,
        function: str,
        payload: bytes,
        timeout_s: float,
        *,
        label: str = "",
        on_note: Callable[[str], None] | None = None,
    ) -> Outcome:
        """Send one call and wait for its outcome; see `send`."""
        self.send(function, payload, timeout_s=timeout_s, label=label, on_note=on_note)
        [(_, outcome)] = self._owner.wait_any([self])
        return outcome

    def stop(self) -> None:
        """End the worker, politely where it is idle; returns when it is gone."""
        if self._call is not None:
            self.kill()
        elif not self._plan:
            self.lose_link()
        while not self.is_gone:
            self._owner.pump(None)

    def kill(self) -> None:
        """Kill the worker's process group now."""
        self._killed = True
        if self.pid is not None and self._end is None:
            process_control.signal_group(self.pid, signal.SIGKILL)
        self._plan = [(time.monotonic() + _GIVE_UP_S, 0)]

    def take_outcome(self) -> Outcome | None:
        """Hand over the outcome of the last call, once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def receive(self) -> None:
        """Act on all messages that have arrived."""
        for _ in range(_MOST_MESSAGES):
            if self.connection is None or not _has_input(self.connection):
                return
            self._receive_one(self.connection)

    def _receive_one(self, connection: Connection) -> None:
        try:
            message = protocol.receive_from_worker(connection)
        except protocol.CONNECTION_ERRORS:
            self.lose_link()
            return
        call = self._call
        if isinstance(message, Hello):
            self.pid, self._is_up = message.pid, True
            if call is not None:
                self._deliver()
        elif call is None or self._timed_out:
            return
        elif isinstance(message, Note):
            call.phase = message.text
            if call.on_note is not None:
                call.on_note(message.text)
        elif message.call == call.request.call:
            self._finish(_outcome_from_reply(message))
            if message.retire:
                self.lose_link()

    def _deliver(self) -> None:
        if self._call is None or self.connection is None:
            return
        try:
            protocol.send(self.connection, self._call.request)
        except OSError:
            self.lose_link()  # it died idle, or does not listen
        else:
            self._call.began = time.monotonic()

    def lose_link(self) -> None:
        """Close the socket, upon which an idle worker leaves; one that does not is killed a little later."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
            now = time.monotonic()
            self._plan = self._plan or [(now + _LINK_LOST_S, signal.SIGKILL), (now + _LINK_LOST_S + _GIVE_UP_S, 0)]

    def due(self) -> float | None:
        """Tell when `act` has something to do, on the monotonic clock."""
        if self._plan:
            return self._plan[0][0]
        if not self._is_up:
            return self._start_deadline
        if self._call is not None and self._call.began is not None:
            return self._call.began + self._call.timeout_s
        return None

    def act(self, now: float) -> None:
        """Do what is due: begin to end a worker whose deadline passed, or take the next step of that."""
        if self._call is not None and _size(self.log) > _LARGEST_LOG_BYTES:
            self._earlier_output = _tail(self.log, self._log_start)
            os.truncate(self.log, 0)
            self._log_start = 0
        due = self.due()
        if due is None or now < due or self._end is not None:
            return
        if not self._plan:
            self._timed_out = True
            times = itertools.accumulate((now, _STACK_DUMP_S, _TERMINATION_S, _GIVE_UP_S))
            self._plan = list(zip(times, (signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL, 0), strict=True))
        _, number = self._plan.pop(0)
        if number == 0 or self.pid is None:
            self.ended(None)
        elif number == signal.SIGUSR1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        else:
            self._killed = True
            process_control.signal_group(self.pid, number)

    def ended(self, status: int | None, *, with_server: bool = False) -> None:
        """Record that the process is gone: `status` as in `subprocess`, None where nobody knows."""
        if self._end is not None:
            return
        self.receive()  # what it said before it died
        self.lose_link()
        self._plan = []
        call = self._call
        began = None if call is None else call.began
        self._end = Died(
            signal=signal_name(-status) if status is not None and status < 0 else None,
            exit_code=status if status is not None and status >= 0 else None,
            phase="" if call is None else call.phase,
            stack=_tail(self.crash_log, self._crash_start, limit=_LARGEST_STACK_BYTES),
            output=self._read_output(),
            seconds=0.0 if began is None else time.monotonic() - began,
            is_blameless=with_server or began is None,
            killed_by_supervisor=self._killed,
            memory_kills=None if call is None else _difference(process_control.memory_kills(), call.memory_kills),
        )
        if self._timed_out:
            fields = ("phase", "stack", "output", "seconds", "is_blameless")
            self._finish(TimedOut(**{field: getattr(self._end, field) for field in fields}))
        else:
            self._finish(self._end)

    def _read_output(self) -> str:
        log = self._owner.server_log if self.pid is None else self.log
        return (self._earlier_output + _tail(log, self._log_start))[-_TAIL_BYTES:]

    def _finish(self, outcome: Outcome) -> None:
        if self._call is not None:
            call, self._call, self._outcome = self._call, None, outcome
            self._log_start, self._earlier_output = _size(self.log), ""
            self._crash_start = _size(self.crash_log)
            self._owner.journal.write(Entry(call.request.call, call.label, "finished", type(outcome).__name__))


def _outcome_from_reply(reply: Reply) -> Outcome:
    if reply.error is not None:
        error = reply.error
        return Failed(
            type=error.type,
            message=error.message,
            traceback=error.traceback,
            seconds=reply.seconds,
            retired=reply.retire,
        )
    return Replied(payload=reply.payload or b"", seconds=reply.seconds, retired=reply.retire)


def _has_input(connection: Connection) -> bool:
    try:
        return connection.poll(0)
    except OSError:
        return False


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _tail(path: Path, start: int, *, limit: int = _TAIL_BYTES) -> str:
    size = _size(path)
    if size <= start:
        return ""
    with open(path, "rb") as file:
        file.seek(max(start, size - limit))
        return file.read().decode(errors="replace")
