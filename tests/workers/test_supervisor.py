from __future__ import annotations

import ast
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compilebisect.core.stack_dump import frames_from_faulthandler
from compilebisect.workers.call_outcome import Died, Failed, Replied, TimedOut
from compilebisect.workers.journal import unfinished_labels
from compilebisect.workers.remote_worker import Worker
from compilebisect.workers.supervisor import Supervisor

LONG_S = 60.0


@pytest.fixture(params=["forked", "fresh"])
def worker(request: pytest.FixtureRequest, supervisor: Supervisor) -> Iterator[Worker]:
    worker = supervisor.start_worker(fresh_interpreter=request.param == "fresh")
    yield worker
    worker.stop()
    assert worker.is_gone


@pytest.fixture
def forked(supervisor: Supervisor) -> Iterator[Worker]:
    worker = supervisor.start_worker()
    yield worker
    worker.stop()


def test_call_returns_the_functions_bytes_and_state_lives_as_long_as_the_worker(worker: Worker) -> None:
    outcomes = [worker.call("worker_handlers:count", b"", LONG_S) for _ in range(3)]
    assert [outcome.payload for outcome in outcomes if isinstance(outcome, Replied)] == [b"1", b"2", b"3"]
    assert worker.is_alive


def test_worker_has_its_own_session_no_input_and_the_supervisors_import_path(worker: Worker) -> None:
    outcome = worker.call("worker_handlers:describe_process", b"", LONG_S)
    assert isinstance(outcome, Replied)
    pid, _, session, stdin, folder, path, _ = ast.literal_eval(outcome.payload.decode())
    assert pid == worker.pid == session
    assert stdin == os.devnull
    assert folder == os.getcwd()
    assert str(Path(__file__).parent) in path
    assert "" not in path


def test_large_payloads_pass_both_ways(forked: Worker) -> None:
    payload = os.urandom(1 << 20) * 100
    outcome = forked.call("worker_handlers:echo", payload, LONG_S)
    assert isinstance(outcome, Replied)
    assert outcome.payload == payload


def test_segfault_is_told_with_phase_stack_and_output_of_that_call(worker: Worker) -> None:
    worker.call("worker_handlers:print_much", b"3", LONG_S)
    notes: list[str] = []
    outcome = worker.call("worker_handlers:segfault", b"", LONG_S, on_note=notes.append)
    assert isinstance(outcome, Died)
    assert (outcome.signal, outcome.exit_code, outcome.phase) == ("SIGSEGV", None, "running")
    assert notes == ["dynamo", "running"]
    assert outcome.output == "about to crash\n"
    assert [frame.function for frame in frames_from_faulthandler(outcome.stack)][:2] == ["string_at", "segfault"]
    assert not outcome.is_blameless
    assert not outcome.is_memory_suspected
    assert not worker.is_alive


def test_abort_is_told(forked: Worker) -> None:
    outcome = forked.call("worker_handlers:abort", b"", LONG_S)
    assert isinstance(outcome, Died)
    assert outcome.signal == "SIGABRT"
    assert frames_from_faulthandler(outcome.stack)[0].function == "abort"


def test_exit_code_is_told(worker: Worker) -> None:
    outcome = worker.call("worker_handlers:leave_at_once", b"", LONG_S)
    assert isinstance(outcome, Died)
    assert (outcome.signal, outcome.exit_code) == (None, 3)


def test_kill_from_elsewhere_raises_suspicion_of_lack_of_memory(forked: Worker) -> None:
    outcome = forked.call("worker_handlers:kill_itself", b"", LONG_S)
    assert isinstance(outcome, Died)
    assert outcome.is_memory_suspected
    assert outcome.memory_kills in (None, 0)


