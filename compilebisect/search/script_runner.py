"""Runs candidate scripts in forks of a process that has torch imported: 0.05 s instead of the 6 s of an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from compilebisect.core.messages import ScriptOrder
from compilebisect.repro.verify import ScriptEnd
from compilebisect.workers.call_outcome import Died, Outcome, TimedOut
from compilebisect.workers.supervisor import Supervisor

# To tell a hang from what ends, this long is enough; the final script has its full deadline again.
HANG_S = 20.0
_FUNCTION = "compilebisect.runtime.script_run:run_script"


class ScriptRunner:
    """Runs scripts one at a time, each in a worker of its own, and counts them."""

    def __init__(self, supervisor: Supervisor, *, fresh_interpreter: bool = False) -> None:
        self._supervisor = supervisor
        self._fresh_interpreter = fresh_interpreter
        self.runs = 0

    def run(
        self, path: Path, *, timeout_s: float, args: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> ScriptEnd:
        """Run a script and wait for its end; at the deadline it is killed with all that it started."""
        self.runs += 1
        order = ScriptOrder(path=str(path), args=tuple(args), environment=dict(environment or {}))
        worker = self._supervisor.start_worker(fresh_interpreter=self._fresh_interpreter)
        try:
            outcome = worker.call(_FUNCTION, msgspec.msgpack.encode(order), timeout_s, label=path.name)
        except BaseException:
            worker.kill()
            raise
        return _end(outcome)


def _end(outcome: Outcome) -> ScriptEnd:
    if isinstance(outcome, Died):
        return ScriptEnd(outcome.exit_code, outcome.output, outcome.seconds)
    if isinstance(outcome, TimedOut):
        return ScriptEnd(None, outcome.output, outcome.seconds)
    raise RuntimeError(f"a script cannot reply: {outcome}")
