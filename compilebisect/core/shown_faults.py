"""What some instances of a unit show in one observation: each fault once, with the instances that show it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.outcome import Fault, Kind, Observation
from compilebisect.core.tolerance import ACCUMULATES_TO


class Shown(msgspec.Struct, frozen=True):
    """Faults that some instances show, each once, and for those that belong to values: which instances.

    An instance that shows a fault in several of its calls is there once for each.
    """

    faults: list[Fault]
    instances: dict[FaultKey, tuple[str, ...]]


def shown_by(observation: Observation, places: Sequence[str], compiled: str) -> Shown:
    """Gather what instances show; what belongs to the code rather than to values is shown by the `compiled` one."""
    faults: dict[FaultKey, Fault] = {}
    instances: dict[FaultKey, tuple[str, ...]] = {}
    for place in places:
        for fault in observation.faults_by_instance.get(place, ()):
            key = fault_key(fault)
            if key in faults and may_be_rounding(faults[key]) and not may_be_rounding(fault):
                faults[key] = fault  # one that is too large for it stands for all, and its instance comes first
                instances[key] = (place, *instances[key])
            else:
                faults.setdefault(key, fault)
                instances[key] = (*instances.get(key, ()), place)
    of_code = []
    if compiled in places:
        by_instance = {fault_key(fault) for found in observation.faults_by_instance.values() for fault in found}
        of_code = [fault for fault in observation.faults if fault_key(fault) not in by_instance]
    return Shown([*faults.values(), *of_code], instances)


def may_be_rounding(fault: Fault) -> bool:
    """Return whether values differ by so little more than is allowed that rounding may have added up to it."""
    return fault.kind is Kind.DIVERGENCE and _excess(fault) <= ACCUMULATES_TO


def is_like(fault: Fault, other: Fault) -> bool:
    """Return whether two faults are the same one, and the other one is not just rounding beside a large one."""
    is_too_small = may_be_rounding(other) and _excess(other) < _excess(fault) / 2
    return fault_key(fault) == fault_key(other) and not is_too_small


def _excess(fault: Fault) -> float:
    return float(fault.evidence.get("excess", math.inf))


def small_keys(faults: Sequence[Fault]) -> frozenset[FaultKey]:
    """Return which of an instance's faults may be rounding in all of its calls."""
    large = {fault_key(fault) for fault in faults if not may_be_rounding(fault)}
    return frozenset(fault_key(fault) for fault in faults) - large
