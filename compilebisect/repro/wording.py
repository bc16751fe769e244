"""What a repro script says about its fault: the comment at its head and what it expected."""

from __future__ import annotations

import itertools
import re
import textwrap

from compilebisect.core.outcome import Kind
from compilebisect.core.quoting import comment
from compilebisect.core.repro_case import ReproCase

_TITLES = {
    Kind.GRAPH_BREAK: "graph break",
    Kind.RECOMPILE: "recompile",
    Kind.ERROR: "error",
    Kind.DIVERGENCE: "other results than in eager mode",
    Kind.CRASH: "crash of the process",
    Kind.TIMEOUT: "no end",
}
_EXPECTED = {
    Kind.GRAPH_BREAK: "no such graph break",
    Kind.RECOMPILE: "compiled code that serves all these calls",
    Kind.ERROR: "no error, as in eager mode",
    Kind.DIVERGENCE: "the results of eager mode",
    Kind.CRASH: "a process that ends as in eager mode",
    Kind.TIMEOUT: "an end within {deadline} s",
}
_FIRST_WORDS = "torch.compile:"
_LAST_LINE = "Exit status: 1 the fault shows, 0 it does not, 125 this cannot be told."
# Folders of a machine that a message may quote; addresses of pages are none.
_FOLDERS = re.compile(r"(?<![/\w])(?:[A-Za-z]:)?[/\\](?:[^\s'\":,()/\\]+[/\\])+(?=[^\s'\":,()/\\]+)")


def expected_text(case: ReproCase) -> str:
    """Return what a healthy compiler would give."""
    return _EXPECTED[case.fault.kind].format(deadline=int(case.deadline_s))


def head_lines(case: ReproCase) -> list[str]:
    """Return the lines of the comment at the script's head, ready for a bug report; no private paths.

    The first and the last are those by which `is_our_script` knows a script of ours.
    """
    fault = case.fault
    lines = [f"{_FIRST_WORDS} {_TITLES[fault.kind]}: {fault.type}", ""]
    message = without_folders(fault.message).strip()
    if message:
        lines += ["What happens:", *_wrapped(message, limit=12), ""]
    if fault.location is not None and fault.location.code:
        lines.append(f"At: {fault.location.code.strip()}")
    lines.append(f"Expected: {expected_text(case)}")
    lines.append(f"Observed: {fault.kind.value}, {fault.type}")
    if fault.stage is not None:
        lines.append(f"Stage: {fault.stage.value}")
    where = case.module_path or "the model itself"
    lines.append(f"Found in: {where}" + (f" (class {case.module_class})" if case.module_class else ""))
    if case.environment:
        lines.append("Environment: " + ", ".join(f"{name} {value}" for name, value in case.environment))
    if case.imports_user_code:
        files = ", ".join(file.file for file in case.user_files)
        lines.append(f"Needs the user's own code: {files} (set REPRO_CODE to the folder where it lies)")
    lines += [f"Note: {without_folders(note)}" for note in case.notes]
    lines += ["", _LAST_LINE]
    return [comment(line) for line in lines]


def is_our_script(text: str) -> bool:
    """Return whether a script begins with the comment that ours begin with."""
    first, *others = text.split("\n")
    head = itertools.takewhile(lambda line: line.startswith("#"), others)
    return first.startswith(f"# {_FIRST_WORDS} ") and f"# {_LAST_LINE}" in map(str.rstrip, head)


def without_folders(text: str) -> str:
    """Shorten absolute paths in a text to their file names."""
    return _FOLDERS.sub("", text)


def _wrapped(text: str, limit: int) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines():
        lines += textwrap.wrap(line.rstrip(), 108, subsequent_indent="    ") or [""]
    shown = [f"  {line}" for line in lines[:limit]]
    return [*shown, "  ..."] if len(lines) > limit else shown
