"""Tracebacks as a user wants them: only the frames of their own code and libraries, in Python's usual form."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable

import torch

from compilebisect.attempt import attempt
from compilebisect.error_text import LONGEST_TRACEBACK, bounded, error_lines

_HIDDEN_FOLDERS = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
)


def _is_shown(filename: str) -> bool:
    """Tell whether a frame's file belongs neither to torch, nor to compilebisect, nor to the import machinery."""
    if filename.startswith("<frozen "):
        return False
    return not os.path.realpath(filename).startswith(_HIDDEN_FOLDERS)


def user_traceback(exc: BaseException) -> str:
    """Format an exception with the frames of torch and compilebisect left out.

    Causes and contexts are kept, each trimmed alike. Where no user frame is left, the exception line stands alone.
    """
    text = attempt(_trimmed, exc)
    return bounded(text.value if text.error is None else error_lines(exc), LONGEST_TRACEBACK)


def _trimmed(exc: BaseException) -> str:
    formatted = traceback.TracebackException.from_exception(exc)
    _trim(formatted, set())
    return "".join(formatted.format()).rstrip()


def _trim(formatted: traceback.TracebackException, seen: set[int]) -> None:
    if id(formatted) in seen:
        return
    seen.add(id(formatted))
    formatted.stack = traceback.StackSummary.from_list(_user_frames(formatted.stack))
    inner: Iterable[traceback.TracebackException | None] = (
        formatted.__cause__,
        formatted.__context__,
        *(getattr(formatted, "exceptions", None) or ()),
    )
    for other in inner:
        if other is not None:
            _trim(other, seen)


def _user_frames(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    return [frame for frame in stack if _is_shown(frame.filename)]
