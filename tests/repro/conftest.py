from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

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
def script_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(tmp_path_factory.mktemp("inductor"))
    return {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
