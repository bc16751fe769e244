"""The report: the data that every rendering is made from, its JSON Schema, and the comparison of two reports."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from compilebisect.core.outcome import Kind, Stage

SCHEMA = "compilebisect-report/1"

Status = Literal[
    "ok",
    "graph_break",
    "recompile",
    "divergence",
    "error",
    "crash",
    "timeout",
    "slowdown",
    "not_called",
    "skipped",
]
Origin = Literal["introduced", "inherited"]


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A place in Python source; `file` is relative to the target's folder where it lies below it."""

    file: str
    line: int
    function: str = ""
    code: str = ""


class ModuleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One module of the tree; see the report's reference page for the meaning of each field."""

    path: str
    cls: str = msgspec.field(name="class")
    status: Status
    origin: Origin | None = None
    children: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    same_as: str | None = None
    shared_with: tuple[str, ...] = ()
    implied: bool = False
    calls: int = 0
    compile_s: float = 0.0
    graphs: int = 0
    notes: tuple[str, ...] = ()


class Repro(msgspec.Struct, frozen=True, kw_only=True):
    """The script of a finding. `verified` is True only after it showed the same fault in a fresh process."""

    path: str
    verified: bool = False
    ops: int = 0
    lines: int = 0
    imports_user_code: bool = False
    note: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One classified fault and the module that introduces it."""

    id: str
    kind: Kind
    module: str
    also_in: tuple[str, ...] = ()
    stage: Stage | None = None
    summary: str
    location: Location | None = None
    fingerprint: str
    evidence: dict[str, Any] = {}
    hint: str = ""
    repro: Repro | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where the run took place; None for what is not there."""

    compilebisect: str
    torch: str | None = None
    triton: str | None = None
    python: str = ""
    device: str = ""
    cuda: str | None = None


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of the whole run and number of probes that compiled."""

    total_s: float = 0.0
    compiles: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report, as written to `report.json`."""

    schema: str = SCHEMA
    complete: bool = True
    target: str
    environment: Environment
    settings: dict[str, Any] = {}
    modules: tuple[ModuleEntry, ...] = ()
    findings: tuple[Finding, ...] = ()
    timing: Timing = Timing()
    notes: tuple[str, ...] = ()
