"""Breaks text into lines of a given width: between words, and inside long paths after a separator."""

from __future__ import annotations

import re

from rich.cells import cell_len as rich_cell_len
from rich.cells import set_cell_size
from rich.text import Span, Text

from compilebisect.render.wording import CROSS, DASH, TICK, TIMES

_SEPARATORS = "/\\._-:,"
# Our own drawings take one cell for each character, and looking each up takes half of the time of a large tree.
_PLAIN = re.compile(f"[ -~├│└─…·→{TICK}{CROSS}{TIMES}{DASH}]*")


def cell_len(text: str) -> int:
    """Return how many cells a text takes that has no control characters."""
    return len(text) if text.isascii() or _PLAIN.fullmatch(text) else rich_cell_len(text)


def styled(*parts: tuple[str, str]) -> Text:
    """Return a text of parts, each with its style; `Text.assemble` takes four times as long."""
    spans, end = [], 0
    for part, style in parts:
        start, end = end, end + len(part)
        if style and part:
            spans.append(Span(start, end, style))
    return Text("".join([part for part, _ in parts]), spans=spans)


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of `text`, none wider than `width` cells and at least one."""
    width = max(width, 8)
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        words = paragraph.split()
        line = " ".join(words)
        if cell_len(line) <= width:
            lines.append(line)
            continue
        line = ""
        for word in words:
            if line and cell_len(line) + 1 + cell_len(word) <= width:
                line += " " + word
                continue
            if line:
                lines.append(line)
            *full, line = _broken(word, width)
            lines += full
        lines.append(line)
    return lines


def _broken(word: str, width: int) -> list[str]:
    """Break one word, after the last separator in the second half of a line where there is one."""
    pieces = []
    while cell_len(word) > width:
        head = set_cell_size(word, width).rstrip(" ") or word[:1]
        cut = max(head.rfind(separator) for separator in _SEPARATORS) + 1
        if cut <= len(head) // 2:
            cut = len(head)
        pieces.append(word[:cut])
        word = word[cut:]
    return [*pieces, word]
