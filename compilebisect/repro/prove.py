"""Tries repro cases in order until the script of one shows the fault in a fresh process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from compilebisect.core.report import Repro
from compilebisect.core.repro_case import ReproCase
from compilebisect.repro.script import UnwritableCase, line_count, place_code, write_script
from compilebisect.repro.verify import Proof, Verification, verify

# Beyond its own deadline a script needs time to import torch and to run eager.
_START_S = 60.0
# What is worth most of what does not verify: nothing at all is a worse report than another failure.
_WORTH = (Proof.CANNOT_TELL, Proof.NO_END, Proof.GONE, Proof.OTHER_FAILURE, Proof.SHOWN)


def prove(
    candidates: Iterable[ReproCase],
    out_dir: Path,
    finding_id: str,
    *,
    env: Mapping[str, str],
    python: str,
    timeout_s: float = 300.0,
    on_attempt: Callable[[ReproCase, Verification], None] = lambda case, verification: None,
) -> Repro | None:
    """Write and run the scripts of the candidates, the most standalone first, until one shows the fault.

    The script is left as `repro_<finding_id>.py` in `out_dir`, with its tensors beside it where it needs any. If none
    verifies, the first candidate's stays there, marked as unverified with a note that says what was seen instead.

    Args:
        candidates: cases in the order in which they are tried; made lazily, since later ones are rarely needed.
        out_dir: where the script goes.
        finding_id: the finding's name in the report.
        env: environment for the script's process.
        python: the interpreter.
        timeout_s: seconds that one run of a script may take.
        on_attempt: told of each run.

    Returns:
        The script's entry for the report; None where there was no case that could be written.
    """
    final = out_dir / f"repro_{finding_id}.py"
    trial_dir = out_dir / f".trial_{finding_id}"
    kept: tuple[ReproCase, Verification] | None = None
    try:
        for case in candidates:
            trial = trial_dir / final.name
            try:
                write_script(case, trial)
            except UnwritableCase:
                continue
            result = verify(
                trial,
                case.fault,
                env=_with_user_folders(env, case),
                python=python,
                timeout_s=max(timeout_s, case.deadline_s + _START_S),
                code=place_code(case),
            )
            on_attempt(case, result)
            if kept is None or result.proof is Proof.SHOWN:
                kept = (case, result)
            if result.proof is Proof.SHOWN:
                break
    finally:
        shutil.rmtree(trial_dir, ignore_errors=True)
    if kept is None:
        return None
    case, result = kept
    write_script(case, final)
    return _entry(case, result, final)


def _entry(case: ReproCase, result: Verification, path: Path) -> Repro:
    is_verified = result.proof is Proof.SHOWN
    notes = [*case.notes]
    if case.imports_user_code:
        notes.append("imports the user's code, since the fault could not be shown without it")
    if not is_verified:
        notes.append(f"not verified ({result.proof.value}): {result.line or 'the script gave no verdict'}")
    return Repro(
        path=path.name,
        verified=is_verified,
        ops=case.operator_count,
        lines=line_count(path.read_text(encoding="utf-8")),
        imports_user_code=case.imports_user_code,
        note="; ".join(notes),
    )


def _with_user_folders(env: Mapping[str, str], case: ReproCase) -> dict[str, str]:
    # The trial lies in a folder of its own, from where the user's files are elsewhere than from the final one.
    folders = [file.folder for file in case.user_files]
    return {**env, "REPRO_CODE": ":".join(folders)} if folders else dict(env)
