"""Measures seconds: on a CPU by the clock, on a GPU by events on the device."""

from __future__ import annotations

import time

import torch


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch left it without annotations


class Stopwatch:
    """A context manager that may be entered several times between two readings, whose seconds then add up.

    A GPU works behind the program's back, so the clock would tell how long it takes to hand the work over. Events stand
    in the device's own queue instead: from an empty queue before the call to the end of the last kernel after it.
    """

    def __init__(self, device: torch.device) -> None:
        """Args: where what is measured runs."""
        self._is_cuda = device.type == "cuda"
        self._device = device
        self._seconds = 0.0
        self._began = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> Stopwatch:
        """Start."""
        if self._is_cuda:
            stream = torch.cuda.current_stream(self._device)
            torch.cuda.synchronize(self._device)
            pair = (_event(), _event())
            self._events.append(pair)
            pair[0].record(stream)
        else:
            self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        if self._is_cuda:
            self._events[-1][1].record(torch.cuda.current_stream(self._device))
        else:
            self._seconds += time.perf_counter() - self._began

    def read(self) -> float:
        """Return the seconds since the last reading."""
        seconds, self._seconds = self._seconds, 0.0
        if self._events:
            torch.cuda.synchronize(self._device)
            seconds += sum(start.elapsed_time(end) for start, end in self._events) / 1000
            self._events.clear()
        return seconds
