from __future__ import annotations

import time
from pathlib import Path

import pytest

from compilebisect.search.script_runner import ScriptRunner


def run(runner: ScriptRunner, folder: Path, text: str, *, timeout_s: float = 60, **options):
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    return runner.run(script, timeout_s=timeout_s, **options)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(1)", 1),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit('words')", 1),
        ("import os; os._exit(7)", 7),
        ("raise ValueError('not handled')", 125),
        ("import os; os.kill(os.getpid(), 9)", None),
        ("import sys, os; sys.excepthook = lambda *error: os._exit(3)\n1 / 0", 3),
    ],
)
def test_a_script_ends_with_its_own_status(plain_runner: ScriptRunner, tmp_path: Path, text: str, status: int | None):
    assert run(plain_runner, tmp_path, text).status == status


def test_a_script_runs_as_main_in_its_folder_with_its_arguments(plain_runner: ScriptRunner, tmp_path: Path):
    (tmp_path / "beside.py").write_text("WORD = 'beside'", encoding="utf-8")
    text = "import os, sys, beside\nprint(__name__, sys.argv[1:], os.getcwd(), beside.WORD, os.environ['PLACE'])"
    end = run(plain_runner, tmp_path, text, args=("--device", "cpu"), environment={"PLACE": "here"})
    assert end.output.split() == ["__main__", "['--device',", "'cpu']", str(tmp_path), "beside", "here"]


def test_a_script_that_does_not_end_is_killed_with_its_children(plain_runner: ScriptRunner, tmp_path: Path):
    text = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('pid', 'w').write(str(child.pid))\ntime.sleep(60)"
    )
    assert run(plain_runner, tmp_path, text, timeout_s=1.0).status is None
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    deadline = time.monotonic() + 10
    while stat.exists() and stat.read_text().split(") ")[1][0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not stat.exists() or stat.read_text().split(") ")[1][0] == "Z"


def test_one_run_leaves_nothing_behind_for_the_next(plain_runner: ScriptRunner, tmp_path: Path):
    run(plain_runner, tmp_path, "import json; json.marked = True")
    assert run(plain_runner, tmp_path, "import json, sys; sys.exit(hasattr(json, 'marked'))").status == 0
