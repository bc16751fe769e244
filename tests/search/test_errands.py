from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compilebisect.search.errands import Errands
from compilebisect.search.script_runner import ScriptRunner
from compilebisect.workers.supervisor import Supervisor


@pytest.fixture
def errands(tmp_path: Path) -> Iterator[Errands]:
    with Supervisor(dict(os.environ), tmp_path) as supervisor:
        supervisor.start()
        yield Errands(supervisor)


class Second(threading.Thread):
    """The second thread: `result` is what its function returns, or the error that it raises."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.result = error


def serve(errands: Errands, is_done: Callable[[], bool]) -> None:
    while not is_done():
        errands.serve(0.01)
        for worker, outcome in errands._supervisor.wait_any(errands.workers, 0.05):
            errands.finish(worker, outcome)


def test_the_owner_does_it_and_the_second_thread_gets_the_result(errands: Errands) -> None:
    second = Second(lambda: errands.do(lambda: threading.current_thread()))
    serve(errands, lambda: not second.is_alive())
    assert second.result is threading.current_thread()


def test_an_error_is_raised_where_it_was_asked_for(errands: Errands) -> None:
    second = Second(lambda: errands.do(lambda: 1 // 0))
    serve(errands, lambda: not second.is_alive())
    assert isinstance(second.result, ZeroDivisionError)


def test_a_script_runs_for_the_second_thread(errands: Errands, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.exit(7)", encoding="utf-8")
    second = Second(lambda: ScriptRunner(errands).run(script, timeout_s=60).status)
    serve(errands, lambda: not second.is_alive())
    assert second.result == 7


def test_closed_errands_interrupt_whoever_waits_or_asks(errands: Errands, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(600)", encoding="utf-8")
    waiting = Second(lambda: ScriptRunner(errands).run(script, timeout_s=600))
    serve(errands, lambda: bool(errands.workers))
    asking = Second(lambda: errands.do(lambda: None))
    errands.close()
    late = Second(lambda: errands.do(lambda: None))
    for second in (waiting, asking, late):
        second.join(10)
        assert isinstance(second.result, KeyboardInterrupt)


def test_an_interrupt_of_the_owner_is_raised_there_and_in_the_second_thread(errands: Errands) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    second = Second(lambda: errands.do(interrupt))
    with pytest.raises(KeyboardInterrupt):
        serve(errands, lambda: not second.is_alive())
    second.join(10)
    assert isinstance(second.result, KeyboardInterrupt)
