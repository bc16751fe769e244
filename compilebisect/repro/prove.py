"""Proves a written script: runs it in fresh processes and says how often it showed the fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from compilebisect.core.outcome import Fault
from compilebisect.core.report import Repro
from compilebisect.core.repro_case import ReproCase
from compilebisect.repro.check_part import model_lines
from compilebisect.repro.script import line_count
from compilebisect.repro.standby import Standby
from compilebisect.repro.verify import Proof, Verification, judge, run_fresh

# What is worth most of what does not verify: nothing at all is a worse report than another failure.
_WORTH = (Proof.CANNOT_TELL, Proof.NO_END, Proof.GONE, Proof.OTHER_FAILURE, Proof.SHOWN)


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """How often a script showed its fault in fresh processes, and what its most telling run was."""

    shown: int
    runs: int
    best: Verification


def confirm(
    script: Path,
    fault: Fault,
    *,
    runs: int,
    env: Mapping[str, str],
    python: str,
    timeout_s: float,
    code: str = "",
    args: Sequence[str] = (),
    is_called_off: Callable[[], bool] = lambda: False,
    standby: Standby | None = None,
) -> Confirmation:
    """Run a script several times side by side, each time in a fresh process.

    Args:
        script: the script.
        fault: what it must show.
        runs: how often it is run.
        env: environment for its processes.
        python: the interpreter.
        timeout_s: seconds that one run may take.
        code: the line of code at the fault's place; empty where the script has no such line.
        args: further arguments of the script.
        is_called_off: whether nobody waits for the result any more; the runs then end in a KeyboardInterrupt.
        standby: interpreters that wait for a script.
    """
    ends = run_fresh(
        script,
        env=env,
        python=python,
        timeout_s=timeout_s,
        args=args,
        runs=runs,
        is_called_off=is_called_off,
        standby=standby,
    )
    seen = [judge(end, fault, code) for end in ends]
    shown = sum(one.proof is Proof.SHOWN for one in seen)
    return Confirmation(shown=shown, runs=len(seen), best=max(seen, key=lambda one: _WORTH.index(one.proof)))


def report_entry(
    case: ReproCase, script: Path, confirmation: Confirmation, *, operators: int, notes: Sequence[str] = ()
) -> Repro:
    """Return a script's entry for the report; it counts as verified once it showed the fault in a fresh process."""
    text = script.read_text(encoding="utf-8")
    said = [*case.notes, *notes]
    if case.imports_user_code:
        said.append("imports the user's code, since the fault could not be shown without it")
    if confirmation.shown == 0:
        best = confirmation.best
        said.append(f"not verified ({best.proof.value}): {best.line or 'the script gave no verdict'}")
    return Repro(
        path=script.name,
        verified=confirmation.shown > 0,
        runs=confirmation.runs,
        shown=confirmation.shown,
        ops=operators,
        lines=line_count(text),
        model_lines=model_lines(text),
        imports_user_code=case.imports_user_code,
        note="; ".join(said),
    )
