"""Turns rich's drawings into text, with or without colour codes, whatever the process's own terminal is."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.text import Text

from compilebisect.render.wording import without_commands

_COLORS = ColorSystem.STANDARD


def _line(text: Text, console: Console | None) -> str:
    """Return a text as `Console.print` would with soft wrapping; without a console it has no colour."""
    if "\t" in text.plain:
        text.expand_tabs(8)
    if console is None:
        return f"{text.plain}\n"
    parts = text.render(console)
    return "".join(style.render(part, color_system=_COLORS) if style else part for part, style, _ in parts) + "\n"


def printed(parts: Iterable[RenderableType], width: int, *, color: bool) -> str:
    """Return the parts one below the other.

    They come in lines that fit; what is longer on purpose, such as the user's code, stays whole for copying.
    """
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        if isinstance(part, Text):  # all but a few parts are, and laying them out costs much more
            stream.write(_line(part, console if color else None))
        else:
            console.print(part, soft_wrap=True)
    return without_commands("\n".join(line.rstrip() for line in stream.getvalue().split("\n")))
