"""Fresh interpreters that import torch and its compiler while a script is still being made, and wait for it.

These imports take from 5 s to 12 s, which is most of what a proof takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from compilebisect.repro.script_process import ScriptProcess

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


class Standby:
    """A context manager around a number of interpreters; those that no script was given to end with it."""

    def __init__(self, number: int, *, python: str, env: Mapping[str, str]) -> None:
        self._processes: list[ScriptProcess] = []
        for _ in range(number):
            self._processes.append(ScriptProcess([python, "-c", _WAIT], env, takes_line=True))

    def __enter__(self) -> Standby:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.end()
        self._processes.clear()

    def run(self, script: Path, more_env: Mapping[str, str]) -> ScriptProcess | None:
        """Let one of them run a script, in the script's folder; returns its process, None where none is left.

        `more_env` comes on top of the environment that they were started with. Each runs one script.
        """
        told = json.dumps([str(script), str(script.parent), dict(more_env)])
        while self._processes:
            process = self._processes.pop()
            if process.tell(told):
                return process
            process.end()  # it has ended, for whatever reason: a plain one will tell
        return None
