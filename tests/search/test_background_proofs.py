"""Proofs beside the walk: whatever happens to one, the findings and the other proofs stay."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from compilebisect.core.outcome import Fault, Kind
from compilebisect.core.report import Finding, Repro
from compilebisect.core.unit_result import IntroducedFault
from compilebisect.search import background_proofs
from compilebisect.search.background_proofs import BackgroundProofs
from compilebisect.search.report_folder import ReportFolder


class _Broken(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class _Prover:
    """Raises what it is told to for one fault, and proves the others."""

    error: BaseException = _Broken()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.what = "fault"

    def prove(self, item: IntroducedFault, script: Path) -> Repro:
        if item.path == "bad":
            raise self.error
        script.write_text("pass\n")
        return Repro(path=script.name, verified=True, runs=1, shown=1)

    def unproved(self, note: str) -> None:
        return None


def _finding(number: int, path: str) -> Finding:
    return Finding(id=f"F{number}", kind=Kind.ERROR, module=path, summary="s", fingerprint=f"f{number}")


@pytest.mark.parametrize("error", [_Broken(), OSError(28, "No space left"), ValueError("x\ny"), SyntaxError()])
def test_a_proof_that_raises_leaves_a_note_and_the_other_proofs(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_proofs, "Prover", _Prover)
    monkeypatch.setattr(_Prover, "error", error)
    items = {
        f"F{number}": IntroducedFault(fault=Fault(kind=Kind.ERROR, type="E"), path=path)
        for number, path in ((1, "bad"), (2, "good"))
    }
    verdicts: Any = types.SimpleNamespace(findings=[_finding(1, "bad"), _finding(2, "good")], faults=items)
    bisection: Any = types.SimpleNamespace(
        settings=types.SimpleNamespace(check=(Kind.SLOWDOWN,)),
        description=types.SimpleNamespace(device_share=0.0),
        errands=types.SimpleNamespace(close=lambda: None, do=lambda function: function()),
        progress=types.SimpleNamespace(script_made=lambda what, repro: None),
    )
    proofs = BackgroundProofs(
        bisection, ReportFolder(str(tmp_path)), {}, on_proved=lambda: None, is_impatient=lambda: False
    )
    bisection.serve_errands_until = lambda is_over: proofs._thread.join()
    with proofs:
        proofs.finish(verdicts)
        proofs.call_off()
        proofs.enter(verdicts)
    bad, good = (finding.repro for finding in verdicts.findings)
    assert bad is not None and bad.path == "" and bad.note.startswith("no script: ") and not bad.verified
    assert good is not None and good.path == "repro_F2.py" and good.verified