@pytest.mark.parametrize(
    ("function", "type_name", "text"),
    [
        ("fail", "ValueError", "wrong \\udc80"),
        ("fail_unprintably", "worker_handlers.Unprintable", "RuntimeError"),
        ("leave", "SystemExit", "enough"),
        ("give_text", "TypeError", "str instead of bytes"),
        ("missing", "AttributeError", "missing"),
    ],
)
def test_exception_comes_back_as_data_and_the_worker_stays(
    forked: Worker, function: str, type_name: str, text: str
) -> None:
    outcome = forked.call(f"worker_handlers:{function}", b"", LONG_S)
    assert isinstance(outcome, Failed)
    assert outcome.type == type_name
    assert text in outcome.message
    assert "Traceback" in outcome.traceback
    assert forked.call("worker_handlers:echo", b"next", LONG_S).payload == b"next"  # type: ignore[union-attr]


@pytest.mark.parametrize("function", ["hang", "hang_in_c", "hang_deafly"])
def test_hang_ends_at_the_deadline_with_the_stack(
    worker: Worker, function: str, wait_gone: Callable[[int], None]
) -> None:
    assert isinstance(worker.call("worker_handlers:echo", b"", LONG_S), Replied)
    started = time.monotonic()
    outcome = worker.call(f"worker_handlers:{function}", b"", 0.3)
    assert isinstance(outcome, TimedOut)
    assert outcome.phase == ("backend" if function == "hang" else "")
    functions = [frame.function for frame in frames_from_faulthandler(outcome.stack)]
    assert function in functions
    assert 0.3 < outcome.seconds <= time.monotonic() - started < 15
    assert not worker.is_alive
    assert worker.pid is not None
    wait_gone(worker.pid)


def test_stopped_process_ends_at_the_deadline_too(forked: Worker) -> None:
    outcome = forked.call("worker_handlers:stop_itself", b"", 0.3)
    assert isinstance(outcome, TimedOut)
    assert forked.is_gone


@pytest.mark.parametrize("how", ["group", "daemon", "crash"])
def test_grandchildren_end_with_their_worker(
    forked: Worker, how: str, tmp_path: Path, wait_gone: Callable[[int], None]
) -> None:
    file = tmp_path / "pid"
    outcome = forked.call("worker_handlers:start_child", f"{how}:{file}".encode(), 1.0)
    assert isinstance(outcome, Died if how == "crash" else TimedOut)
    wait_gone(int(file.read_text()))


def test_output_of_earlier_calls_is_left_out(forked: Worker) -> None:
    assert isinstance(forked.call("worker_handlers:print_much", b"3000", LONG_S), Replied)
    outcome = forked.call("worker_handlers:leave_at_once", b"", LONG_S)
    assert isinstance(outcome, Died)
    assert outcome.output == ""


def test_endless_output_does_not_fill_the_disk(forked: Worker) -> None:
    outcome = forked.call("worker_handlers:print_forever", b"", 1.5)
    assert isinstance(outcome, TimedOut)
    assert len(outcome.output) <= 4096
    printed_lines = int(re.findall(r" (\d+)\n", outcome.output)[-1])
    assert forked.log.stat().st_size < printed_lines * 1000


def test_broken_or_abused_socket_ends_the_worker_only(supervisor: Supervisor) -> None:
    workers = [supervisor.start_worker(), supervisor.start_worker(), supervisor.start_worker()]
    workers[0].send("worker_handlers:break_socket", b"", timeout_s=LONG_S)
    workers[1].send("worker_handlers:write_rubbish", b"", timeout_s=LONG_S)
    assert isinstance(workers[2].call("worker_handlers:echo", b"", LONG_S), Replied)
    ended = dict(supervisor.wait_any(workers))
    while len(ended) < 2:
        ended.update(supervisor.wait_any(workers))
    for worker in workers[:2]:
        outcome = ended[worker]
        assert isinstance(outcome, Died)
        assert outcome.killed_by_supervisor
        assert not outcome.is_memory_suspected
    workers[2].stop()


def test_processes_forked_by_a_function_cannot_disturb_the_socket(forked: Worker) -> None:
    notes: list[str] = []
    outcome = forked.call("worker_handlers:note_from_fork", b"", LONG_S, on_note=notes.append)
    assert isinstance(outcome, Replied)
    assert notes == []


