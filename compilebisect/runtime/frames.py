"""Stacks as the report shows them: frames of the user and of libraries, without those of torch, the standard library
and this tool.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from compilebisect.core.outcome import Frame
from compilebisect.runtime.torch_internals import without_resume_prefix
from compilebisect.source_files import is_user_or_library_file

_OWN_FOLDER = str(Path(__file__).resolve().parents[1]) + "/"


def frames_of(stack: Iterable[traceback.FrameSummary]) -> tuple[Frame, ...]:
    """Convert a stack, outermost frame first, to the frames that a user knows.

    Functions that Dynamo makes to resume after a graph break get back the name of the user's function, and the
    frame that called such a function is dropped in its favour.
    """
    frames: list[Frame] = []
    for summary in stack:
        if summary.filename.startswith(_OWN_FOLDER):
            frames.clear()  # whoever called this tool has nothing to do with what it runs
            continue
        if not is_user_or_library_file(summary.filename):
            continue
        function = without_resume_prefix(summary.name)
        is_resumed = function != summary.name
        if is_resumed and frames and frames[-1].file == summary.filename and frames[-1].function == function:
            frames.pop()
        line = summary.lineno or 0
        code = (summary.line or linecache.getline(summary.filename, line)).strip()
        frames.append(Frame(file=summary.filename, line=line, function=function, code=code))
    return tuple(frames)


def call_site() -> Frame | None:
    """Return the innermost frame of the present stack that a user knows."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_or_library_file(file):
            line = frame.f_lineno
            return Frame(
                file=file, line=line, function=frame.f_code.co_name, code=linecache.getline(file, line).strip()
            )
        frame = frame.f_back  # type: ignore[assignment]
    return None
