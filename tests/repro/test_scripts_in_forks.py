"""Scripts in forks of a process that has torch and its compiler: they end as they would in a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilebisect.search.script_runner import ScriptRunner

SCRIPT = """
import sys
import torch

library = torch.library.Library("script_ops", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CPU")
library.impl("twice", lambda x: x * {factor}, "CompositeImplicitAutograd")
compiled = torch.compile(lambda x: torch.ops.script_ops.twice(x))
sys.exit(not torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0)))
"""


@pytest.mark.slow
def test_a_script_gets_no_graph_that_was_cached_before_its_operator_was_changed(
    runner: ScriptRunner, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    ends = []
    for factor in (2, 3, 2):
        script.write_text(SCRIPT.format(factor=factor), encoding="utf-8")
        ends.append(runner.run(script, timeout_s=120).status)
    assert ends == [0, 1, 0]
