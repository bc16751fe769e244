"""The `init` command, as a process of its own: what it prints, writes and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compilebisect.cli.init import spec_text
from compilebisect.core.input_spec import parse_spec

MODEL = """
print("loading the model")
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, 2)

    def forward(self, x, return_all: bool = False):
        return self.layer(x)

class Sized(nn.Module):
    def __init__(self, width):
        super().__init__()

    def forward(self, image):
        return image

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        raise ValueError("not today")

def dies():
    import os
    os.abort()
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def init(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "compilebisect", "init", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_spec_goes_to_standard_output_and_what_user_code_prints_does_not(model_file: Path) -> None:
    done = init(f"{model_file}:Net", "--init", '{"width": 6}')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"kwargs": {"x": ["batch", 6]}, "dims": {"batch": [2]}}
    assert "loading the model" in done.stderr
    assert sorted(path.name for path in model_file.parent.iterdir()) == ["model.py"]


def test_class_that_cannot_be_built_alone_is_known_by_its_signature(model_file: Path) -> None:
    done = init(f"{model_file}:Sized")
    assert json.loads(done.stdout)["kwargs"] == {"image": ["batch", 3, 64, 64]}


def test_file_is_written_and_not_overwritten_unless_forced(model_file: Path) -> None:
    spec = model_file.parent / "spec.json"
    done = init(f"{model_file}:Net", "-o", str(spec))
    assert (done.returncode, done.stdout) == (0, "")
    assert str(spec) in done.stderr
    parse_spec(json.loads(spec.read_text()))
    spec.write_text("mine")
    refused = init(f"{model_file}:Net", "-o", str(spec))
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert spec.read_text() == "mine"
    assert init(f"{model_file}:Net", "-o", str(spec), "--force").returncode == 0
    parse_spec(json.loads(spec.read_text()))


@pytest.mark.parametrize(
    ("name", "more", "status", "message"),
    [
        ("Nett", [], 2, "did you mean 'Net'?"),
        ("Net", ["--init", '{"widht": 3}'], 2, "did you mean 'width'?"),
        ("Net", ["--init", "[1]"], 2, "must be a JSON object"),
        ("Net", ["-o", "no/such/folder/spec.json"], 2, "there is no folder"),
        ("Broken", [], 125, "not today"),
        ("dies", [], 125, "SIGABRT"),
    ],
)
def test_fault_is_one_message(model_file: Path, name: str, more: list[str], status: int, message: str) -> None:
    done = init(f"{model_file}:{name}", *more)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert done.stdout == ""
    assert "compilebisect/runtime" not in done.stderr


def test_text_of_a_spec_has_one_argument_on_each_line() -> None:
    spec = {"args": [[1, 2]], "kwargs": {"x": {"shape": ["n"]}, "y": {"value": None}}, "dims": {"n": [2]}}
    text = spec_text(spec)
    assert json.loads(text) == spec
    assert '    "x": {"shape": ["n"]},\n    "y": {"value": null}\n' in text
    assert json.loads(spec_text({"kwargs": {}})) == {"kwargs": {}}
