"""What is bound but read nowhere: imports, definitions, methods, local variables, attributes."""

from __future__ import annotations

import ast

from compilebisect.core.reduce.script_text import DEFINITIONS, FUNCTIONS, Edit, ScriptText
from compilebisect.core.reduce.statement_edits import without

# Called without being named.
_CALLED_BY_OTHERS = frozenset({"forward"})


def names_read(node: ast.AST) -> set[str]:
    """Return the names of variables that are read anywhere in a node."""
    found = {item.id for item in ast.walk(node) if isinstance(item, ast.Name) and not isinstance(item.ctx, ast.Store)}
    for item in ast.walk(node):
        if isinstance(item, ast.Global | ast.Nonlocal):
            found.update(item.names)
        elif isinstance(item, ast.AugAssign) and isinstance(item.target, ast.Name):
            found.add(item.target.id)
    return found


def attributes_read(node: ast.AST) -> set[str]:
    """Return the names of attributes that are read anywhere in a node, also those that stand there as strings."""
    found = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute) and not isinstance(item.ctx, ast.Store):
            found.add(item.attr)
        elif isinstance(item, ast.AugAssign) and isinstance(item.target, ast.Attribute):
            found.add(item.target.attr)
        elif isinstance(item, ast.Constant) and isinstance(item.value, str):
            found.update(item.value.split("."))
    return found


def names_bound(statement: ast.stmt) -> list[str]:
    """Return the names that an import, a definition or a plain assignment binds."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [_bound_by(alias) for alias in statement.names]
    if isinstance(statement, DEFINITIONS):
        return [statement.name]
    target = _target(statement)
    return [target.id] if isinstance(target, ast.Name) else []


def without_unread_definitions(script: ScriptText) -> str:
    """Return the text without the imports, top-level definitions and methods that nothing reads."""
    read, attributes = names_read(script.tree), attributes_read(script.tree)
    doomed: set[ast.stmt] = set()
    for statement in script.editable:
        names = names_bound(statement)
        is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if names and not (is_future or read.intersection(names) or script.has_kept_line(statement)):
            doomed.add(statement)
    for block in script.blocks():
        if isinstance(block.owner, ast.ClassDef):
            doomed.update(
                item
                for item in block.statements
                if isinstance(item, FUNCTIONS)
                and item.name not in attributes | read | _CALLED_BY_OTHERS
                and not item.name.startswith("__")
                and not script.has_kept_line(item)
            )
    return without(script, doomed)


def without_unread_imports(script: ScriptText) -> str:
    """Return the text without the imported names that nothing reads, where an import brings several."""
    read = names_read(script.tree)
    edits = []
    for statement in script.editable:
        if isinstance(statement, ast.Import | ast.ImportFrom) and not script.has_kept_line(statement):
            left = [alias for alias in statement.names if _bound_by(alias) in read]
            if 0 < len(left) < len(statement.names):
                start, end = script.span(statement.names[0])[0], script.span(statement.names[-1])[1]
                edits.append(Edit(start, end, ", ".join(script.segment(alias) for alias in left)))
    return script.edited(edits)


def without_unread_values(script: ScriptText) -> str:
    """Return the text without the assignments in functions to variables and attributes that nothing reads."""
    attributes = attributes_read(script.tree)
    doomed: set[ast.stmt] = set()
    for block in script.blocks():
        for statement in block.statements:
            target, function = _target(statement), script.function_of(statement)
            if target is None or function is None or script.has_kept_line(statement):
                continue
            is_read = target.id in names_read(function) if isinstance(target, ast.Name) else target.attr in attributes
            if not is_read:
                doomed.add(statement)
    return without(script, doomed)


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _target(statement: ast.stmt) -> ast.Name | ast.Attribute | None:
    """Return what a plain assignment to one variable or attribute binds."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    return target if isinstance(target, ast.Name | ast.Attribute) else None
