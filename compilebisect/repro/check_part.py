"""Which part of a script judges, and so must stay as it is while the rest of it shrinks."""

from __future__ import annotations

import ast

# What belongs to the part of our own scripts that judges.
_OURS = frozenset(
    {"verdict", "unforeseen", "main", "run", "child", "chain", "leaves", "outline", "difference", "DEADLINE_S"}
)
# Whoever calls these decides how the script ends, or compiles.
_ENDS = frozenset({"exit", "_exit", "abort", "kill", "SystemExit", "quit", "compile", "excepthook"})


def is_check(statement: ast.stmt) -> bool:
    """Return whether a top-level statement of a script belongs to the part that compiles and judges."""
    if isinstance(statement, ast.ClassDef | ast.Import | ast.ImportFrom):
        return False
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        # A custom operator is taken as it is: change one of its kernels, and it brings a fault of its own.
        return statement.name in _OURS or bool(statement.decorator_list) or _names_any(statement, _ENDS)
    if isinstance(statement, ast.If | ast.Try | ast.For | ast.While | ast.With):
        return True
    return _names_any(statement, _ENDS | _OURS | {"library", "path", "environ"})


def _names_any(statement: ast.stmt, wanted: frozenset[str]) -> bool:
    names = {node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return bool(names & wanted)


def kept_lines(text: str, code: str, *, keeps_seeds: bool) -> frozenset[str]:
    """Return the lines of a script outside of its check that must stay word for word.

    Args:
        text: the script.
        code: the line that the fault points to, if there is one.
        keeps_seeds: also those that seed, as they must where results are compared.
    """
    lines = {code} if code else set()
    for line in map(str.strip, text.splitlines()):
        # The script has to run from any folder and on any device.
        if "__file__" in line or line == "model.to(device)" or (keeps_seeds and "manual_seed(" in line):
            lines.add(line)
    return frozenset(lines)
