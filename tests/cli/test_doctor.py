from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from compilebisect.__main__ import main
from compilebisect.cli import doctor


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a given program play the process that checks."""

    def play(code: str) -> None:
        script = tmp_path / "fake_python"
        script.write_text(f"#!{sys.executable}\nimport json, os\n{code}\n")
        script.chmod(0o755)
        monkeypatch.setattr(doctor.sys, "executable", str(script))

    return play


def say(status: str, name: str = "torch", value: str = "2.13.0", fix: str = "") -> str:
    line = json.dumps({"name": name, "status": status, "value": value, "fix": fix})
    return f"print({line!r}, flush=True)"


def test_healthy_machine_exits_0(child: Any, capsys: pytest.CaptureFixture[str]) -> None:
    child("\n".join([say("ok"), say("info", "GPU", "none")]))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "✓ torch" in out and "GPU" in out and "This machine can compile models." in out


def test_problem_exits_125_and_says_what_to_do(child: Any, capsys: pytest.CaptureFixture[str]) -> None:
    child(say("problem", "C++ compiler", "none found", "Install g++."))
    assert main(["doctor"]) == 125
    out = capsys.readouterr().out
    assert "✗ C++ compiler" in out and "Install g++." in out and "cannot compile" in out


def test_death_of_the_checks_is_a_problem_and_keeps_what_was_found(
    child: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    child(say("ok") + "\nos.kill(os.getpid(), 11)")
    assert main(["doctor"]) == 125
    out = " ".join(capsys.readouterr().out.split())
    assert "✓ torch" in out and "was killed by SIGSEGV after the check of torch" in out


def test_checks_that_hang_are_ended(child: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(doctor, "_TIMEOUT_S", 2)
    child(say("ok") + "\nimport time; time.sleep(60)")
    assert main(["doctor"]) == 125
    out = " ".join(capsys.readouterr().out.split())
    assert "✓ torch" in out and "did not end within 2 s after the check of torch" in out


def test_user_caches_are_not_touched(child: Any, capsys: pytest.CaptureFixture[str]) -> None:
    child(
        "folders = [os.environ[name] for name in ('TORCHINDUCTOR_CACHE_DIR', 'TRITON_CACHE_DIR')]\n"
        "is_private = all('compilebisect-doctor-' in folder for folder in folders)\n"
        "print(json.dumps({'name': 'caches', 'status': 'ok' if is_private else 'problem', 'value': '', 'fix': ''}))"
    )
    assert main(["doctor"]) == 0


@pytest.mark.slow
def test_this_machine_is_able_to_compile(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor"])
    out = capsys.readouterr().out
    assert status == 0, out
    assert "✓ torch.compile on the" in out
