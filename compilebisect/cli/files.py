"""Reads the files that commands are given, with messages that name them, and writes standard output."""

from __future__ import annotations

import errno
import json
import os
import select
import stat
import sys
from typing import Any, BinaryIO

from compilebisect.core.json_checks import integer_from_text
from compilebisect.core.report import Report, report_from_json
from compilebisect.error_text import error_text
from compilebisect.errors import OutputError, SpecError, UsageError
from compilebisect.render.wording import CROSS, DASH, TICK, TIMES
from compilebisect.streams import new_failure_of

# Enough for the report of any model; what is larger is a device that never ends.
_MOST_BYTES = 256 << 20
_PIPE_PATIENCE_S = 60
# What takes the place of drawing characters where standard output's encoding lacks them.
_PLAIN = str.maketrans(
    {
        "├": "|",
        "│": "|",
        "└": "`",
        "─": "-",
        TICK: "ok",
        CROSS: "x",
        TIMES: "x",
        DASH: "-",
        "…": "..",
        "·": "-",
        "→": "->",
    }
)


def read_bytes(path: str, what: str) -> bytes:
    """Return a file's bytes, or those of standard input for `-`.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        if path == "-":
            if sys.stdin is None:
                raise UsageError(f"cannot read {what}: standard input is closed", fix="Give the path of a file.")
            return _bounded(sys.stdin.buffer, path, what)
        with open(path, "rb", opener=_open_at_once) as file:
            _wait_for_writer(file, path, what)
            return _bounded(file, path, what)
    except (OSError, ValueError) as error:
        if os.path.isdir(path):
            inside = os.path.join(path, "report.json")
            fix = f"Give the file: {inside}" if os.path.isfile(inside) else "Give the path of a file."
            raise UsageError(f"cannot read {what}: this is a folder", where=path, fix=fix) from error
        reason = (error.strerror if isinstance(error, OSError) else None) or error_text(error)
        raise UsageError(f"cannot read {what}: {reason}", where=path, fix=_near_file(path)) from error


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _wait_for_writer(file: BinaryIO, path: str, what: str) -> None:
    """Wait until a pipe has something to read; a plain file always has."""
    if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
        poll = select.poll()
        poll.register(file, select.POLLIN)
        if not poll.poll(_PIPE_PATIENCE_S * 1000):
            raise UsageError(
                f"cannot read {what}: nobody wrote to this pipe within {_PIPE_PATIENCE_S} s",
                where=path,
                fix="Give the path of a file.",
            )
    os.set_blocking(file.fileno(), True)


def _bounded(file: BinaryIO, path: str, what: str) -> bytes:
    data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{what} is larger than {_MOST_BYTES >> 20} MiB", where=path, fix="Give another file.")
    return data


def _near_file(path: str) -> str:
    from compilebisect.core.nearest import did_you_mean

    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f"There is no folder {folder!r}."
    near = did_you_mean(os.path.basename(path), os.listdir(folder), cutoff=0.75).removeprefix("; ")
    return f"{near[:1].upper()}{near[1:]}" if near else "Give the path of an existing file."


def read_report(path: str) -> Report:
    """Return the report in a file, or on standard input for `-`.

    Raises:
        UsageError: it cannot be read or is no report; `where` names the file and the JSON path.
    """
    data = read_bytes(path, "the report")
    try:
        return report_from_json(data)
    except UsageError as error:
        where = f"{path}: {error.where}" if error.where else path
        raise UsageError(error.what, where=where, fix=error.fix) from error


def read_spec(path: str) -> tuple[Any, str]:
    """Return an input spec as parsed JSON, and the folder that paths in it are relative to.

    Raises:
        SpecError: it is no JSON, or an object in it has a key twice.
        UsageError: it cannot be read.
    """
    data = read_bytes(path, "the input spec")
    shown = "standard input" if path == "-" else path
    if not data.strip():
        raise SpecError("the input spec is empty", where=shown, fix="`compilebisect init TARGET` writes a first one.")
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_int=integer_from_text,
        )
    except json.JSONDecodeError as error:
        where = f"{shown}:{error.lineno}:{error.colno}"
        raise SpecError(f"the input spec is no JSON: {error.msg}", where=where, fix="Mend it there.") from error
    except UnicodeDecodeError as error:
        raise SpecError("the input spec is no UTF-8 text", where=shown, fix="Save it as UTF-8 JSON.") from error
    except RecursionError as error:
        raise SpecError("the input spec is nested too deeply", where=shown, fix="Flatten it.") from error
    except _BadJson as error:
        raise SpecError(f"the input spec is no JSON: {error_text(error)}", where=shown, fix="Mend it there.") from error
    if value is None:
        raise SpecError("the input spec is null", where=shown, fix="Give an object of arguments, or a list of them.")
    return value, "." if path == "-" else os.path.dirname(path) or "."


class _BadJson(Exception):
    """What Python's JSON reader accepts and JSON does not mean."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _BadJson(f"the key {ascii(key)[:60]} stands twice in one object")
        result[key] = value
    return result


def _no_constant(name: str) -> Any:
    raise _BadJson(f"{name} is not allowed in JSON")


def write_output(text: str) -> None:
    """Write to standard output in its encoding, with plainer characters where that lacks some.

    Raises:
        OutputError: it cannot be written.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    _write(sys.stdout, text)


def write_data(text: str) -> None:
    """Write a machine format to standard output: UTF-8 whatever the terminal's encoding is.

    Raises:
        OutputError: it cannot be written.
    """
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        _write(sys.stdout, text)
    else:
        sys.stdout.flush()
        _write(stream, text.encode("utf-8", "backslashreplace"))


def _write(stream: Any, data: str | bytes) -> None:
    try:
        stream.write(data)
        sys.stdout.flush()
    except OSError as error:  # of a stream that is not guarded
        raise OutputError(error) from error
    check_output()


def check_output() -> None:
    """Check that what was printed to standard output has gone out, or that its reader has left: `show REPORT | head`.

    Raises:
        OutputError: it was closed or full, which is told once.
    """
    sys.stdout.flush()
    failure = new_failure_of(sys.stdout)
    if failure is not None and failure.errno != errno.EPIPE:
        raise OutputError(failure)
