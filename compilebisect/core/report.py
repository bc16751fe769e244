"""The report: the data that every rendering is made from, its JSON Schema, and the comparison of two reports."""

from __future__ import annotations

import inspect
import json
import math
import re
from typing import Any, Literal

import msgspec

from compilebisect.core.json_checks import integer_from_text
from compilebisect.core.outcome import Kind, Stage
from compilebisect.core.strategies import Strategies
from compilebisect.core.words import CONTROL_CHARACTERS
from compilebisect.error_text import error_text
from compilebisect.errors import UsageError

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
    "untested",
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
    recompiles: int = 0
    eager_s: float | None = None
    compiled_s: float | None = None
    time_share: float | None = None
    notes: tuple[str, ...] = ()


class Repro(msgspec.Struct, frozen=True, kw_only=True):
    """The script of a finding. `verified` is True only after it showed the same fault in a fresh process.

    It was run `runs` times in fresh processes, of which `shown` showed the fault; where the two differ, it is flaky.
    `lines` counts all lines of code, `model_lines` those of the model and its inputs: not the
    part that compiles and judges, nor the imports for that part alone.
    """

    path: str
    verified: bool = False
    runs: int = 0
    shown: int = 0
    ops: int = 0
    lines: int = 0
    model_lines: int = 0
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
    """Seconds of the whole run and of one eager run, number of probes that compiled, peak resident memory.

    `eager_peak_bytes` is the peak of the process that ran the model in eager mode, `worker_peak_bytes` the highest
    of those that compiled.
    """

    total_s: float = 0.0
    compiles: int = 0
    eager_s: float = 0.0
    eager_peak_bytes: int = 0
    worker_peak_bytes: int = 0


class Uncovered(msgspec.Struct, frozen=True, kw_only=True):
    """A module whose own check gave no verdict, and no module above vouches for it that was really compiled with it."""

    path: str
    reason: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report, as written to `report.json`.

    `ended_by` says of a run that is not complete what ended it: `interrupt`, `failure` (the notes tell), or nothing as
    long as it goes on, or where it was killed.
    """

    schema: str = SCHEMA
    complete: bool = True
    target: str
    environment: Environment
    settings: dict[str, Any] = {}
    modules: tuple[ModuleEntry, ...] = ()
    findings: tuple[Finding, ...] = ()
    uncovered: tuple[Uncovered, ...] = ()
    timing: Timing = Timing()
    strategies: Strategies | None = None
    notes: tuple[str, ...] = ()
    ended_by: Literal["interrupt", "failure"] | None = None


def report_json(report: Report) -> bytes:
    """Return the report as pretty UTF-8 JSON with a final newline.

    Evidence and settings may hold anything: what JSON cannot say is written as text (`inf`, `nan`, a repr).
    """
    data = msgspec.to_builtins(report, str_keys=True, enc_hook=repr)
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_json_value(data), ensure_ascii=False, allow_nan=False)
    try:
        text = msgspec.json.format(text, indent=2)  # Python's own indenting takes 6 s for 20,000 findings
    except UnicodeEncodeError:  # half a surrogate pair
        text = json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    return _OBEYED.sub(_json_escape, text).encode("utf-8") + b"\n"


# Where JSON is printed, these would be obeyed by a terminal, or by a CI system (`##[error]`).
_OBEYED = re.compile(f"{CONTROL_CHARACTERS}|(?<=#)#")


def _json_escape(match: re.Match[str]) -> str:
    return r"\u0023" if match[0] == "#" else json.dumps(match[0])[1:-1]


def report_from_json(data: bytes) -> Report:
    """Return the report that the JSON text holds; unknown fields are ignored, so that newer writers can add some.

    Raises:
        UsageError: the text is no JSON, no report, of another schema version, or has a field of a wrong type;
            `where` is then the JSON path.
    """
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            parse_int=integer_from_text,
            parse_float=_finite_number,
            parse_constant=_finite_number,
        )
    except (ValueError, RecursionError) as error:
        raise UsageError(f"this is no JSON text: {error_text(error)}", fix=_FIX) from error
    if not isinstance(value, dict) or not isinstance(value.get("schema"), str):
        raise UsageError("this JSON is no compilebisect report: it has no `schema`", fix=_FIX)
    if value["schema"] != SCHEMA:
        raise UsageError(
            f"unknown report version {value['schema']!r}; this compilebisect reads {SCHEMA!r}",
            where="schema",
            fix="Read the report with the version of compilebisect that wrote it, or run the bisection again.",
        )
    try:
        return msgspec.convert(value, Report)
    except msgspec.ValidationError as error:
        what, _, place = error_text(error).partition(" - at `")
        where = place.rstrip("`").removeprefix("$").removeprefix(".")
        raise UsageError(what[:1].lower() + what[1:], where=where, fix=_FIX) from error


def checked_kinds(report: Report) -> tuple[Kind, ...] | None:
    """Return the kinds that a run looked for; None where its settings do not tell, which may hold anything."""
    names = report.settings.get("check")
    known = {kind.value: kind for kind in Kind}
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name in known for name in names):
        return None
    return tuple(known[name] for name in names)


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a report, as published in `report.schema.json`."""
    schema = msgspec.json.schema(Report)
    body = schema["$defs"]["Report"]
    body["properties"]["schema"] = {"const": SCHEMA}
    body["required"] = ["schema", *body["required"]]
    _settle(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}


_FIX = "Give the `report.json` that a run of compilebisect wrote."


def _settle(schema: Any) -> None:
    """Even out in place what varies with the versions of msgspec and Python: order in `anyOf`, indents of texts."""
    if isinstance(schema, dict):
        if isinstance(schema.get("description"), str):
            schema["description"] = inspect.cleandoc(schema["description"])
        if isinstance(schema.get("anyOf"), list):
            schema["anyOf"].sort(key=lambda choice: choice.get("type") == "null")
        schema = list(schema.values())
    if isinstance(schema, list):
        for item in schema:
            _settle(item)


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number


def _json_value(value: Any) -> Any:
    """Replace the floats that JSON lacks, and what `to_builtins` left as tuples."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    return value
