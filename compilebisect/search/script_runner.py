"""Runs candidate scripts in forks of a process that has torch imported: 0.05 s instead of the 6 s of an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from compilebisect.core.messages import ScriptOrder
from compilebisect.repro.verify import ScriptEnd
from compilebisect.workers.call_outcome import Died, Outcome, TimedOut

# To tell a hang from what ends, this long is enough; the final script has its full deadline again.
HANG_S = 20.0
#: For processes that run scripts: a cached graph is found by the names of its operators, and a script may define some.
#: It is the default alone, since a script may be about that cache, without which that of AOTAutograd does nothing.
NO_CACHED_GRAPHS = {"TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT": "0"}
_MOST_TRIES = 3
_FUNCTION = "compilebisect.runtime.script_run:run_script"


class Caller(Protocol):
    """A worker that takes one call."""

    def call(self, function: str, payload: bytes, timeout_s: float, *, label: str = "") -> Outcome:
        """Send the call and wait for its outcome."""

    def kill(self) -> None:
        """Give the worker up."""


class Starter(Protocol):
    """Whoever starts workers: a supervisor, or its errands for a second thread."""

    def start_worker(self, *, fresh_interpreter: bool = False) -> Caller:
        """Start a worker."""


class ScriptRunner:
    """Runs scripts one at a time, each in a worker of its own, and counts them."""

    def __init__(self, starter: Starter, *, fresh_interpreter: bool = False) -> None:
        self._starter = starter
        self._fresh_interpreter = fresh_interpreter
        self.runs = 0

    def run(
        self, path: Path, *, timeout_s: float, args: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> ScriptEnd:
        """Run a script and wait for its end; at the deadline it is killed with all that it started."""
        self.runs += 1
        for _ in range(_MOST_TRIES):
            outcome = self._outcome(path, timeout_s, args, environment)
            if not (isinstance(outcome, (Died, TimedOut)) and outcome.is_blameless):
                break  # else the fork server went down, and the script is not to blame
        return _end(outcome)

    def _outcome(
        self, path: Path, timeout_s: float, args: Sequence[str], environment: Mapping[str, str] | None
    ) -> Outcome:
        order = ScriptOrder(path=str(path), args=tuple(args), environment={**(environment or {}), **NO_CACHED_GRAPHS})
        worker = self._starter.start_worker(fresh_interpreter=self._fresh_interpreter)
        try:
            return worker.call(_FUNCTION, msgspec.msgpack.encode(order), timeout_s, label=path.name)
        except BaseException:
            worker.kill()
            raise


def _end(outcome: Outcome) -> ScriptEnd:
    if isinstance(outcome, Died):
        return ScriptEnd(outcome.exit_code, outcome.output, outcome.seconds)
    if isinstance(outcome, TimedOut):
        return ScriptEnd(None, outcome.output, outcome.seconds)
    raise RuntimeError(f"a script cannot reply: {outcome}")
