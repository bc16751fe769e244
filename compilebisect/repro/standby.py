"""Fresh interpreters that import torch and its compiler while a script is still being made, and wait for it.

These imports take from 5 s to 12 s, which is most of what a proof takes.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# What `python SCRIPT` would do, but for the moment at which torch is imported.
_WAIT = """
import json, os, runpy, sys
try:
    import torch
    torch.compile(torch.nn.Identity())  # imports the compiler; nothing is compiled before a first call
except ImportError:
    pass
told = json.loads(sys.stdin.readline() or "null")
if told is None:
    sys.exit()
script, folder, more = told
os.environ.update(more)
os.chdir(folder)
sys.argv = [script]
if sys.path[:1] == [""]:
    sys.path[0] = folder
runpy.run_path(script, run_name="__main__")
"""


def start(
    command: Sequence[str], env: Mapping[str, str], folder: Path | None = None, *, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """Start an interpreter in a process group of its own, its output and errors in one pipe."""
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(env),
        cwd=folder,
        start_new_session=True,
    )


class Standby:
    """A context manager around a number of interpreters; those that no script was given to end with it."""

    def __init__(self, number: int, *, python: str, env: Mapping[str, str]) -> None:
        self._processes = [start([python, "-c", _WAIT], env, stdin=subprocess.PIPE) for _ in range(number)]

    def __enter__(self) -> Standby:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            _end(process)
        self._processes.clear()

    def run(self, script: Path, more_env: Mapping[str, str]) -> subprocess.Popen[str] | None:
        """Let one of them run a script, in the script's folder; returns its process, None where none is left.

        `more_env` comes on top of the environment that they were started with. Each runs one script.
        """
        told = json.dumps([str(script), str(script.parent), dict(more_env)])
        while self._processes:
            process = self._processes.pop()
            if process.poll() is None and _tell(process, told):
                return process
            _end(process)  # it has ended, for whatever reason: a plain one will tell
        return None


def _tell(process: subprocess.Popen[str], text: str) -> bool:
    """Hand over a line, the last one; returns whether it was taken."""
    assert process.stdin is not None
    pipe, process.stdin = process.stdin, None  # else `communicate` would write to it
    try:
        with pipe:
            pipe.write(text + "\n")
    except OSError:
        return False
    return True


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdin = None
    process.communicate()
