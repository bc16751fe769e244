"""A run leaves nothing in the user's folders but its report and scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.hostile import check_nothing_left, run_command


@pytest.mark.slow
def test_an_inductor_run_leaves_nothing_in_home_and_temporary_folder(folder: Path) -> None:
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    before = {path.relative_to(folder) for path in folder.rglob("*")}
    words = ("--input-spec", "spec.json", "--out", "out", "--reduce-seconds", "1", "--repro-runs", "1")
    env = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    end = run_command(folder, "model.py:Net", *words, "--device", "cpu", env=env)
    assert end.status == 1, end.said
    check_nothing_left(end)
    after = {path.relative_to(folder) for path in folder.rglob("*") if "cache" not in path.parts}
    assert {str(path) for path in after - before} == {"out", "out/report.json", "out/repro_F1.py"}, end.said
