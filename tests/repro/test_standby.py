"""Interpreters that stand by: what runs in them is what `python SCRIPT` runs, but for torch's being there already."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from compilebisect.repro.standby import Standby
from compilebisect.repro.verify import run_fresh

SCRIPT = """
import os, sys
print(__name__, __file__, sys.argv, os.getcwd(), sys.path[0], os.environ.get("REPRO_CODE"), sys.stdin.read() == "")
sys.exit(7)
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "stand_in").mkdir()
    (tmp_path / "stand_in" / "torch.py").write_text("""
class nn:
    Identity = object
compile = lambda module: print("torch is imported")
""")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "stand_in"), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "early_1.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_finds_what_it_finds_when_it_is_called(env, script):
    (plain,) = run_fresh(script, env={**env, "REPRO_CODE": "x"}, python=sys.executable, timeout_s=30)
    with Standby(1, python=sys.executable, env=env) as standby:
        (waited,) = run_fresh(
            script, env={**env, "REPRO_CODE": "x"}, python=sys.executable, timeout_s=30, standby=standby
        )
    assert plain.status == waited.status == 7
    assert waited.output == f"torch is imported\n{plain.output}"


def test_runs_for_which_none_is_left_start_their_own(env, script):
    with Standby(1, python=sys.executable, env=env) as standby:
        ends = run_fresh(script, env=env, python=sys.executable, timeout_s=30, runs=2, standby=standby)
    assert [end.status for end in ends] == [7, 7]
    assert sorted("torch" in end.output for end in ends) == [False, True]


def test_one_that_has_ended_is_replaced(env, script):
    with Standby(1, python="/bin/false", env=env) as standby:
        assert standby._processes[0].wait(30)
        (end,) = run_fresh(script, env=env, python=sys.executable, timeout_s=30, standby=standby)
    assert end.status == 7


def test_those_that_got_no_script_end_with_the_context(env):
    with Standby(2, python=sys.executable, env=env) as standby:
        processes = list(standby._processes)
    assert all(process.wait(0) for process in processes)
