"""Edits that drop the assignment to a variable and read another one in its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compilebisect.core.reduce.script_text import Edit, ScriptText
from compilebisect.core.reduce.statement_edits import removals

# Each costs a run of the script, and the first few are the likely ones.
_MOST_OTHERS = 3


def rename_edits(script: ScriptText) -> Iterator[tuple[ast.stmt, list[Edit]]]:
    """Yield, for assignments to variables that are read, the edits that read a parameter or an operand instead."""
    for function in script.functions():
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        # Before Python 3.12 names within f-strings have no useful place.
        hidden = {
            node.id
            for text in ast.walk(function)
            if isinstance(text, ast.JoinedStr)
            for node in ast.walk(text)
            if isinstance(node, ast.Name)
        }
        parameters = [item.arg for item in _parameters(function)]
        for statement in _assignments(function):
            target = statement.targets[0]
            assert isinstance(target, ast.Name)
            reads = [node for node in names if node.id == target.id and isinstance(node.ctx, ast.Load)]
            is_bound_once = len([node for node in names if node.id == target.id]) == len(reads) + 1
            if not reads or not is_bound_once or target.id in hidden or script.has_kept_line(statement):
                continue
            operands = [node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)]
            bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(parameters)
            others = [name for name in dict.fromkeys([*operands, *parameters]) if name in bound - {target.id, "self"}]
            for other in others[:_MOST_OTHERS]:
                renames = [Edit(*script.span(node), other) for node in reads]
                yield statement, [*removals(script, [statement]), *renames]
            # The other way round, for reads that must stay as they are: a parameter takes the variable's name.
            if not script.has_kept_line(function):
                continue
            for parameter in (item for item in _parameters(function) if item.arg in others[:_MOST_OTHERS]):
                uses = [Edit(*script.span(node), target.id) for node in names if node.id == parameter.arg]
                start = script.span(parameter)[0]
                declared = Edit(start, start + len(parameter.arg), target.id)
                if parameter.arg not in hidden:
                    yield statement, [*removals(script, [statement]), declared, *uses]


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _assignments(function: ast.AST) -> Iterator[ast.Assign]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node
