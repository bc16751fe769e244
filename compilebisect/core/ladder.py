"""Which rung of the ladder shows a fault first, and so which stage of the compiler stack brings it."""

from __future__ import annotations

from collections.abc import Callable, Generator

import msgspec

from compilebisect.core.fingerprint import fault_key
from compilebisect.core.outcome import Fault, Kind, Observation, Rung, Stage
from compilebisect.core.unit_result import Probe

STAGE_OF_RUNG = {
    Rung.EAGER: Stage.DYNAMO,
    Rung.AOT_EAGER: Stage.AOT_AUTOGRAD,
    Rung.AOT_EAGER_DECOMP_PARTITION: Stage.AOT_AUTOGRAD,
}


def with_stage(fault: Fault, backend: str, probe_on: Callable[[Rung], Probe]) -> Generator[Probe, Observation, Fault]:
    """Name the stage of a fault, where it is not known, by the first rung that shows it.

    Args:
        fault: what was seen with the user's backend.
        backend: that backend's name.
        probe_on: makes the probe that looks for the fault on a rung.
    """
    is_open = fault.stage is None or (fault.stage is Stage.RUNTIME and fault.kind is Kind.ERROR)
    if not is_open or fault.kind is Kind.TIMEOUT:
        return fault
    rungs, own_stage = _ladder_of(backend)
    # what shows behind all rungs that tell, in compiled code that runs, is no stage's but that of the run
    is_of_run = fault.stage is not None and own_stage in (None, Stage.INDUCTOR)
    stage = fault.stage if is_of_run else own_stage
    for rung in rungs:
        seen = yield probe_on(rung)
        is_shown = any(other.kind is fault.kind for other in seen.faults)
        # what a compiled run raises may be the fault of any stage before it
        if is_shown and (fault.stage is None or fault_key(fault) in {fault_key(other) for other in seen.faults}):
            stage = STAGE_OF_RUNG[rung]
            break
    return msgspec.structs.replace(fault, stage=stage)


def _ladder_of(backend: str) -> tuple[list[Rung], Stage | None]:
    """Return the rungs below a backend, and the stage of what none of them shows; None where that is not known.

    Of a backend that is none of the ladder's it is only known that Dynamo comes before it.
    """
    rungs = list(Rung)
    if backend not in {rung.value for rung in rungs}:
        return [Rung.EAGER], None
    own = Rung(backend)
    return rungs[: rungs.index(own)], STAGE_OF_RUNG.get(own, Stage.INDUCTOR)
