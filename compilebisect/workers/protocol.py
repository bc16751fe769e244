"""Messages between supervisor, fork server and workers, and how they travel.

Each message is one msgpack map on a `multiprocessing` connection over a Unix socket pair. Payloads are opaque here.
A single message stays below 4 GiB, msgpack's limit; larger data belongs in a file whose path is the payload.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import TypeAlias

import msgspec

#: What reading from a peer that is gone, stuck or talking nonsense raises.
CONNECTION_ERRORS = (EOFError, OSError, msgspec.MsgspecError)


class ErrorText(msgspec.Struct, frozen=True):
    """An exception as data: qualified type name, message and formatted traceback."""

    type: str
    message: str
    traceback: str


class StartWorker(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to fork server: start a worker. The descriptor of its socket follows in a message of its own."""

    worker: int
    log: str
    crash_log: str
    fresh_interpreter: bool


class ServerReady(msgspec.Struct, frozen=True, tag=True):
    """Fork server to supervisor: the preloading is over.

    `import_errors` maps modules that cannot be imported to the reason. With more than one entry in `threads`
    forked workers may deadlock in libraries that hold locks while forking.
    """

    seconds: float
    import_errors: dict[str, ErrorText]
    threads: int


class WorkerStarted(msgspec.Struct, frozen=True, tag=True):
    """Fork server to supervisor: the worker's process exists."""

    worker: int
    pid: int


class WorkerExited(msgspec.Struct, frozen=True, tag=True):
    """Fork server to supervisor: the worker was reaped. A negative `status` is the number of a signal."""

    worker: int
    status: int


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """Fork server to supervisor: the system gave no new process; the server's log says why."""

    worker: int


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Worker to supervisor: ready for requests."""

    pid: int


class Request(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to worker: call `function`, written as `package.module:function`."""

    call: int
    function: str
    payload: bytes


class Note(msgspec.Struct, frozen=True, tag=True):
    """Worker to supervisor, in the middle of a call: the phase that begins now."""

    text: str


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Worker to supervisor: the end of a call. With `retire` the worker leaves after it."""

    call: int
    seconds: float
    payload: bytes | None = None
    error: ErrorText | None = None
    retire: bool = False


FromServer: TypeAlias = ServerReady | WorkerStarted | WorkerExited | StartFailed
FromWorker: TypeAlias = Hello | Note | Reply

_encode = msgspec.msgpack.Encoder().encode
_decode_from_server = msgspec.msgpack.Decoder(FromServer).decode
_decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
_decode_start = msgspec.msgpack.Decoder(StartWorker).decode
_decode_request = msgspec.msgpack.Decoder(Request).decode


def send(connection: Connection, message: msgspec.Struct) -> None:
    """Write one message, waiting for as long as the peer's socket buffer is full."""
    connection.send_bytes(_encode(message))


def receive_from_server(connection: Connection) -> FromServer:
    """Read one message of the fork server."""
    return _decode_from_server(connection.recv_bytes())


def receive_from_worker(connection: Connection) -> FromWorker:
    """Read one message of a worker."""
    return _decode_from_worker(connection.recv_bytes())


def receive_start(connection: Connection) -> StartWorker:
    """Read one order of the supervisor, in the fork server."""
    return _decode_start(connection.recv_bytes())


def receive_request(connection: Connection) -> Request:
    """Read one request of the supervisor, in a worker."""
    return _decode_request(connection.recv_bytes())
