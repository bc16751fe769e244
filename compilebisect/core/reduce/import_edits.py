"""Edits that spell names out which an import made short."""

from __future__ import annotations

import ast

from compilebisect.core.reduce.script_text import Edit, ScriptText
from compilebisect.core.reduce.statement_edits import removals

# What `import torch` alone makes reachable.
_REACHABLE = ("torch", "torch.nn", "torch.nn.functional")


def without_short_names(script: ScriptText) -> str:
    """Return the text with `torch.nn` instead of `nn` and the like, where that makes an import needless."""
    edits: list[Edit] = []
    doomed: list[ast.stmt] = []
    for statement in script.editable:
        names = _short_names(statement)
        reads = [node for node in ast.walk(script.tree) if isinstance(node, ast.Name) and node.id in names]
        if names and not script.has_kept_line(statement) and all(_is_editable(script, node) for node in reads):
            doomed.append(statement)
            edits += [Edit(*script.span(node), names[node.id]) for node in reads]
    return script.edited([*removals(script, doomed), *edits])


def _short_names(statement: ast.stmt) -> dict[str, str]:
    """Return what an import of parts of torch binds, with the whole names; nothing where it binds other things too."""
    found: dict[str, str] = {}
    if isinstance(statement, ast.Import):
        found = {alias.asname: alias.name for alias in statement.names if alias.asname and alias.name in _REACHABLE}
    elif isinstance(statement, ast.ImportFrom) and statement.module in _REACHABLE:
        found = {alias.asname or alias.name: f"{statement.module}.{alias.name}" for alias in statement.names}
    return found if len(found) == len(getattr(statement, "names", ())) else {}


def _is_editable(script: ScriptText, node: ast.Name) -> bool:
    if not isinstance(node.ctx, ast.Load) or node.lineno in script.kept:
        return False
    found: ast.AST = node
    while not isinstance(found, ast.stmt) or found not in script.tree.body:
        if isinstance(found, ast.JoinedStr):
            return False  # before Python 3.12 names within have no useful place
        found = script.parents[found]
    return found not in script.frozen
