"""The one door through which an exception becomes text, however broken it is and however long its text.

Whatever the user's code, a library or the compiler raises may have a `__str__` that raises, returns no string, or
returns 50 MB. Nothing here raises, and all that is returned is bounded and can be written as UTF-8.
"""

from __future__ import annotations

import traceback

#: The most characters of one exception's own text that are kept; the middle of a longer one is left out.
LONGEST_TEXT = 8_000
#: The most characters of a whole formatted traceback that are kept.
LONGEST_TRACEBACK = 60_000


def error_text(error: BaseException, limit: int = LONGEST_TEXT) -> str:
    """Return what `str(error)` says, of at most `limit` characters and a few more that say what is left out."""
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 - `__str__` is the user's, and may raise even KeyboardInterrupt
        text = f"<its text cannot be made: {type(broken).__name__}>"
    return bounded(text, limit)


def error_type(error: BaseException) -> str:
    """Return the name of an exception's class, with its module unless it is Python's own."""
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    return bounded(name, 200)


def error_line(error: BaseException, limit: int = 500) -> str:
    """Return the exception's plain class name and the first line of its text."""
    lines = error_text(error, limit).strip().splitlines()
    name = bounded(type(error).__name__, 200)
    return f"{name}: {lines[0]}" if lines else name


def error_lines(error: BaseException) -> str:
    """Return what Python prints below a traceback: the class with its module, the whole text, notes."""
    name, text = error_type(error), error_text(error)
    if isinstance(error, SyntaxError):
        try:
            return bounded("".join(traceback.format_exception_only(error)).strip(), LONGEST_TEXT)
        except BaseException:  # noqa: BLE001 - its fields are the user's
            pass
    notes = getattr(error, "__notes__", None)
    parts = [f"{name}: {text}" if text else name]
    parts += (
        [bounded(note, limit=LONGEST_TEXT) for note in notes if isinstance(note, str)]
        if isinstance(notes, list)
        else []
    )
    return "\n".join(parts)


def traceback_text(error: BaseException) -> str:
    """Return the traceback with its causes as Python prints it, or what can be had of it."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - one of the chain has a text that cannot be made
        text = "".join(traceback.format_tb(error.__traceback__)) + error_lines(error)
    return bounded(text, LONGEST_TRACEBACK)


def bounded(text: object, limit: int) -> str:
    """Cut the middle out of a text that is too long, and spell out what UTF-8 has no place for."""
    if not isinstance(text, str):
        text = f"<no text but {type(text).__name__}>"
    text = "".join((text,))  # a plain str, whatever a subclass overrides
    if len(text) > limit:
        kept = limit // 2
        text = f"{text[:kept]}\n[... {len(text) - 2 * kept} characters left out ...]\n{text[-kept:]}"
    # lone surrogates, as in undecodable file names, have no place in UTF-8; neither have they in a terminal
    return str.encode(text, errors="backslashreplace").decode()
