"""Edits of numbers: whole ones towards 1, all that are equal at once or one by one, and floats to 1.0."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compilebisect.core.reduce.script_text import Edit, ScriptText


def numbers(script: ScriptText) -> Iterator[ast.Constant]:
    """Yield the integers above 2 and the floats other than 0 and 1 that stand in editable text."""
    for statement in script.editable:
        waiting: list[ast.AST] = [statement]
        while waiting:
            node = waiting.pop()
            if not isinstance(node, ast.JoinedStr):  # before Python 3.12 what is within has no useful place
                waiting += reversed(list(ast.iter_child_nodes(node)))
            if isinstance(node, ast.Constant) and weight(node.value) and node.lineno not in script.kept:
                yield node


def weight(value: object) -> int:
    """Return how far a number is from a simple one; 0 for what is no number or is simple."""
    if isinstance(value, float):
        return int(value not in (0.0, 1.0))
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 2 else 0


def all_at_once(script: ScriptText) -> list[Edit]:
    """Return the edits that make a 2 of all integers above it."""
    return [Edit(*script.span(node), "2") for node in numbers(script) if isinstance(node.value, int)]


def smaller(value: float) -> list[str]:
    """Return what to try in the place of a number, the best first."""
    if isinstance(value, float):
        return ["1.0"]
    return list(dict.fromkeys(["2", "1", str(value // 2)]))
