from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compilebisect.workers.supervisor import Supervisor


def is_running(pid: int) -> bool:
    """Zombies count as ended: who adopted them may be slow to reap."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.fixture
def wait_gone() -> Callable[[int], None]:
    def wait(pid: int) -> None:
        until = time.monotonic() + 5
        while is_running(pid):
            assert time.monotonic() < until, f"process {pid} still runs"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    with Supervisor(dict(os.environ), tmp_path_factory.mktemp("scratch"), ["worker_handlers"]) as supervisor:
        yield supervisor
