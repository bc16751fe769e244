"""Where the work is done: a scratch folder in the tool's own cache, the environment for compiling, a supervisor."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from compilebisect.cache_folder import CACHE_VARIABLE, HEADERS_VARIABLE, cache_folder, worker_environment
from compilebisect.errors import CannotTestError
from compilebisect.scratch_folder import scratch_folder, sweep_temporary
from compilebisect.workers.supervisor import Supervisor

PRELOAD = ("compilebisect.runtime.preload",)


class Workplace(msgspec.Struct, frozen=True):
    """A supervisor whose server is not started yet, a folder for files of this run alone, and their environment."""

    supervisor: Supervisor
    scratch: Path
    environment: dict[str, str]


@contextmanager
def workplace(on_wait: Callable[[], None] = lambda: None) -> Iterator[Workplace]:
    """Set up a workplace and clear it away at the end; `on_wait` as for `Supervisor`.

    Raises:
        CannotTestError: there is no place for the tool's files.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch, lock = scratch_folder(folder)
    except OSError as error:
        raise CannotTestError(
            f"the cache folder cannot be written: {error.strerror or error}",
            where=str(folder),
            fix=f"Make it writable, or name another one in {CACHE_VARIABLE}.",
        ) from error
    try:
        environment = worker_environment(os.environ, folder)
        sweep_temporary(Path(environment[HEADERS_VARIABLE]))
        with Supervisor(
            environment, scratch, PRELOAD, journal=scratch / "journal.jsonl", on_wait=on_wait
        ) as supervisor:
            yield Workplace(supervisor, scratch, environment)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        lock.close()
