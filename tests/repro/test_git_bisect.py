"""`git bisect run python repro_F1.py` finds the commit that brought a fault into a user's repository."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compilebisect.repro.script import write_script
from compilebisect.runtime.module_source import module_case
from tests.repro.faults import PRINT, fault_at

PLAIN = """import torch


class Scale(torch.nn.Module):
    def forward(self, x):
        return x * {factor}
"""
CHATTY = PLAIN.replace("        return", '        print("scaling")\n        return')
BROKEN = "import torch\nimport a_module_that_nobody_has\n"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.invalid")
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    ended = subprocess.run(
        ["git", *identity, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_git_bisect_finds_the_commit_and_skips_what_cannot_be_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    texts = [PLAIN, PLAIN, BROKEN, PLAIN, CHATTY, CHATTY, CHATTY]
    commits = []
    for number, text in enumerate(texts):
        (repository / "scaling.py").write_text(text.replace("{factor}", str(number + 2)), encoding="utf-8")
        git(repository, "add", "scaling.py")
        git(repository, "commit", "-q", "-m", f"version {number}")
        commits.append(git(repository, "rev-parse", "HEAD").strip())
    monkeypatch.syspath_prepend(str(repository))
    scaling = importlib.import_module("scaling")
    fault = fault_at(scaling.Scale, "print(", type=PRINT)
    case = module_case(scaling.Scale(), (torch.randn(3),), {}, fault, import_user_code=True)
    write_script(case, repository / "repro_F1.py")
    git(repository, "bisect", "start", "HEAD", commits[0])
    said = git(repository, "bisect", "run", sys.executable, "-B", "repro_F1.py")
    assert f"{commits[4]} is the first bad commit" in said
