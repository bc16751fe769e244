"""Lets a second thread use the workers, which belong to one thread alone."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from compilebisect.workers.call_outcome import Outcome
from compilebisect.workers.remote_worker import Worker
from compilebisect.workers.supervisor import Supervisor

T = TypeVar("T")


class Errands:
    """What a second thread leaves to the thread that owns the supervisor, which serves it between its own steps.

    `do` and `start_worker` belong to the second thread, all else to the owner. Once `close` was called, whatever the
    second thread waits for or asks for ends in a `KeyboardInterrupt`.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._orders: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._changed = threading.Condition()
        self._waiting: dict[Worker, Future[Outcome]] = {}
        self._is_closed = False

    # --- the second thread ---------------------------------------------------------------------------------------

    def do(self, function: Callable[[], T]) -> T:
        """Have the owner run a function, and return what it returns or raise what it raises."""
        results: list[T] = []
        done: Future[None] = Future()
        with self._changed:
            if self._is_closed:
                raise KeyboardInterrupt
            self._orders.append((lambda: results.append(function()), done))
            self._changed.notify()
        done.result()
        return results[0]

    def start_worker(self, *, fresh_interpreter: bool = False) -> ErrandWorker:
        """Start a worker whose calls this thread may wait for."""
        worker = self.do(lambda: self._supervisor.start_worker(fresh_interpreter=fresh_interpreter))
        return ErrandWorker(self, worker)

    # --- the owner -----------------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[Worker]:
        """Workers whose outcome the second thread waits for."""
        return list(self._waiting)

    def watch(self, worker: Worker, future: Future[Outcome]) -> None:
        """Give the outcome of a worker's call to whoever waits for it."""
        self._waiting[worker] = future

    def serve(self, patience_s: float = 0.0) -> None:
        """Do what was asked for since the last time, waiting so many seconds for something to be asked."""
        with self._changed:
            if not self._orders and patience_s:
                self._changed.wait(patience_s)
            orders = list(self._orders)
            self._orders.clear()
        while orders:
            order, done = orders.pop(0)
            try:
                order()
            except BaseException as error:
                done.set_exception(error)
                if not isinstance(error, Exception):
                    with self._changed:
                        self._orders.extendleft(reversed(orders))
                    raise
            else:
                done.set_result(None)

    def finish(self, worker: Worker, outcome: Outcome) -> None:
        """Hand over the outcome of a worker's call."""
        self._waiting.pop(worker).set_result(outcome)

    def close(self) -> None:
        """Let go of the second thread: it does not get what it waits for, and its workers are killed."""
        with self._changed:
            self._is_closed = True
            orders = list(self._orders)
            self._orders.clear()
        for _, done in orders:
            done.set_exception(KeyboardInterrupt())
        for worker, outcome in self._waiting.items():
            worker.kill()
            outcome.set_exception(KeyboardInterrupt())
        self._waiting.clear()


class ErrandWorker:
    """A worker as the second thread has it."""

    def __init__(self, errands: Errands, worker: Worker) -> None:
        self._errands = errands
        self._worker = worker

    def call(self, function: str, payload: bytes, timeout_s: float, *, label: str = "") -> Outcome:
        """Send one call and wait for its outcome; see `Worker.call`."""
        future: Future[Outcome] = Future()

        def send() -> None:
            self._worker.send(function, payload, timeout_s=timeout_s, label=label)
            self._errands.watch(self._worker, future)

        self._errands.do(send)
        return future.result()

    def kill(self) -> None:
        """Leave it: who closes the errands kills their workers."""
