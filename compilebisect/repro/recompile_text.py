"""The part of a repro script that calls compiled code in a row, and tells the recompile at hand from any other."""

from __future__ import annotations

import msgspec

from compilebisect.core.guard_text import Cause
from compilebisect.core.repro_case import ReproCase
from compilebisect.repro.run_text import callee, compile_text, in_contexts


def row_lines(case: ReproCase) -> list[str]:
    """Return the lines that compile the model and make all calls, each on copies of its inputs."""
    if _is_of_sizes(case) and case.dynamic is None:
        # Sizes are dynamic from the first call on, so that no recompile is one that only makes them so.
        case = msgspec.structs.replace(case, dynamic=True)
    calls = [
        "for args, kwargs in calls:",
        "    compiled(*copy.deepcopy(args), **copy.deepcopy(kwargs))",
    ]
    return [f"    compiled = {compile_text(case, callee(case), 'eager')}", *in_contexts(case, *calls)]


def recompile_condition(case: ReproCase) -> str:
    """Return the condition under which `texts` tell of the same recompile: same function, same guard, often enough."""
    evidence = case.fault.evidence
    marks = ", ".join(repr(mark) for mark in evidence["marks"])
    function = evidence["recompiles"][-1]["function"]
    is_same = f"any(mark in text for mark in ({marks},))"
    if evidence["between_instances"]:
        given_up = "'hit config.recompile_limit' in text"
        return f"any({given_up} and \"function: '{function}'\" in text and {is_same} for text in texts)"
    # A number is made dynamic when it changes for the first time, which is no fault.
    is_number = evidence["cause"] == Cause.VALUE.value and not evidence["is_attribute"]
    least = 2 if is_number else min(evidence["count"], 2)
    return f"sum('function {function} ' in text and {is_same} for text in texts) >= {least}"


def _is_of_sizes(case: ReproCase) -> bool:
    return bool(case.fault.evidence["cause"] == Cause.SIZE.value and case.fault.evidence["in_variants"])
