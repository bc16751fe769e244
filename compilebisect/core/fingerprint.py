"""When two faults are the same one. Texts of messages are never compared: they hold paths, sizes and addresses."""

from __future__ import annotations

import builtins
import hashlib
import re
from pathlib import PurePath

from compilebisect.core.outcome import Fault, Kind

FaultKey = tuple[str, str, str, str]
# Words between blanks, with no sign of code, number or name at either end.
_PLAIN_WORDS = re.compile(r"(?<![^\s])[A-Za-z]+(?:'[a-z]+)?(?: [A-Za-z]+(?:'[a-z]+)?)*(?=[\s.,;:!?]*(?:\s|$))")
_CUSTOM_OPERATOR = re.compile(r"(?<![\w:])(?!aten::|prims?::|c10::|at::|std::|torch::)[A-Za-z_]\w*::\w+")
_EXCEPTION_NAMES = re.compile(r"^(?:[\w.]*(?:Error|Exception|Failed|Interrupt|Exit|Warning): )+")


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


def telling_words(fault: Fault) -> tuple[str, ...]:
    """Return what the text of an error must hold, for an exception of a type that many faults have.

    Of the line that says what is wrong these are the longest run of plain words, of three at least, and the custom
    operators that it names. Sizes, addresses, paths and quoted names change with what a script is made of.
    """
    if fault.kind is not Kind.ERROR or not hasattr(builtins, fault.type):
        return ()
    line = reason_of(fault.message)
    runs = max(_PLAIN_WORDS.findall(line), key=len, default="")
    words = (runs,) if runs.count(" ") >= 2 else ()
    return (*words, *dict.fromkeys(_CUSTOM_OPERATOR.findall(line)))


def reason_of(message: str) -> str:
    """Return the line of an exception's text that says what is wrong, without the names of exceptions around it."""
    inner = message.rpartition(" raised:\n")[2]
    line = next((text.strip() for text in inner.splitlines() if text.strip()), "")
    return _EXCEPTION_NAMES.sub("", line)


def worst(kinds: list[Kind]) -> Kind | None:
    """Return the worst of some kinds, None for none."""
    return min(kinds, key=lambda kind: kind.severity) if kinds else None
