"""Draws an outline: guides and texts on the left, columns of figures on the right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from compilebisect.render.figures import columns_of
from compilebisect.render.outline import Node
from compilebisect.render.wrap import cell_len, styled

_GAP = 2
_FORK, _LAST, _PASS, _NONE = "├── ", "└── ", "│   ", "    "


def tree_lines(root: Node, text_of: Callable[[Node], Text], width: int) -> list[Text]:
    """Return the lines of a tree that fit a width; figures are left out where they would take over half of it.

    A line that is too long for its figures keeps its width, and they follow on a line of their own.
    """
    rows = [(node, _shortened(guide, width), _shortened(below, width)) for node, guide, below in _rows(root)]
    columns = columns_of(node for node, _, _ in rows)
    cells = {id(node): [column.text(node) for column in columns] for node, _, _ in rows}
    widths = [max(len(column.heading), *(len(row[k]) for row in cells.values())) for k, column in enumerate(columns)]
    block = sum(widths) + _GAP * len(widths)
    if block > width // 2:
        columns, block = [], 0
    console = Console(width=width)
    texts = [_wrapped(text_of(node), guide, below, width, console) for node, guide, below in rows]
    # The columns begin where the longest line ends that leaves room for them.
    lengths = [cell_len(line.plain) for lines in texts for line in lines]
    start = max((length for length in lengths if length + block <= width), default=width - block)
    drawn = [Text(" " * start + _padded([column.heading for column in columns], widths), "dim")] if columns else []
    for (node, _, below), lines in zip(rows, texts, strict=True):
        figures = _padded(cells[id(node)], widths) if columns else ""
        if figures.strip():
            if len(lines) > 1 or cell_len(lines[0].plain) > start:
                lines.append(Text(below, "dim"))
            last = lines[-1]
            last.append(" " * (start - cell_len(last.plain)))
            last.append(figures, "dim")
        drawn += lines
    return drawn


def _rows(root: Node) -> Iterator[tuple[Node, str, str]]:
    """List nodes with what stands before their first line and before the lines that follow."""
    waiting = [(root, "", "")]
    while waiting:
        node, guide, below = waiting.pop()
        yield node, guide, below
        for child in reversed(node.children):
            is_last = child is node.children[-1]
            waiting.append((child, below + (_LAST if is_last else _FORK), below + (_NONE if is_last else _PASS)))


def _shortened(guide: str, width: int) -> str:
    """Leave out what a guide has on the left where it would take over half of the width."""
    most = max(width // 2 // len(_NONE), 1) * len(_NONE)
    return guide if len(guide) <= most else f"…{guide[-most + 1 :]}"


def _wrapped(text: Text, guide: str, below: str, width: int, console: Console) -> list[Text]:
    room = max(width - cell_len(guide), 1)
    plain = text.plain
    if cell_len(plain) <= room and "\n" not in plain and "\t" not in plain:
        return [styled((guide, "dim")).append_text(text)]
    folded = text.wrap(console, room, overflow="fold")
    return [Text.assemble((below if number else guide, "dim"), line) for number, line in enumerate(folded)]


def _padded(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"{' ' * _GAP}{cell:>{size}}" for cell, size in zip(cells, widths, strict=True))
