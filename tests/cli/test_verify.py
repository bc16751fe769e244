"""The commands `verify` and `reduce` on scripts without torch: what counts as the fault, and what is refused."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compilebisect.__main__ import main
from tests.hostile_texts import TEXTS

HEAD = """# torch.compile: error: E
#
# Exit status: 1 the fault shows, 0 it does not, 125 this cannot be told.
import os, sys, time
"""
SHOWN = "print('FAULT SHOWN: expected e; observed error \"E\"; torch 2', flush=True)\n"
GONE = "print('FAULT GONE: expected e; observed nothing; torch 2', flush=True)\n"
HANGS = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open("pids", "w") as file: file.write(f"{child.pid} {os.getpid()}")
time.sleep(600)
"""


def written(folder: Path, text: str | bytes, name: str = "script.py") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (SHOWN + "os._exit(1)", 1),
        (GONE + "os._exit(0)", 0),
        (SHOWN + "os._exit(0)", 125),
        (GONE + "os._exit(1)", 125),
        (SHOWN + "1 / 0", 125),
        (SHOWN + "print('and more'); sys.exit(1)", 125),
        ("1 / 0", 125),
        ("sys.exit(1)", 125),
        ("sys.exit(0)", 125),
        ("this is no python", 125),
        ("import a_module_that_nobody_has", 125),
        ("x = '\x00'", 125),
        ("os.abort()", 125),
    ],
)
def test_the_fault_shows_only_where_the_script_says_so_last(tmp_path: Path, text: str, status: int) -> None:
    assert main(["verify", "--runs", "1", written(tmp_path, HEAD + text)]) == status


@pytest.mark.parametrize(
    ("text", "status"),
    [("import sys; sys.exit(1)", 1), ("import sys; sys.exit(0)", 0), ("1 / 0", 125), (b"\x7fELF\x00\xff", 125)],
)
def test_of_any_script_the_exit_status_counts(tmp_path: Path, text: str | bytes, status: int) -> None:
    script = written(tmp_path, text)
    assert main(["verify", "--runs", "1", script]) == 2
    assert main(["verify", "--runs", "1", "--any-script", script]) == status


FOREIGN = {
    "nothing": b"",
    "python": b"import sys\nsys.exit(1)\n",
    "binary": b"\x7fELF\x00\x01\xff\xfe" * 100,
    "the line alone": HEAD.split("\n")[2].encode(),
    "the first line alone": b"# torch.compile: error: E\nimport sys\n",
    "the head behind code": b"import os\n" + HEAD.encode(),
}


@pytest.mark.parametrize("command", ["verify", "reduce"])
@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_repro_script_is_refused(
    tmp_path: Path, name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, written(tmp_path, FOREIGN[name])]) == 2
    assert "no repro script" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.parametrize("place", ["/etc/passwd", "/dev/zero", "/proc/self/mem", sys.executable, "/", "missing.py"])
def test_places_of_the_system_are_no_scripts(place: str) -> None:
    assert main(["verify", place, "--runs", "1"]) == 2
    assert main(["reduce", place]) == 2


@pytest.mark.parametrize("place", ["/etc/passwd", sys.executable])
def test_files_of_the_system_show_no_fault_even_as_any_script(place: str) -> None:
    assert main(["verify", "--any-script", place, "--runs", "1"]) == 125


def test_what_a_script_prints_is_shown_shortened_and_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (*TEXTS, "\n::error::x", "x" * 5_000_000):
        raw = text.encode("utf-8", "surrogatepass")
        script = written(tmp_path, f"{HEAD}sys.stdout.buffer.write({raw!r})\n")
        assert main(["verify", "--runs", "1", script]) == 125
        lines = capsys.readouterr().out.split("\n")
        assert len(lines) == 3 and all(re.match("run 1: |this cannot be told", line) for line in lines[:2])
        assert max(map(len, lines)) < 3000
        assert all(line.isprintable() for line in lines)


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for_end(folder: Path) -> list[int]:
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    until = time.monotonic() + 20
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return [pid for pid in pids if is_running(pid)]


@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 130), ("SIGHUP", 130), ("SIGKILL", -9)])
def test_a_signal_to_verify_ends_its_scripts(tmp_path: Path, number: str, status: int) -> None:
    script = written(tmp_path, HEAD + HANGS)
    command = [sys.executable, "-m", "compilebisect", "verify", "--runs", "1", script]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
            time.sleep(0.05)
        process.send_signal(getattr(signal, number))
        _, said = process.communicate(timeout=60)
    assert process.returncode == status
    assert said.strip() in (b"interrupted", b"")
    assert not wait_for_end(tmp_path)


def test_verify_ends_at_its_deadline_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = written(tmp_path, HEAD + HANGS)
    assert main(["verify", "--runs", "1", "--timeout", "4", script]) == 125
    assert "no end after" in capsys.readouterr().out
    assert not wait_for_end(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "script.py"], "would replace the script"),
        (["-o", "link.py"], "would replace the script"),
        (["-o", "hard.py"], "would replace the script"),
        (["-o", "folder"], "is a folder"),
        (["-o", "mine.txt"], "exists and is no repro script"),
        (["-o", "no/such/x.py"], "has to lie in the folder"),
        (["-o", "../x.py"], "has to lie in the folder"),
    ],
)
def test_reduce_looks_where_it_will_write_before_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, HEAD)
    written(tmp_path, "mine", "mine.txt")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.py").symlink_to("script.py")
    (tmp_path / "hard.py").hardlink_to("script.py")
    assert main(["reduce", "script.py", *words]) == 2
    assert said in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "mine" and (tmp_path / "script.py").read_text() == HEAD


def test_reduce_needs_a_folder_that_it_can_write_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    script = written(tmp_path, HEAD)
    tmp_path.chmod(0o500)
    try:
        assert main(["reduce", script]) == 2
    finally:
        tmp_path.chmod(0o700)
    assert "nothing can be written" in capsys.readouterr().err
