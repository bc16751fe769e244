from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from compilebisect.search.script_runner import ScriptRunner
from compilebisect.workers.supervisor import Supervisor


@pytest.fixture(scope="session")
def plain_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptRunner]:
    """Runs scripts that need no torch."""
    with Supervisor(dict(os.environ), tmp_path_factory.mktemp("runner")) as supervisor:
        supervisor.start()
        yield ScriptRunner(supervisor)
