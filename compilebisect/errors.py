"""The one hierarchy of errors that users meet. Each says what is wrong, where, and how to mend it."""

from __future__ import annotations

from typing import Any


class CompilebisectError(Exception):
    """Root of all errors that end a command with a message instead of a traceback.

    Attributes:
        what: one stable sentence.
        where: a file and line, a JSON path or a module path; may be empty.
        fix: an imperative that names the flag or the edit; may be empty.
        detail: further lines, such as the user's own trimmed traceback; may be empty.
        exit_status: what the command exits with.
    """

    exit_status = 2

    def __init__(self, what: str, *, where: str = "", fix: str = "", detail: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix
        self.detail = detail

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.fix:
            text += f"\n{self.fix}"
        if self.detail:
            text += f"\n\n{self.detail}"
        return text


class UsageError(CompilebisectError):
    """The command, the target or an option is wrong."""


class SpecError(UsageError):
    """The input spec is wrong; `where` is the JSON path of the fault."""


class TargetError(UsageError):
    """The target cannot be found or is no module."""


class CannotTestError(CompilebisectError):
    """The model could not be tested: eager failure, missing device, torch that cannot compile."""

    exit_status = 125


class EagerFailure(CannotTestError):
    """The model fails in eager mode."""


class BadFork(CannotTestError):
    """CUDA cannot be used in this forked process; the supervisor then starts a fresh interpreter."""


class LostWorker(CannotTestError):
    """A worker went down through no fault of what it was asked; another one may do it."""


class ReportNotSaved(CompilebisectError):
    """The report could be written nowhere; it is the attribute `report`."""

    exit_status = 125

    def __init__(self, report: Any, what: str) -> None:
        super().__init__(what)
        self.report = report


class OutputError(CompilebisectError):
    """Standard output cannot be written."""

    exit_status = 125

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"standard output cannot be written: {error.strerror or error}",
            fix="Send it to a file on a disk with room, or to a program that reads it.",
        )
