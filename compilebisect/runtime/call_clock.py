"""The seconds of one call of a module on its golden inputs."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from compilebisect.runtime import torch_internals
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.stopwatch import Stopwatch
from compilebisect.runtime.values import flatten, tensors_in

# Short calls are timed in rows: between two calls that are prepared anew the caches of the processor forget the code.
_ROW_S = 2e-3
_LONGEST_ROW = 50


class CallClock:
    """Takes the seconds of one call of a module, or of what was compiled from it.

    A module that leaves itself and its inputs as they were is called in a row within one run, where the call is short;
    else each call is prepared anew. A backward pass is timed with its forward.
    """

    def __init__(self, module: nn.Module, oracle: Oracle, *, train: bool) -> None:
        self.module = module
        self.oracle = oracle
        self._train = train
        tensors = [*module.parameters(), *module.buffers(), *(tensor for _, tensor in tensors_in(oracle.inputs))]
        cuda = [tensor.device for tensor in tensors if tensor.device.type == "cuda"]
        self.device = cuda[0] if cuda else torch.device("cpu")
        self._stopwatch = Stopwatch(self.device)
        self._row = 0

    def _begin(self) -> None:
        if self.device.type == "cuda":
            torch_internals.begin_cuda_graph_step()

    def warm_up(self, function: Callable[..., Any], times: int) -> None:
        """Call it so often without looking at the clock."""
        for _ in range(times):
            self._begin()
            self.oracle.run(function)

    def first(self, function: Callable[..., Any]) -> float:
        """Return the seconds of a call that is prepared anew, whatever is compiled in it included."""
        self._begin()
        self.oracle.run(function, self._stopwatch)
        return self._stopwatch.read()

    def measure_row(self, function: Callable[..., Any]) -> None:
        """Find out how long a row of calls may be; the function was called before."""
        record = self.oracle.run(function, self._stopwatch)
        seconds = self._stopwatch.read()
        is_repeatable = not self._train and not record.state and _is_alike(self.oracle.inputs, record.inputs_after)
        self._row = min(max(math.ceil(_ROW_S / max(seconds, 1e-9)), 1), _LONGEST_ROW) if is_repeatable else 0

    def seconds(self, function: Callable[..., Any]) -> float:
        """Return the seconds of one call."""
        if not self._row:
            return self.first(function)
        self._begin()
        self.oracle.run(functools.partial(self._call_in_a_row, function))
        return self._stopwatch.read() / self._row

    def _call_in_a_row(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        for _ in range(2 if self._row > 1 else 1):
            function(*args, **kwargs)
            self._begin()
        with self._stopwatch:
            for _ in range(self._row - 1):
                function(*args, **kwargs)
                self._begin()
            return function(*args, **kwargs)


@contextmanager
def without_gc() -> Iterator[None]:
    """Keep Python from collecting garbage meanwhile."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _is_alike(before: Any, after: Any) -> bool:
    """Return whether a run left its arguments as they were."""
    ours, theirs = list(flatten(before)), list(flatten(after))
    return len(ours) == len(theirs) and all(
        path == other and _is_same_leaf(leaf, left) for (path, leaf), (other, left) in zip(ours, theirs, strict=True)
    )


def _is_same_leaf(leaf: Any, other: Any) -> bool:
    if isinstance(leaf, torch.Tensor) and isinstance(other, torch.Tensor):
        return leaf.layout is torch.strided and not leaf.is_nested and torch.equal(leaf, other)
    return type(leaf) is type(other)
