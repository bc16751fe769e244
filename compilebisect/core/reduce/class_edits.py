"""Edits that do without classes in between, and without functions that make instances of a class."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compilebisect.core.reduce.script_text import Edit, ScriptText
from compilebisect.core.reduce.statement_edits import removals


def class_edits(script: ScriptText) -> Iterator[list[Edit]]:
    """Yield the edits that skip a base class of the script, and those that call a class rather than its maker."""
    classes = {item.name: item for item in script.editable if isinstance(item, ast.ClassDef)}
    names = [node for node in ast.walk(script.tree) if isinstance(node, ast.Name)]
    for owner in classes.values():
        for base in owner.bases:
            skipped = classes.get(base.id) if isinstance(base, ast.Name) else None
            if skipped is None or script.has_kept_line(skipped) or not skipped.bases:
                continue
            if sum(node.id == skipped.name for node in names) == 1:
                bases = ", ".join(script.segment(item) for item in skipped.bases)
                yield [Edit(*script.span(base), bases), *removals(script, [skipped])]
    for node in (node for statement in script.editable for node in ast.walk(statement)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
            (made,) = node.args
            if isinstance(made, ast.Name) and made.id in classes and node.func.id not in classes:
                yield [Edit(*script.span(node), f"{made.id}()")]