def test_retiring_worker_replies_and_leaves(worker: Worker, wait_gone: Callable[[int], None]) -> None:
    outcome = worker.call("worker_handlers:retire", b"last", LONG_S)
    assert isinstance(outcome, Replied)
    assert (outcome.payload, outcome.retired) == (b"last", True)
    assert not worker.is_alive
    assert worker.pid is not None
    wait_gone(worker.pid)


def test_death_between_calls_is_not_blamed_on_the_next_call(forked: Worker, wait_gone: Callable[[int], None]) -> None:
    assert isinstance(forked.call("worker_handlers:die_later", b"0.05", LONG_S), Replied)
    assert forked.pid is not None
    wait_gone(forked.pid)
    outcome = forked.call("worker_handlers:echo", b"", LONG_S)
    assert isinstance(outcome, Died)
    assert (outcome.exit_code, outcome.is_blameless) == (4, True)


def test_each_parallel_call_has_its_own_deadline(supervisor: Supervisor) -> None:
    workers = [supervisor.start_worker() for _ in range(4)]
    for worker, (function, payload, timeout_s) in zip(
        workers,
        [("hang", b"", 0.5), ("sleep", b"0.8", LONG_S), ("hang_in_c", b"", 0.1), ("segfault", b"", LONG_S)],
        strict=True,
    ):
        worker.send(f"worker_handlers:{function}", payload, timeout_s=timeout_s)
    ended = {}
    while any(worker.is_busy for worker in workers):
        ended.update(dict(supervisor.wait_any(workers)))
    assert [type(ended[worker]) for worker in workers] == [TimedOut, Replied, TimedOut, Died]
    assert supervisor.wait_any(workers) == []
    workers[1].stop()


def test_wait_returns_empty_when_its_time_is_up(supervisor: Supervisor, forked: Worker) -> None:
    forked.send("worker_handlers:sleep", b"0.5", timeout_s=LONG_S)
    assert supervisor.wait_any([forked], 0.05) == []
    with pytest.raises(RuntimeError, match="has a call already"):
        forked.send("worker_handlers:echo", b"", timeout_s=LONG_S)
    [(worker, outcome)] = supervisor.wait_any([forked])
    assert worker is forked
    assert isinstance(outcome, Replied)


def test_reply_that_waits_unread_behind_notes_is_no_timeout(supervisor: Supervisor, forked: Worker) -> None:
    assert isinstance(forked.call("worker_handlers:echo", b"", LONG_S), Replied)
    forked.send("worker_handlers:note_much", b"50", timeout_s=0.5)
    time.sleep(1.0)  # the supervisor is busy elsewhere
    [(_, outcome)] = supervisor.wait_any([forked])
    assert isinstance(outcome, Replied)


def test_workers_leak_no_descriptors_and_start_fast(supervisor: Supervisor) -> None:
    def start_and_stop() -> int:
        worker = supervisor.start_worker()
        outcome = worker.call("worker_handlers:count_descriptors", b"", LONG_S)
        worker.stop()
        assert isinstance(outcome, Replied)
        return int(outcome.payload)

    in_worker = start_and_stop()
    here = len(os.listdir("/proc/self/fd"))
    started = time.monotonic()
    assert {start_and_stop() for _ in range(200)} == {in_worker}
    print(f"{(time.monotonic() - started) * 5:.1f} ms from start to end of a worker")
    assert len(os.listdir("/proc/self/fd")) == here


def test_import_errors_of_the_preload_are_data(tmp_path: Path) -> None:
    with Supervisor(dict(os.environ), tmp_path, ["json", "no_such_module"]) as supervisor:
        ready = supervisor.wait_ready(LONG_S)
        assert ready is not None
        assert list(ready.import_errors) == ["no_such_module"]
        assert ready.import_errors["no_such_module"].type == "ModuleNotFoundError"
        assert ready.threads == 1


