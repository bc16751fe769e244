"""The standard streams of the process, so guarded that one that is closed or full ends nothing by itself.

A write to a full disk or to a reader that has gone raises from within whatever library prints, and at the process's end
makes Python exit with 120. Here it is kept instead, and who wants to know asks `new_failure_of`.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STANDARD = ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_WRONLY), (2, "stderr", os.O_WRONLY))


class _Guarded(io.FileIO):
    """The raw end of an output stream; after the first failure it takes everything and writes nothing."""

    failure: OSError | None = None
    is_told = False

    def write(self, data: ReadableBuffer, /) -> int:
        while self.failure is None:
            try:
                written = super().write(data)
            except OSError as error:
                self.failure = error
                break
            if written is not None:
                return written
            select.select([], [self.fileno()], [])  # somebody else made the pipe non-blocking
        return memoryview(data).nbytes


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Guard the process's own streams meanwhile; streams that somebody put in their place are left alone."""
    closed = _open_what_is_closed()
    saved = {name: getattr(sys, name) for _, name, _ in _STANDARD}
    for number, name, _ in _STANDARD[1:]:
        if saved[name] is getattr(sys, f"__{name}__"):
            setattr(sys, name, _guarded(number, saved[name], is_closed=number in closed))
    try:
        yield
    finally:
        for _, name, _ in _STANDARD[1:]:
            stream = getattr(sys, name)
            if stream is not saved[name]:
                stream.flush()
                if saved[name] is not None:  # else what is printed by anybody later has nowhere to go, as before
                    setattr(sys, name, saved[name])


def new_failure_of(stream: TextIO | None) -> OSError | None:
    """Return, once, why not everything that was printed went out; None where all did, as far as that is known."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if not isinstance(raw, _Guarded) or raw.is_told:
        return None
    raw.is_told = raw.failure is not None
    return raw.failure


def _open_what_is_closed() -> set[int]:
    """Open the null device in place of closed standard streams, or the next file to be opened would take their number.

    Returns:
        The numbers of those that were closed.
    """
    closed = set()
    for number, _, mode in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            closed.add(number)
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
    return closed


def _guarded(number: int, stream: TextIO | None, *, is_closed: bool) -> TextIO:
    raw = _Guarded(number, "wb", closefd=False)
    if is_closed:
        raw.failure = OSError(errno.EBADF, "it is closed")
    if stream is not None:
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors=getattr(stream, "errors", None) or "backslashreplace",
        line_buffering=getattr(stream, "line_buffering", False) or number == 2,
    )
