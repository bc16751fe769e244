"""One process that runs a script: guarded, of bounded output, and ended in bounded time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from compilebisect.workers.guard import guarded

#: Of the output only so much is kept, the end of it.
TAIL_BYTES = 1 << 16
# What survives SIGKILL for so long sits in a driver; it is given up.
_GIVE_UP_S = 5.0


class ScriptProcess:
    """A command with all that it starts; none of it outlives the command, `end`, or this process.

    `ended_at` is when it was over, on the monotonic clock.

    Args:
        command: the interpreter and its arguments.
        env: its environment.
        folder: where it runs; this process's own folder where None.
        takes_line: whether it is told a line later, on its standard input, which else is empty.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], folder: Path | None = None, *, takes_line: bool = False
    ) -> None:
        reader, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                guarded(command, reader),
                stdin=subprocess.PIPE if takes_line else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=folder,
                start_new_session=True,
                pass_fds=[reader],
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reader)
        self.ended_at: float | None = None
        self._tail = bytearray()
        self._is_over = threading.Event()
        threading.Thread(target=self._read, name="output of a script", daemon=True).start()

    @property
    def ending(self) -> int | None:
        """How it ended, as in `subprocess`: its exit status, or the signal as a negative number; None while it runs."""
        return self._process.returncode if self._is_over.is_set() else None

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs, and where a signal ended it."""
        return self.ending if self.ending is not None and self.ending >= 0 else None

    @property
    def output(self) -> str:
        """The end of what it printed, its errors among it."""
        return bytes(self._tail[-TAIL_BYTES:]).decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")

    def wait(self, timeout_s: float) -> bool:
        """Wait until it and all that it started are over; returns whether they are."""
        return self._is_over.wait(timeout_s)

    def tell(self, line: str) -> bool:
        """Hand over a line, the last one; returns whether it was taken."""
        if self._process.stdin is None or self._is_over.is_set():
            return False
        pipe, self._process.stdin = self._process.stdin, None
        try:
            with pipe:
                pipe.write(line.encode() + b"\n")
        except OSError:
            return False
        return True

    def end(self) -> None:
        """Kill it and all that it started; returns when they are gone, or after some seconds."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if not self._is_over.wait(_GIVE_UP_S):
            self._process.kill()
            self._is_over.wait(_GIVE_UP_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            while chunk := os.read(pipe.fileno(), TAIL_BYTES):
                self._tail += chunk
                if len(self._tail) > 2 * TAIL_BYTES:
                    del self._tail[:-TAIL_BYTES]
        self._process.wait()
        self.ended_at = time.monotonic()
        self._is_over.set()
