"""Where the work is done: a scratch folder in the tool's own cache, the environment for compiling, a supervisor."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from compilebisect.cache_folder import cache_folder, worker_environment
from compilebisect.workers.supervisor import Supervisor

PRELOAD = ("compilebisect.runtime.preload",)


class Workplace(msgspec.Struct, frozen=True):
    """A supervisor whose server is not started yet, a folder for files of this run alone, and their environment."""

    supervisor: Supervisor
    scratch: Path
    environment: dict[str, str]


@contextmanager
def workplace() -> Iterator[Workplace]:
    """Set up a workplace and clear it away at the end."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=folder))
    try:
        environment = worker_environment(os.environ, folder)
        with Supervisor(environment, scratch, PRELOAD, journal=scratch / "journal.jsonl") as supervisor:
            yield Workplace(supervisor, scratch, environment)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
