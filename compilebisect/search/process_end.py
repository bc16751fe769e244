"""What the end of a worker says: a death or a hang becomes an observation."""

from __future__ import annotations

import linecache

import msgspec

from compilebisect.core.messages import INSTANCE_MARK
from compilebisect.core.outcome import Fault, Kind, Observation, Stage
from compilebisect.core.stack_dump import frames_from_faulthandler, stage_from_stack
from compilebisect.source_files import is_user_or_library_file
from compilebisect.workers.call_outcome import Died, TimedOut

_STAGE_OF_PHASE = {"dynamo": Stage.DYNAMO, "running": Stage.RUNTIME}
# A fault while the module runs in eager mode, for the comparison, is none of the compiler's.
_EAGER_PHASE = "comparing"


def observation_from_death(outcome: Died) -> Observation:
    """Turn the death of a worker into an observation."""
    how = outcome.signal or (f"exit status {outcome.exit_code}" if outcome.exit_code is not None else "unknown")
    if outcome.phase.partition(INSTANCE_MARK)[0] == _EAGER_PHASE:
        return Observation(untested=f"the process died in eager mode, alone on its golden inputs: {how}")
    message = f"the process died with {how}"
    if outcome.is_memory_suspected:
        message += "; the system's out-of-memory killer is the likely cause"
    return _fatal(Kind.CRASH, how, message, outcome)


def observation_from_timeout(outcome: TimedOut, timeout_s: float) -> Observation:
    """Turn a missed deadline into an observation."""
    if outcome.phase.partition(INSTANCE_MARK)[0] == _EAGER_PHASE:
        return Observation(untested=f"running it in eager mode took longer than --timeout {timeout_s:g}")
    return _fatal(Kind.TIMEOUT, "timeout", f"not finished after {timeout_s:g} s", outcome)


def place_in_stack(stack: str) -> str:
    """Return where a process was, by the user's or a library's innermost line; empty where no such line is known."""
    for frame in frames_from_faulthandler(stack):
        if is_user_or_library_file(frame.file):
            return f"{frame.file}:{frame.line} in {frame.function}"
    return ""


def _fatal(kind: Kind, type_name: str, message: str, outcome: Died | TimedOut) -> Observation:
    dump = frames_from_faulthandler(outcome.stack)
    frames = tuple(
        msgspec.structs.replace(frame, code=linecache.getline(frame.file, frame.line).strip())
        for frame in reversed(dump)
        if is_user_or_library_file(frame.file)
    )
    phase, _, instance = outcome.phase.partition(INSTANCE_MARK)
    stage = stage_from_stack(dump) or _STAGE_OF_PHASE.get(phase)
    fault = Fault(
        kind=kind,
        type=type_name,
        message=message,
        stage=stage,
        # Where a worker was when it was stopped, or died, need not be the same twice: the place is no identity.
        frames=(),
        location=frames[-1] if frames else None,
        evidence={
            "phase": outcome.phase,
            "seconds": round(outcome.seconds, 2),
            "stack": outcome.stack[-4000:],
            "output": outcome.output[-2000:],
        },
    )
    if not instance:
        return Observation(faults=(fault,), completed=False)
    fault = msgspec.structs.replace(fault, evidence={**fault.evidence, "instance": instance})
    return Observation(faults=(fault,), completed=False, faults_by_instance={instance: (fault,)})
