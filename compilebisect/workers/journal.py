"""The pessimistic record: each call is on disk as started before it begins, so that no crash can hide it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

import msgspec


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the record. `outcome` is the outcome's type once the call is finished."""

    call: int
    label: str
    state: Literal["started", "finished"]
    outcome: str = ""


class Journal:
    """Appends entries to a file of JSON lines; without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else open(path, "ab", buffering=0)  # noqa: SIM115 - closed by `close`

    def write(self, entry: Entry) -> None:
        """Append one entry; it has left the process when this returns."""
        if self._file is not None:
            self._file.write(msgspec.json.encode(entry) + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def unfinished_labels(path: Path) -> list[str]:
    """List the labels of the calls that a record of a crashed run shows as started and not finished, in order."""
    labels: dict[int, str] = {}
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(msgspec.MsgspecError):  # the last line may be torn
            entry = msgspec.json.decode(line, type=Entry)
            if entry.state == "started":
                labels[entry.call] = entry.label
            else:
                labels.pop(entry.call, None)
    return list(labels.values())
