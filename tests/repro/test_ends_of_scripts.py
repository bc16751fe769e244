"""Only a script's own verdict decides how it ends, whatever the code does that it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("golden") / "print_break.py.txt"


@pytest.mark.parametrize("status", [0, 1])
def test_code_that_exits_does_not_decide_how_its_script_ends(tmp_path: Path, status: int) -> None:
    head, mark, rest = SCRIPT.read_text().partition("def make(device):\n")
    script = tmp_path / "repro.py"
    script.write_text(f"{head}{mark}    raise SystemExit({status})\n{rest}")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert ended.returncode == 125
    assert "CANNOT TELL" in ended.stdout and "error SystemExit" in ended.stdout
