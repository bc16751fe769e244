"""Whole runs on models whose calls cannot all be kept: the run goes on, and each module has a verdict or a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MODELS = """
import torch
from torch import nn


class SnapToGrid(torch.autograd.Function):
    @staticmethod
    def forward(v):
        return torch.round(v * 4) / 4

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g


class Potential(nn.Module):
    def forward(self, pos):
        return (SnapToGrid.apply(pos) ** 2).sum()


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.pot = Potential()

    def forward(self, pos):
        return -torch.func.grad(self.pot)(pos)


class Mover(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.field = Field()

    def forward(self, x):
        pos = self.embed(x)
        return pos + 0.1 * self.field(pos)


class Unkept:
    def __init__(self, factor):
        self.factor = factor

    def __reduce_ex__(self, protocol):
        torch.rand(3)  # a random number that the run must not miss
        raise SystemExit("not to be pickled")

    def __eq__(self, other):
        raise KeyError("not to be compared")

    __hash__ = object.__hash__


class Kept:
    factor = 2.0


class Block(nn.Module):
    def __init__(self, is_wrong=False):
        super().__init__()
        self.is_wrong = is_wrong
        self.lin = nn.Linear(4, 4)

    def forward(self, x, how):
        if self.is_wrong and torch.compiler.is_compiling():
            x = x + 1
        return self.lin(x) * how.factor


class Blocks(nn.Module):
    def __init__(self, wrong=None):
        super().__init__()
        self.blocks = nn.ModuleList(Block(is_wrong=number == wrong) for number in range(3))

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(x, Unkept(2.0) if number == 0 else Kept())
        return x + torch.rand(4)
"""


def run(folder: Path, name: str, *words: str) -> tuple[int, list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Run the command; gives its exit status, the findings and the modules by path."""
    (folder / "model.py").write_text(MODELS)
    (folder / "spec.json").write_text(json.dumps([[10, 4]]))
    words = (f"model.py:{name}", "--input-spec", "spec.json", "--no-repro", "--backend", "eager", *words)
    command = [sys.executable, "-m", "compilebisect", *words, "--device", "cpu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    report = json.loads((folder / "compilebisect-out" / "report.json").read_text())
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, report["findings"], {entry["path"]: entry for entry in report["modules"]}


def test_what_runs_inside_a_transform_is_not_captured_and_its_caller_is_found(tmp_path: Path) -> None:
    status, findings, modules = run(tmp_path, "Mover")
    assert status == 1
    (finding,) = findings
    assert (finding["kind"], finding["module"], finding["stage"]) == ("divergence", "field", "dynamo")
    assert modules[""]["origin"] == "inherited" and modules["embed"]["status"] == "ok"
    assert any("function transform" in note for note in modules["field.pot"]["notes"])


def test_an_instance_that_cannot_be_kept_leaves_the_others_checked(tmp_path: Path) -> None:
    status, findings, modules = run(tmp_path, "Blocks")
    assert (status, findings) == (0, [])
    assert all(modules[f"blocks.{number}"]["status"] == "ok" for number in range(3))
    assert any("checked in place only: not captured" in note for note in modules["blocks.0"]["notes"])


@pytest.mark.parametrize("wrong", [0, 2])
def test_a_fault_is_found_in_what_cannot_be_kept_and_beside_it(wrong: int, tmp_path: Path) -> None:
    status, findings, _ = run(tmp_path, "Blocks", "--init", json.dumps({"wrong": wrong}))
    assert status == 1
    assert {finding["module"] for finding in findings} == {f"blocks.{wrong}"}
