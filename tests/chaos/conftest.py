from __future__ import annotations

import json
from pathlib import Path

import pytest

# The first module breaks the graph; the others give signals time to come in between.
MODEL = """
import torch
from torch import nn


class Loud(nn.Module):
    def forward(self, x):
        print("loud")
        return x + 1


class Plain(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x):
        return self.layer(x) * self.factor


class Net(nn.Module):
    def __init__(self, number=6):
        super().__init__()
        self.loud = Loud()
        self.plain = nn.Sequential(*(Plain(k) for k in range(number)))

    def forward(self, x):
        return self.plain(self.loud(x))


class Healthy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).relu()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model that has one finding, `Net`, and a spec."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "spec.json").write_text(json.dumps({"x": [2, 4]}))
    return tmp_path


@pytest.fixture
def words() -> tuple[str, ...]:
    """A run that ends soon and finds one graph break."""
    quick = ("--backend", "eager", "--reduce-seconds", "5", "--repro-runs", "1", "--device", "cpu")
    return ("model.py:Net", "--input-spec", "spec.json", "--out", "out", *quick)
