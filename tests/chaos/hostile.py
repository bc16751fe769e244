"""Runs the command as users do, in a process of its own, under whatever may happen to it, and collects what is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from compilebisect.cache_folder import cache_folder

_MARK = "COMPILEBISECT_CHAOS_MARK"
_ROOT = Path(__file__).parents[2]


class End(NamedTuple):
    """How a command ended, and what it left behind."""

    status: int
    stdout: str
    stderr: str
    processes: list[str]
    scratch: list[str]

    @property
    def said(self) -> str:
        """The two streams together, for messages of tests."""
        return f"exit {self.status}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


class Command:
    """One `compilebisect` process, started by a shell so that its streams can be closed, and watched."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        redirect: str = "",
        before: str = "",
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.cache = own_cache(folder)
        environment = {
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "COMPILEBISECT_CACHE_DIR": str(self.cache),
            _MARK: self.mark,
            **(env or {}),
        }
        line = " ".join(map(_quoted, (sys.executable, "-m", "compilebisect", *words)))
        self.process = subprocess.Popen(
            ["bash", "-c", f"{before + '; ' if before else ''}exec {line} {redirect}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._readers = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in self._texts]
        for reader in self._readers:
            reader.start()
        if stdin is not None and self.process.stdin is not None:
            self.process.stdin.write(stdin)
            self.process.stdin.close()

    def _read(self, name: str) -> None:
        stream = getattr(self.process, name)
        with stream:
            for line in stream:
                self._texts[name].append(line)

    @property
    def stderr(self) -> str:
        return "".join(self._texts["stderr"])

    def wait_for(self, pattern: str, timeout_s: float = 240.0) -> str:
        """Wait until a line of standard error matches, and return it."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            for line in list(self._texts["stderr"]):
                if re.search(pattern, line):
                    return line
            if self.process.poll() is not None:
                break
            time.sleep(0.005)
        raise AssertionError(f"no line matches {pattern!r} in:\n{self.stderr}\n(status {self.process.poll()})")

    def send(self, *numbers: signal.Signals, pause_s: float = 0.01) -> None:
        """Send signals to the command's own process."""
        for position, number in enumerate(numbers):
            if position:
                time.sleep(pause_s)
            if self.process.poll() is None:
                self.process.send_signal(number)

    def fork_server(self) -> int:
        """Return the process id of the fork server."""
        for line in self._marked():
            pid, _, command = line.partition(" ")
            if "fork_server" in command and _parent(int(pid)) == self.process.pid:
                return int(pid)
        raise AssertionError("no fork server runs")

    def end(self, timeout_s: float = 300.0) -> End:
        """Wait for the end; at the time limit all is killed and the test fails."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            stacks = self._marked()
            for line in stacks:
                os.kill(int(line.split()[0]), signal.SIGKILL)
            raise AssertionError(f"not ended after {timeout_s} s:\n{self.stderr}\n{stacks}") from None
        for reader in self._readers:
            reader.join(10)
        until = time.monotonic() + 5.0  # what was killed needs a moment to be gone
        while (processes := self._marked()) and time.monotonic() < until:
            time.sleep(0.05)
        scratch = [path.name for path in self.cache.glob("scratch-*") if path.is_dir()]
        return End(status, "".join(self._texts["stdout"]), self.stderr, processes, scratch)

    def _marked(self) -> list[str]:
        """List the living processes that come from this command, each as its id and command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if f"{_MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                        found.append(f"{entry.name} {command}")
            except OSError:
                continue
        return found


def run_command(folder: Path, *words: str, timeout_s: float = 300.0, **options: Any) -> End:
    """Run a command to its end."""
    return Command(folder, *words, **options).end(timeout_s)


def report_in(folder: Path) -> dict[str, Any]:
    """Return the report of an output folder."""
    data: dict[str, Any] = json.loads((folder / "report.json").read_bytes())
    return data


def check_nothing_left(end: End) -> None:
    assert not end.processes, f"{end.processes}\n{end.said}"
    assert not end.scratch, f"{end.scratch}\n{end.said}"


def check_no_excuse(end: End) -> None:
    """Check that nobody blames the tool, and that the status is one of the contract."""
    assert "itself failed" not in end.stderr, end.said
    assert "Traceback" not in end.stderr, end.said
    assert end.status in (0, 1, 2, 125, 130), end.said


def own_cache(folder: Path) -> Path:
    """Return a cache folder for scratch files of this test alone, with the warm caches of torch in it."""
    cache = folder / "cache"
    if not cache.exists():
        cache.mkdir()
        shared = cache_folder()
        shared.mkdir(parents=True, exist_ok=True)
        for path in shared.glob("torch-*"):
            (cache / path.name).symlink_to(path)
    return cache


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"
