"""When two faults are the same one. Texts of messages are never compared: they hold paths, sizes and addresses."""

from __future__ import annotations

import hashlib
from pathlib import PurePath

from compilebisect.core.outcome import Fault, Kind

FaultKey = tuple[str, str, str, str]


def fault_key(fault: Fault) -> FaultKey:
    """Return what must be equal for two faults of one run to count as the same: kind, type and place.

    The stage is left out, since the ladder names it only after the faults were told apart, and so are line numbers
    of faults that have no line of their own.
    """
    place = fault.location if fault.frames else None
    if place is None:
        return (fault.kind.value, fault.type, "", "")
    return (fault.kind.value, fault.type, place.file, f"{place.line}:{place.code}")


def fingerprint(fault: Fault, class_name: str) -> str:
    """Return a short text that stays the same across runs, machines and torch patch versions.

    It is made of kind, stage, type, file name and code text of the innermost user frame, and the class of the module
    that introduces the fault. File names stand without folders, and lines as text without numbers, so that edits
    elsewhere in the file do not change it.
    """
    place = fault.location if fault.frames else None
    parts = [fault.kind.value, fault.stage.value if fault.stage else "", fault.type]
    if place is None:
        parts += [class_name]
    else:
        parts += [PurePath(place.file).name, place.function, " ".join(place.code.split())]
    digest = hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:12]
    return f"{fault.kind.value}-{digest}"


def worst(kinds: list[Kind]) -> Kind | None:
    """Return the worst of some kinds, None for none."""
    return min(kinds, key=lambda kind: kind.severity) if kinds else None
