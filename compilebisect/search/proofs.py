"""Writes and proves a repro script for each finding, from the most independent kind of script to the least."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from compilebisect.core.findings import Verdicts
from compilebisect.core.messages import ReproOrder
from compilebisect.core.outcome import Kind, Rung
from compilebisect.core.report import Finding, Repro
from compilebisect.core.repro_case import ReproCase
from compilebisect.core.unit_result import IntroducedFault, Probe
from compilebisect.errors import CannotTestError
from compilebisect.repro.prove import prove
from compilebisect.repro.script import UnwritableCase, line_count, script_text
from compilebisect.search.bisection import Bisection

LEVELS = ("standalone", "saved", "import")
_CASES_TIMEOUT_S = 300.0


def prove_findings(bisection: Bisection, verdicts: Verdicts, out: Path, environment: Mapping[str, str]) -> None:
    """Give each finding of `verdicts` its repro; an interrupt leaves those that were proved before it."""
    for position, finding in enumerate(verdicts.findings):
        bisection.progress.phase_started(
            f"proving {finding.id} ({finding.kind.value} in {finding.module or 'the root'})"
        )
        item = verdicts.faults[finding.id]
        repro = prove(
            _cases(bisection, finding, item),
            out,
            finding.id,
            env=environment,
            python=sys.executable,
            timeout_s=max(bisection.settings.timeout_s, 60.0),
        )
        if repro is None:
            repro = Repro(path="", note="no script could be written: the module cannot be rebuilt outside its model")
        verdicts.findings[position] = msgspec.structs.replace(finding, repro=repro)


def _cases(bisection: Bisection, finding: Finding, item: IntroducedFault) -> Iterator[ReproCase]:
    settings = bisection.settings
    path = item.seen_in or item.path
    unit = bisection.walk.unit_of[path]
    needs_backend = finding.kind is not Kind.GRAPH_BREAK
    probe = Probe(unit=unit.id, path=path, rung=None if needs_backend else Rung.EAGER, purpose="repro")
    reason = bisection.store.prepare(probe)
    if reason:
        return
    for level in LEVELS:
        order = ReproOrder(
            probe=bisection.order_for(probe),
            fault=item.fault,
            tensors=str(bisection.scratch),
            finding=finding.id,
            level=level,
            deadline_s=min(settings.timeout_s, 60.0),
            config=tuple((name, repr(value)) for name, value in settings.config),
        )
        worker = bisection.idle_worker()
        try:
            answer = bisection.ask(
                worker, "repro_cases", msgspec.msgpack.encode(order), _CASES_TIMEOUT_S, "writing a repro script"
            )
        except CannotTestError as error:
            bisection.notes.append(f"{finding.id}: {error.what}")
            continue
        bisection.give_back(worker)
        yield from sorted(msgspec.msgpack.decode(answer.cases, type=list[ReproCase]), key=_size)


def _size(case: ReproCase) -> int:
    try:
        return line_count(script_text(case, script_dir=Path()))
    except UnwritableCase:
        return sys.maxsize
