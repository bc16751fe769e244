"""Turns rich's drawings into text, with or without colour codes, whatever the process's own terminal is."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType

from compilebisect.render.wording import without_commands


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
        console.print(part, soft_wrap=True)
    return without_commands("\n".join(line.rstrip() for line in stream.getvalue().split("\n")))
