from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from compilebisect.search.script_runner import ScriptRunner
from compilebisect.workers.supervisor import Supervisor
from compilebisect.workplace import PRELOAD
from tests.repro.proving import Prove, prove

USER_CODE = Path(__file__).parent / "user_code"


@pytest.fixture(scope="session")
def faulty() -> Iterator[ModuleType]:
    """The user's file, imported as the command does it: by a name that belongs to no package."""
    sys.path.insert(0, str(USER_CODE))
    try:
        yield importlib.import_module("faulty")
    finally:
        sys.path.remove(str(USER_CODE))


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptRunner]:
    """Runs scripts in forks of a process with torch, and with the caches of the test session."""
    folder = tmp_path_factory.mktemp("runner")
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(tmp_path_factory.mktemp("inductor"))
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with Supervisor({**environment, "OMP_WAIT_POLICY": "PASSIVE"}, folder, PRELOAD) as supervisor:
        supervisor.start()
        yield ScriptRunner(supervisor)


@pytest.fixture(scope="session")
def prover(runner: ScriptRunner) -> Prove:
    """Writes, runs and judges the scripts of cases."""
    return functools.partial(prove, runner)