def test_preload_that_crashes_is_blamed_on_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing_module.py").write_text("print('dying', flush=True)\nimport os\nos.abort()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Supervisor(dict(os.environ), tmp_path, ["crashing_module"]) as supervisor:
        outcome = supervisor.start_worker().call("worker_handlers:echo", b"", LONG_S)
        assert isinstance(outcome, Died)
        assert outcome.is_blameless
        assert "dying" in outcome.output
        assert "crashing_module.py" in outcome.output
        assert supervisor.wait_ready(LONG_S) is None


def test_preload_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hanging_module.py").write_text("import time\ntime.sleep(100)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Supervisor(dict(os.environ), tmp_path, ["hanging_module"], start_timeout_s=0.3) as supervisor:
        outcome = supervisor.start_worker().call("worker_handlers:echo", b"", LONG_S)
        assert isinstance(outcome, TimedOut)
        assert outcome.is_blameless


def test_lack_of_processes_is_blamed_on_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os\ndef fork():\n    raise OSError('no more processes')\nos.fork = fork\n"
    (tmp_path / "fork_forbidding_module.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with Supervisor(dict(os.environ), tmp_path, ["fork_forbidding_module"]) as supervisor:
        outcome = supervisor.start_worker().call("worker_handlers:echo", b"", LONG_S)
        assert isinstance(outcome, Died)
        assert outcome.is_blameless
        assert "no more processes" in outcome.output


def test_environment_is_exactly_the_given_one(tmp_path: Path) -> None:
    with Supervisor({"PATH": os.environ["PATH"], "MARK": "1"}, tmp_path) as supervisor:
        outcome = supervisor.start_worker().call("worker_handlers:describe_process", b"", LONG_S)
    assert isinstance(outcome, Replied)
    environ = ast.literal_eval(outcome.payload.decode())[-1]
    assert environ["MARK"] == "1"
    assert "HOME" not in environ


def test_killed_fork_server_ends_its_workers_and_is_started_again(
    tmp_path: Path, wait_gone: Callable[[int], None]
) -> None:
    with Supervisor(dict(os.environ), tmp_path) as supervisor:
        worker = supervisor.start_worker()
        outcome = worker.call("worker_handlers:describe_process", b"", LONG_S)
        assert isinstance(outcome, Replied)
        server = ast.literal_eval(outcome.payload.decode())[1]
        worker.send("worker_handlers:start_child", f"group:{tmp_path / 'pid'}".encode(), timeout_s=LONG_S)
        while not (tmp_path / "pid").exists():
            assert supervisor.wait_any([worker], 0.05) == []
        supervisor.wait_any([worker], 0.1)
        os.kill(server, signal.SIGKILL)
        [(_, ended)] = supervisor.wait_any([worker])
        assert isinstance(ended, Died)
        assert ended.is_blameless
        assert worker.pid is not None
        wait_gone(worker.pid)
        wait_gone(int((tmp_path / "pid").read_text()))
        assert isinstance(supervisor.start_worker().call("worker_handlers:echo", b"", LONG_S), Replied)


def test_close_ends_busy_workers_at_once(tmp_path: Path, wait_gone: Callable[[int], None]) -> None:
    with Supervisor(dict(os.environ), tmp_path) as supervisor:
        workers = [supervisor.start_worker() for _ in range(3)]
        for worker in workers:
            worker.send("worker_handlers:hang_deafly", b"", timeout_s=LONG_S)
        while not all(worker.pid for worker in workers):
            assert supervisor.wait_any(workers, 0.05) == []
        started = time.monotonic()
    assert time.monotonic() - started < 5
    for worker in workers:
        assert worker.pid is not None
        wait_gone(worker.pid)


def test_journal_names_the_calls_that_were_begun_and_not_finished(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    with Supervisor(dict(os.environ), tmp_path, journal=journal) as supervisor:
        worker = supervisor.start_worker()
        worker.call("worker_handlers:echo", b"", LONG_S, label="a")
        worker.call("worker_handlers:fail", b"", LONG_S, label="b")
        worker.send("worker_handlers:hang", b"", timeout_s=LONG_S, label="c")
        assert unfinished_labels(journal) == ["c"]
        with open(journal, "ab") as file:
            file.write(b'{"call": 4, "la')
        assert unfinished_labels(journal) == ["c"]
