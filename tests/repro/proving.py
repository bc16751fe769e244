"""Writes and runs the scripts of cases in forks of one process that has torch imported, as the command does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from compilebisect.core.report import Repro
from compilebisect.core.repro_case import ReproCase
from compilebisect.repro.prove import Confirmation, report_entry
from compilebisect.repro.script import place_code, write_script
from compilebisect.repro.verify import Proof, Verification, judge
from compilebisect.search.script_runner import ScriptRunner

Prove = Callable[[Sequence[ReproCase], Path], tuple[Repro, list[Verification]]]


def prove(runner: ScriptRunner, cases: Sequence[ReproCase], folder: Path) -> tuple[Repro, list[Verification]]:
    """Run the scripts of some cases until one shows its fault; returns the entry of that one, and all runs."""
    script = folder / "repro_F1.py"
    seen: list[Verification] = []
    for case in cases:
        write_script(case, script)
        folders = ":".join(file.folder for file in case.user_files)
        end = runner.run(script, timeout_s=160, environment={"REPRO_CODE": folders})
        seen.append(judge(end, case.fault, place_code(case)))
        if seen[-1].proof is Proof.SHOWN:
            break
    confirmation = Confirmation(shown=int(seen[-1].proof is Proof.SHOWN), runs=1, best=seen[-1])
    return report_entry(case, script, confirmation, operators=case.operator_count), seen
