"""What probes see: kinds of fault, stages of the compiler stack, faults and observations.

Plain frozen data shared by every layer. Nothing here judges; see `blame` for that.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import msgspec


class Kind(str, Enum):
    """Kinds of fault, worst first: a module's status is the worst kind that it shows."""

    CRASH = "crash"
    TIMEOUT = "timeout"
    ERROR = "error"
    DIVERGENCE = "divergence"
    GRAPH_BREAK = "graph_break"
    RECOMPILE = "recompile"
    SLOWDOWN = "slowdown"

    @property
    def severity(self) -> int:
        """Rank of the kind, 0 being the worst."""
        return list(Kind).index(self)


class Stage(str, Enum):
    """Where the compiler stack goes wrong, in the order in which a program passes through it."""

    DYNAMO = "dynamo"
    AOT_AUTOGRAD = "aot_autograd"
    INDUCTOR = "inductor"
    TRITON = "triton"
    CPP = "cpp"
    RUNTIME = "runtime"


class Rung(str, Enum):
    """Backends of the ladder that names the stage, lowest first."""

    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    AOT_EAGER_DECOMP_PARTITION = "aot_eager_decomp_partition"
    INDUCTOR = "inductor"


#: torch's type of a graph break where the backend, rather than Dynamo, meets what it cannot trace.
BACKEND_FAILED = "Backend compiler exception"
_FAILED_WITH = re.compile(r"failed with (\w+\.\w+\.\w+)\. ")


class Frame(msgspec.Struct, frozen=True):
    """One Python frame of a stack: `code` is the stripped text of the line."""

    file: str
    line: int
    function: str
    code: str = ""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong in a probe.

    `type` is what identifies it besides its place: the graph-break type, the exception's type name,
    the signal's name, or what differs in a divergence (`values`, `shape`, `mutation of input`, ...).
    `frames` run from the outermost to the innermost call and hold the user's and libraries' frames alone,
    without those of torch and the standard library. `location` is the innermost of them, or the place
    that called the module where no frame of its own exists. `owners` are the modules that it is known to belong to
    by other means than the stack, the one that stands for all first.
    """

    kind: Kind
    type: str
    message: str = ""
    stage: Stage | None = None
    frames: tuple[Frame, ...] = ()
    location: Frame | None = None
    hint: str = ""
    evidence: dict[str, Any] = {}
    owners: tuple[str, ...] = ()

    @property
    def shows_with_any_backend(self) -> bool:
        """Whether Dynamo brings it by itself, so that the cheapest backend shows it too."""
        return self.kind in (Kind.GRAPH_BREAK, Kind.RECOMPILE) and self.type != BACKEND_FAILED

    @property
    def is_in_row(self) -> bool:
        """Whether it shows only in a later one of several calls in a row."""
        return "call_in_row" in self.evidence

    @property
    def failed_operator(self) -> str:
        """The operator that the backend could not trace, as torch names it; empty where it names none."""
        named = _FAILED_WITH.search(self.message) if self.type == BACKEND_FAILED else None
        return named[1] if named else ""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe saw. No faults and `completed` means healthy.

    `compile_s` is the seconds of the compiled runs, `peak_bytes` the worker's peak resident memory. `graphs` counts the
    FX graphs that reached the backend, `frames_compiled` the Python frames that Dynamo converted, also those
    without any operator, `recompiles` how often one of them was compiled again. `completed` is False where a fault
    ended the probe before all of it was done.
    `untested` says why the probe gives no verdict, though nothing went wrong that would be a fault: eager mode failed
    as well, nothing was captured, the probe itself stumbled. `untested_instances` does so for single further instances.
    `is_all_eager` says that graphs broke in such a way that a call of it ran in eager mode as a whole.
    `is_blind` says that the output was constant, so that a divergence inside could not have shown in it, `has_excused`
    that something differs from eager by more than its dtype's floor and is right all the same, or was not compared.
    `has_right_rows` says that later calls, each in the state that the last one left, were all compared and right.
    `faults_by_instance` holds those faults that belong to single instances rather than to the code of all. `impact` is
    what a module that was compiled in place does to the output of the whole model.
    """

    faults: tuple[Fault, ...] = ()
    completed: bool = True
    graphs: int = 0
    operators: int = 0
    frames_compiled: int = 0
    recompiles: int = 0
    compile_s: float = 0.0
    peak_bytes: int = 0
    is_blind: bool = False
    has_excused: bool = False
    has_right_rows: bool = False
    is_all_eager: bool = False
    untested: str = ""
    untested_instances: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    faults_by_instance: dict[str, tuple[Fault, ...]] = {}
    impact: dict[str, Any] = {}
