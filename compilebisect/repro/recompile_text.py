"""The part of a repro script that calls compiled code in a row, and tells the recompile at hand from any other."""

from __future__ import annotations

import re

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


def judging_lines(case: ReproCase) -> list[str]:
    """Return the lines that set `again` to whether `texts` tell of the recompile: same function, same guard."""
    evidence = case.fault.evidence
    marks = ", ".join(repr(str(mark)) for mark in evidence["marks"])
    function = str(evidence["recompiles"][-1]["function"])
    if evidence["between_instances"]:
        told = f"function: '{function}'"
        return [
            f"    hits = [t for t in texts if 'hit config.recompile_limit' in t and {told!r} in t]",
            f"    again = any(mark in text for text in hits for mark in ({marks},))",
        ]
    begins = f"Recompiling function {function} "
    # A number is made dynamic when it changes for the first time, which is no fault.
    is_number = evidence["cause"] == Cause.VALUE.value and not evidence["is_attribute"]
    least = 2 if is_number else min(evidence["count"], 2)
    lines = [
        "    # The third line tells why the latest code did not fit, those behind it why older code did not.",
        f"    reasons = [t.splitlines()[2] for t in texts if t.startswith({begins!r})]",
    ]
    if evidence["cause"] == Cause.SIZE.value and not _is_of_size_one(case):
        lines += [
            "    # Code for a size of 0 or 1 is always made apart.",
            f'    reasons = [reason for reason in reasons if not re.search(r"{_SIZE_ONE}", reason)]',
        ]
    return [*lines, f"    again = sum(any(mark in reason for mark in ({marks},)) for reason in reasons) >= {least}"]


_SIZE_ONE = r"expected [01],|actual [01]\b|\b2 <= |\)\[\d+\] == [01]\b"


def _is_of_size_one(case: ReproCase) -> bool:
    return any(re.search(_SIZE_ONE, item["guard"]) is not None for item in case.fault.evidence["recompiles"])


def _is_of_sizes(case: ReproCase) -> bool:
    return bool(case.fault.evidence["cause"] == Cause.SIZE.value and case.fault.evidence["in_variants"])
