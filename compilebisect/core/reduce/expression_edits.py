"""Edits of expressions: each replaced by a part of itself, and parts dropped from lists of parts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from compilebisect.core.reduce.script_text import Edit, ScriptText
from compilebisect.core.reduce.statement_edits import removals

_NEEDS_NO_BRACKETS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Dict, ast.Set)
_BINDS_TIGHTLY = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Attribute, ast.Subscript, ast.Call, ast.Starred)
# The keyword that says where a tensor lies stays, so that the script still runs on any device.
_PLACE = "device"


def expression_edits(script: ScriptText) -> list[tuple[ast.AST, list[Edit]]]:
    """Return the edits that make one expression smaller, with the expression, those first that take away most."""
    imported = _imported(script)
    found = []
    for statement in script.editable:
        for node in _expressions(statement):
            found += [(node, edits) for edits in _shrunk(script, node, imported)]
    return sorted(found, key=lambda item: sum(len(edit.text) - (edit.end - edit.start) for edit in item[1]))


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions below a node; before Python 3.12 those within f-strings have no useful place."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.expr) and not isinstance(getattr(child, "ctx", None), ast.Store | ast.Del):
                yield child
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield from _expressions(child)


def _shrunk(script: ScriptText, node: ast.AST, imported: set[str]) -> Iterator[list[Edit]]:
    parent = script.parents[node]
    if isinstance(parent, ast.Return) and script.is_called_by_frozen(script.function_of(parent)):
        return  # what unpacks the result stays as it is
    for part in _parts(script, node, imported):
        if isinstance(parent, ast.Expr) and isinstance(part, ast.Name):
            yield removals(script, [parent])  # a name by itself does nothing
        else:
            yield [_replacement(script, node, part)]
    if isinstance(node, ast.Call):
        arguments = sorted([*node.args, *node.keywords], key=script.span)
        for argument, edit in zip(arguments, element_edits(script, arguments), strict=True):
            is_place = (argument.arg if isinstance(argument, ast.keyword) else getattr(argument, "id", "")) == _PLACE
            if not is_place:
                yield [edit]
    elif isinstance(node, ast.List | ast.Set):
        yield from ([edit] for edit in element_edits(script, node.elts))
    elif isinstance(node, ast.Tuple):
        yield from tuple_edits(script, node)
    elif isinstance(node, ast.Dict):
        yield from ([edit] for edit in entry_edits(script, node))
    elif isinstance(node, ast.ListComp):
        yield [Edit(*script.span(node), f"[{script.segment(node.elt)}]")]
    elif isinstance(node, ast.Starred) and isinstance(node.value, ast.List) and node.value.elts:
        first, last = node.value.elts[0], node.value.elts[-1]
        yield [Edit(*script.span(node), script.text[script.span(first)[0] : script.span(last)[1]])]
    elif isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        start, end = script.span(node)
        is_key = isinstance(parent, ast.Dict) and node in parent.keys
        if not (isinstance(parent, ast.Expr) or is_key) and end - start > 2:
            yield [Edit(start, end, '""')]


def _parts(script: ScriptText, node: ast.AST, imported: set[str]) -> Iterator[ast.expr]:
    """Yield the parts that can stand for the whole; none that cannot be a value, such as the module of a function."""
    parent = script.parents[node]
    parts: list[ast.expr] = []
    if isinstance(node, ast.Call) and not _is_moved_to_its_place(node):
        arguments = [*node.args, *(item.value for item in node.keywords)]
        parts = [item for item in arguments if not isinstance(item, ast.Starred | ast.Constant)]
        if isinstance(node.func, ast.Attribute):
            parts.append(node.func.value)
    elif isinstance(node, ast.BinOp):
        values: list[ast.expr] = [item for item in (node.left, node.right) if not isinstance(item, ast.Constant)]
        parts = values or [node.left, node.right]
    elif isinstance(node, ast.BoolOp):
        parts = node.values
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.IfExp):
        parts = [node.body, node.orelse]
    elif isinstance(node, ast.Subscript) or (
        isinstance(node, ast.Attribute) and not (isinstance(parent, ast.Call) and parent.func is node)
    ):
        parts = [node.value]
    elif isinstance(node, ast.Tuple | ast.List) and not isinstance(parent, ast.Return | ast.Tuple):
        parts = [item for item in node.elts if not isinstance(item, ast.Starred | ast.Constant)]
    for part in parts:
        root, is_path = part, True
        while isinstance(root, ast.Attribute):
            root = root.value
        is_path = isinstance(root, ast.Name) and (root.id in imported or (root is part and root.id == "self"))
        if not is_path and not (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Name | ast.Attribute)
            and script.segment(part.func) == "super"
        ):
            yield part


def _is_moved_to_its_place(call: ast.Call) -> bool:
    is_to = isinstance(call.func, ast.Attribute) and call.func.attr == "to"
    return is_to and any(isinstance(item, ast.Name) and item.id == _PLACE for item in call.args)


def _replacement(script: ScriptText, node: ast.AST, part: ast.expr) -> Edit:
    """Return the edit that puts a part in the place of the whole, with brackets where it needs them."""
    start, end = script.span(node)
    text = script.segment(part)
    is_closed = isinstance(part, _NEEDS_NO_BRACKETS) or text.startswith("(")
    if not is_closed and ("\n" in text or isinstance(script.parents[node], _BINDS_TIGHTLY)):
        text = f"({text})"
    elif is_closed and re.search(r"(^|[^\w)\]\"'])\($", script.text[:start][-2:]) and script.text.startswith(")", end):
        start, end = start - 1, end + 1  # brackets around the whole alone, not those of a call
    return Edit(start, end, text)


def element_edits(script: ScriptText, elements: Sequence[ast.AST]) -> Iterator[Edit]:
    """Yield the edits that drop one of several elements and its comma."""
    yield from _dropped(script, [script.span(element) for element in elements])


def _dropped(script: ScriptText, spans: Sequence[tuple[int, int]]) -> Iterator[Edit]:
    for number, (start, end) in enumerate(spans):
        if number + 1 < len(spans):
            yield Edit(start, spans[number + 1][0])
        elif number:
            yield Edit(spans[number - 1][1], end)
        else:
            comma = re.compile(r"\s*,").match(script.text, end)
            yield Edit(start, comma.end() if comma else end)


def entry_edits(script: ScriptText, node: ast.Dict) -> Iterator[Edit]:
    """Yield the edits that drop one entry of a dictionary; none where others are spread into it."""
    pairs = list(zip(node.keys, node.values, strict=True))
    spans = [(script.span(key)[0], script.span(value)[1]) for key, value in pairs if key is not None]
    if len(spans) == len(pairs):
        yield from _dropped(script, spans)


def tuple_edits(script: ScriptText, node: ast.Tuple) -> Iterator[list[Edit]]:
    """Yield the edits that drop one element of a tuple, which stays a tuple."""
    spans = [script.span(element) for element in node.elts]
    start, end = script.span(node)
    is_bracketed = script.text.startswith("(", start) and (not spans or spans[0][0] > start)
    if len(spans) == 1 and is_bracketed:
        yield [Edit(start, end, "()")]
    elif len(spans) == 2:
        for left in spans[1], spans[0]:
            text = f"{script.text[left[0] : left[1]]},"
            yield [Edit(start, end, f"({text})" if is_bracketed else text)]
    elif len(spans) > 2:
        yield from ([edit] for edit in _dropped(script, spans))


def _imported(script: ScriptText) -> set[str]:
    """Return the names that the script imports, which are no values for a model: mostly modules and their functions."""
    return {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
