"""Signals that ask a run to end: Ctrl-C, SIGTERM at a CI job's time limit, SIGHUP of a dropped connection.

A run does not let them break in anywhere: they are noted, and it looks for them where it waits. So what it knows is
whole at all times, and no number of them keeps it from writing its report.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_like_an_interrupt() -> None:
    """Let all of them raise `KeyboardInterrupt`, as Ctrl-C does, but for those that are ignored, as under `nohup`."""
    for number in ENDING_SIGNALS:
        _set(number, signal.default_int_handler)


class Interrupts:
    """The signals that came since the run began."""

    def __init__(self) -> None:
        self.count = 0
        self._is_told = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Count a signal; this is its handler."""
        self.count += 1

    def check(self) -> None:
        """Tell of the first signal.

        Raises:
            KeyboardInterrupt: once, whatever the number of signals.
        """
        if self.count and not self._is_told:
            self._is_told = True
            raise KeyboardInterrupt

    @property
    def is_impatient(self) -> bool:
        """Whether a further signal came after the first."""
        return self.count > 1


@contextmanager
def noted_interrupts() -> Iterator[Interrupts]:
    """Note the signals instead of letting them break in; elsewhere than in the main thread nothing changes."""
    interrupts = Interrupts()
    before = {number: _set(number, interrupts.note) for number in ENDING_SIGNALS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)  # type: ignore[arg-type]  # what `signal` gave back


def _set(number: int, handler: object) -> object:
    """Set a handler and return the one before; None where nothing was changed."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is signal.SIG_IGN:
        return None
    return signal.signal(number, handler)  # type: ignore[arg-type]
