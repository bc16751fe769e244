"""Runs the reduction of a script against a predicate, and says what of the test scripts is frozen."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from compilebisect.core.reduce.python_source import simplifications

SCRIPTS = Path(__file__).parent / "scripts"


def script(name: str) -> str:
    return (SCRIPTS / f"{name}.py.txt").read_text(encoding="utf-8")


def is_frozen(statement: ast.stmt) -> bool:
    """The check: `EXPECTED`, `main` and what calls it."""
    if isinstance(statement, ast.Assign):
        return isinstance(statement.targets[0], ast.Name) and statement.targets[0].id == "EXPECTED"
    return getattr(statement, "name", "") == "main" or (
        isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
    )


def reduce(text: str, shows: Callable[[str], bool], keep: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """Return the smallest text that shows the fault, and all that was proposed."""
    steps = simplifications(text, is_frozen, frozenset(keep))
    proposed: list[str] = []
    try:
        candidate = next(steps)
        while True:
            proposed.append(candidate)
            candidate = steps.send(shows(candidate))
    except StopIteration as stop:
        return stop.value, proposed
