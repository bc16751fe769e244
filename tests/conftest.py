from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault of the code under test.
settings.register_profile("compilebisect", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("compilebisect")


# Signals that are ignored around the tests (`nohup`, a job in the background) would be ignored by what they start.
for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)

# Tests in several processes are told the width of the terminal in this way, and what is printed would follow it.
os.environ.pop("COLUMNS", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Rewrite the golden files with what is shown now.")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the file of that name in the folder `golden` beside the test."""

    def compare(name: str, text: str) -> None:
        compare_with_file(request.path.parent / "golden" / name, text, request.config)

    return compare


@pytest.fixture
def golden_file(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with any file."""
    return lambda path, text: compare_with_file(path, text, request.config)


def compare_with_file(path: Path, text: str, config: pytest.Config) -> None:
    if config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    assert path.is_file(), f"{path} is missing; run pytest --update-golden"
    with path.open(encoding="utf-8", newline="") as file:
        expected = file.read()
    assert expected == text, f"{path.name} differs; look at it, and run pytest --update-golden if it is right"
