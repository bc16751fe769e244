"""What was counted and measured of a module, as the columns beside the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from compilebisect.render.outline import Node
from compilebisect.render.wording import seconds


class Column(NamedTuple):
    """A column: its heading, what it is about, and what it says of a node; an empty text where there is nothing."""

    heading: str
    title: str
    text: Callable[[Node], str]


COLUMNS = (
    Column("graphs", "FX graphs that it is compiled to", lambda node: _count(node.graphs)),
    Column("breaks", "graph breaks that it introduces", lambda node: _count(node.breaks)),
    Column("recompiles", "how often a function was compiled again", lambda node: _count(node.recompiles)),
    Column("compile", "seconds of its check's compile", lambda node: seconds(node.compile_s) if node.compile_s else ""),
    Column("speed", "eager seconds by compiled seconds", lambda node: _speed(node)),
)


def columns_of(nodes: Iterable[Node]) -> list[Column]:
    """Return the columns in which any of these nodes has something."""
    nodes = list(nodes)
    return [column for column in COLUMNS if any(column.text(node) for node in nodes)]


def _count(number: int) -> str:
    return str(number) if number else ""


def _speed(node: Node) -> str:
    if not node.eager_s or not node.compiled_s:
        return ""
    return f"{node.eager_s / node.compiled_s:.2g}x"
