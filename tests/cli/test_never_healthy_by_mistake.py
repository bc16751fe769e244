"""Whole runs on models that torch.compile fails on in odd ways: each ends with a finding, or with what is untested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MODELS = '''
import torch
from torch import nn

RAISES = {
    "exit": lambda: SystemExit(0),
    "interrupt": KeyboardInterrupt,
    "long": lambda: RuntimeError("x" * 50_000_000),
}

@torch.library.custom_op("odd_ends::twice", mutates_args=())
def twice(x: torch.Tensor, how: str) -> torch.Tensor:
    return x * 2

@twice.register_fake
def _(x, how):
    raise RAISES[how]()

class Sick(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return torch.ops.odd_ends.twice(x, self.how)

class AsksNothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise RuntimeError(f"no {name} here") from None

    def forward(self, x):
        return self.lin(x)

class Net(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.sick = AsksNothing() if how == "attribute" else Sick(how)

    def forward(self, x):
        return self.sick(self.first(x)).relu()

class Once(nn.Module):
    """Runs in eager mode in no other process than the first."""

    def __init__(self, mark):
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.mark = mark

    def forward(self, x):
        with open(self.mark, "a+") as file:
            file.write("x")
            count = file.tell()
        if count > 3:
            raise RuntimeError("no further run")
        return self.head(x)
'''


class Run(NamedTuple):
    status: int
    out: str
    err: str
    report: dict[str, Any]

    @property
    def blamed(self) -> list[tuple[str, str]]:
        return [(finding["module"], finding["kind"]) for finding in self.report["findings"]]


@pytest.fixture
def run(tmp_path: Path) -> Any:
    (tmp_path / "model.py").write_text(MODELS)
    (tmp_path / "shapes.json").write_text('{"x": [2, 4]}')

    def run_command(target: str, init: dict[str, Any], *options: str) -> Run:
        words = [f"model.py:{target}", "--init", json.dumps(init), "--input-spec", "shapes.json", *options]
        command = [sys.executable, "-m", "compilebisect", *words]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        report = tmp_path / "compilebisect-out" / "report.json"
        return Run(ended.returncode, ended.stdout, ended.stderr, json.loads(report.read_text()))

    return run_command


def test_an_exit_while_compiling_is_a_finding_with_a_verified_script(run: Any) -> None:
    ended = run("Net", {"how": "exit"}, "--reduce-seconds", "5", "--repro-runs", "1")
    assert (ended.status, ended.blamed) == (1, [("sick", "error")])
    (finding,) = ended.report["findings"]
    assert finding["repro"]["verified"] and finding["stage"] == "dynamo"
    assert "SystemExit" in finding["summary"]


@pytest.mark.parametrize("how", ["interrupt", "attribute", "long"])
def test_whatever_fails_in_an_odd_way_is_a_finding_at_the_right_module(run: Any, how: str) -> None:
    ended = run("Net", {"how": how}, "--no-repro")
    assert (ended.status, ended.blamed) == (1, [("sick", "error")])
    assert ended.report["complete"] and ended.report["uncovered"] == []
    assert len(ended.out) + len(ended.err) < 100_000


def test_a_model_that_could_not_be_compared_is_not_healthy(run: Any, tmp_path: Path) -> None:
    ended = run("Once", {"mark": str(tmp_path / "runs")}, "--no-repro", "--workers", "1", "--check", "divergence")
    assert (ended.status, ended.blamed) == (125, [])
    assert "healthy" not in ended.out
    last = ended.err.splitlines()[-1]
    assert last.startswith("error: no verdict on Once (fails in eager mode when called alone")
    assert [part["path"] for part in ended.report["uncovered"]] == [""]
