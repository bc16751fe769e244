"""How a call in a worker can end."""

from __future__ import annotations

import signal
from typing import TypeAlias

import msgspec


class Replied(msgspec.Struct, frozen=True, kw_only=True):
    """The function returned. `retired` says that the worker left after it."""

    payload: bytes
    seconds: float
    retired: bool = False


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The function raised. `type` is the exception's qualified name, without a module for Python's own."""

    type: str
    message: str
    traceback: str
    seconds: float
    retired: bool = False


class Died(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's process ended before it replied.

    Either `signal` (a name such as `SIGSEGV`) or `exit_code` is set; both are None where nobody knows. `phase` is
    the last note, `stack` what faulthandler wrote during the call, `output` the end of what was printed during it
    (of the fork server's output where the worker never came to life). `is_blameless` says that the call is not the
    cause: the worker was gone before it had the request, or the fork server went down first. `memory_kills` counts
    the processes that the kernel killed for memory during the call, None where it does not tell.
    """

    signal: str | None = None
    exit_code: int | None = None
    phase: str = ""
    stack: str = ""
    output: str = ""
    seconds: float = 0.0
    is_blameless: bool = False
    killed_by_supervisor: bool = False
    memory_kills: int | None = None

    @property
    def is_memory_suspected(self) -> bool:
        """Whether the kernel's out-of-memory killer is the likely cause: a SIGKILL that we did not send."""
        return self.signal == "SIGKILL" and not self.killed_by_supervisor


class TimedOut(msgspec.Struct, frozen=True, kw_only=True):
    """The deadline passed and the worker's process group was killed; fields as in `Died`."""

    phase: str = ""
    stack: str = ""
    output: str = ""
    seconds: float = 0.0
    is_blameless: bool = False


Outcome: TypeAlias = Replied | Failed | Died | TimedOut


def signal_name(number: int) -> str:
    """Name a signal, also a real-time one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
