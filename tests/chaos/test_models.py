"""Whole runs on models of the worst sort: none passes for healthy that is not, and none is blamed that is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.hostile import check_no_excuse, check_nothing_left, report_in, run_command
from tests.chaos.hostile_models import EXPECTED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FILE = Path(__file__).with_name("hostile_models.py")
SHORT = ("exit", "leave_0", "WrongBuffer", "GetsHostileArgument", "OddNames")
PLAIN = """
import sys, torch
sys.path.insert(0, {folder!r})
from hostile_models import Net
torch.manual_seed(0)
model, x = Net({name!r}), torch.randn(2, 4)
with torch.no_grad():
    eager = model(x.clone())
    try:
        seen = torch.compile(model, backend="eager")(x.clone())
    except BaseException:
        print("error")
    else:
        breaks = torch._dynamo.utils.counters["graph_break"]
        print("graph_break" if breaks else "fine" if torch.equal(eager, seen) else "divergence")
"""


def _what_torch_shows(name: str, folder: Path) -> str:
    """Ask torch alone what comes of compiling the whole model."""
    script = PLAIN.format(folder=str(FILE.parent), name=name)
    ended = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=200)
    return ended.stdout.split()[-1]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.chaos) for name in EXPECTED]
)
def test_a_hostile_model_gets_a_right_verdict(name: str, tmp_path: Path) -> None:
    blamed = EXPECTED[name]
    if blamed is None:
        truth = _what_torch_shows(name, tmp_path)
        blamed = {} if truth == "fine" else {"sick": truth}
    (tmp_path / "spec.json").write_text('{"x": [2, 4]}')
    end = run_command(
        tmp_path,
        *(f"{FILE}:Net", "--init", json.dumps({"name": name}), "--input-spec", "spec.json", "--device", "cpu"),
        *("--backend", "eager", "--no-repro", "--timeout", "30" if name == "hang" else "200"),
    )
    check_nothing_left(end)
    check_no_excuse(end)
    report = report_in(tmp_path / "compilebisect-out")
    seen = {finding["module"]: finding["kind"] for finding in report["findings"]}
    assert (end.status, seen) == (1 if blamed else 0, blamed), end.said
    assert len(end.stdout) + len(end.stderr) < 200_000
    assert "\x1b" not in end.stdout + end.stderr
    assert not any(line.startswith("::") for line in (end.stdout + "\n" + end.stderr).splitlines())
    assert {entry.name for entry in tmp_path.iterdir()} == {"cache", "spec.json", "compilebisect-out"}
