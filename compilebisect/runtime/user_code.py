"""The one place where user code runs while something is loaded; whatever it raises becomes an error with data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compilebisect.errors import CompilebisectError
from compilebisect.runtime.traceback_text import user_traceback


@contextmanager
def user_code(error_from: Callable[[BaseException, str], CompilebisectError]) -> Iterator[None]:
    """Run user code and turn what it raises into our own error.

    Args:
        error_from: makes the error from the exception and its trimmed traceback.

    Raises:
        CompilebisectError: whatever it raises.
    """
    try:
        yield
    except CompilebisectError:
        raise
    except BaseException as exc:  # user code may raise anything, and all of it is shown to the user
        raise error_from(exc, user_traceback(exc)) from exc


@contextmanager
def as_script(path: str) -> Iterator[None]:
    """Run user code as if its file had been started without arguments, and write no bytecode beside it.

    Scripts may parse `sys.argv` when they are imported, and nothing may be written into the user's folders.
    """
    saved = sys.argv, sys.dont_write_bytecode
    sys.argv, sys.dont_write_bytecode = [path], True
    try:
        yield
    finally:
        sys.argv, sys.dont_write_bytecode = saved
