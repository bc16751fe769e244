"""Putting known values into source text, in place of the expressions at which Dynamo breaks off. Works on syntax trees
alone: what the values are, and how the changed code comes to run, is decided elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import TypeGuard

import msgspec

from compilebisect.core.quoting import source_lines

_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_WITHS = (ast.With, ast.AsyncWith)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Place(msgspec.Struct, frozen=True):
    """Where Dynamo broke off: a line, and the columns of the instruction where they are known (in bytes, from 0)."""

    line: int
    column: int | None = None
    end_column: int | None = None


class Site(msgspec.Struct, frozen=True, order=True):
    """An expression of a source file, by its span (lines from 1, columns in bytes from 0).

    `is_test` says that only its truth counts: the test of an `if`, a `while` or an `assert`.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    is_test: bool = False


def find_site(tree: ast.Module, place: Place) -> Site | None:
    """Return the expression that a value can stand in for, so that what breaks at `place` is no longer run.

    Without columns it is all that the line's statement computes. None where no expression of a function stands there:
    the target of an assignment, for example.
    """
    parents = parents_of(tree)
    found = [node for node in parents if _is_replaceable(node, parents) and _covers(node, place)]
    if place.column is None:
        found = [node for node in found if isinstance(parents[node], ast.stmt | ast.withitem)]
    found = [node for node in found if _is_at(node, place)] or found
    return site_of(min(found, key=_size), parents) if found else None


def wider_site(tree: ast.Module, site: Site) -> Site | None:
    """Return the next larger expression around one, None where it is all of its statement."""
    parents = parents_of(tree)
    around = [node for node in parents if _is_replaceable(node, parents) and _encloses(node, site)]
    return site_of(min(around, key=_size), parents) if around else None


def callee_site(tree: ast.Module, site: Site) -> Site | None:
    """Return what is called in an expression, None where the expression is no call."""
    parents = parents_of(tree)
    calls = [node for node in parents if isinstance(node, ast.Call) and _span(node) == _span_of(site)]
    return site_of(calls[0].func, parents) if calls else None


def site_of(node: ast.expr, parents: Mapping[ast.AST, ast.AST]) -> Site:
    """Return the site of an expression."""
    return Site(*_span(node), is_test=_is_test(node, parents))


def with_replaced(tree: ast.Module, replace: Mapping[Site, Callable[[ast.expr], ast.expr]]) -> ast.Module:
    """Return the tree with some expressions replaced, the inner ones first; positions stay. The tree is used up."""
    by_span = {_span_of(site): function for site, function in replace.items()}

    class Replacer(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            self.generic_visit(node)
            function = by_span.get(_span(node)) if isinstance(node, ast.expr) and _is_read(node) else None
            if function is None:
                return node
            assert isinstance(node, ast.expr)
            # An `Expr` statement has the span of its value; the first expression met is the innermost of that span.
            new = function(node)
            for part in ast.walk(new):
                if not hasattr(part, "lineno"):
                    ast.copy_location(part, node)
            return new

    changed = Replacer().visit(tree)
    assert isinstance(changed, ast.Module)
    return changed


def enclosing_block(tree: ast.Module, line: int) -> tuple[str, int] | None:
    """Return what keeps Dynamo from going on after a break in this line, as (`for` loop, line): the innermost loop,
    `with` or `try` of the same function, or a comprehension where there is none of these.
    """
    parents = parents_of(tree)
    inside = [node for node in parents if isinstance(node, ast.expr) and node.lineno == line]
    node: ast.AST | None = max(inside, key=_size, default=None)
    previous: ast.AST | None = None
    comprehension: tuple[str, int] | None = None
    while node is not None and not isinstance(node, _FUNCTIONS):
        is_in_body = previous is not None and previous in getattr(node, "body", ())
        if isinstance(node, _LOOPS) and (is_in_body or (isinstance(node, ast.While) and previous is not None)):
            return ("`while` loop" if isinstance(node, ast.While) else "`for` loop"), node.lineno
        if isinstance(node, _WITHS) and is_in_body:
            return "`with` block", node.lineno
        if isinstance(node, ast.Try) and previous is not None:
            return "`try` block", node.lineno
        if isinstance(node, _COMPREHENSIONS):
            comprehension = "comprehension", node.lineno
        node, previous = parents.get(node), node
    return comprehension


def with_values(text: str, values: Iterable[tuple[str, Site, str]]) -> str:
    """Return source text with expressions replaced by texts, the lines being found by what stands in them.

    Each value is (the expression's first line as it stands in its file, its site there, the new text). A line that
    does not occur, or not with these columns, stays.
    """
    lines = source_lines(text)
    for code, site, new in sorted(values, key=lambda item: item[1], reverse=True):
        height = site.end_line - site.line
        for first, line in enumerate(lines[: len(lines) - height]):
            if line.rstrip() != code.rstrip():
                continue
            last = first + height
            head = line.encode()[: site.column].decode()
            tail = lines[last].encode()[site.end_column :].decode()
            candidate = [*lines[:first], head + new + tail, *lines[last + 1 :]]
            if _parses("\n".join(candidate)):
                lines = candidate
            break
    return "\n".join(lines)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def parents_of(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """Return the parent of each node below `tree`."""
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def _is_replaceable(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> TypeGuard[ast.expr]:
    if not isinstance(node, ast.expr) or not _is_read(node):
        return False
    parent: ast.AST = parents[node]
    part: ast.AST = node
    while parent in parents and not isinstance(parent, ast.stmt):
        if isinstance(parent, ast.arguments | ast.JoinedStr):
            return False
        parent, part = parents[parent], parent
    if (isinstance(parent, ast.Assert) and part is parent.msg) or part is getattr(parent, "annotation", None):
        return False
    # Decorators, defaults, annotations and what stands outside of functions are not part of a call.
    if isinstance(parent, (*_FUNCTIONS, ast.ClassDef)):
        return False
    while parent in parents and not isinstance(parent, (*_FUNCTIONS, ast.ClassDef)):
        parent = parents[parent]
    return isinstance(parent, _FUNCTIONS)


def _is_read(node: ast.AST) -> bool:
    if isinstance(node, ast.Starred | ast.FormattedValue | ast.JoinedStr | ast.Slice | ast.Constant):
        return False
    return isinstance(getattr(node, "ctx", None) or ast.Load(), ast.Load)


def _is_test(node: ast.expr, parents: Mapping[ast.AST, ast.AST]) -> bool:
    parent = parents[node]
    if isinstance(parent, ast.If | ast.While | ast.IfExp | ast.Assert):
        return parent.test is node
    if isinstance(parent, ast.comprehension):
        return node in parent.ifs
    if isinstance(parent, ast.UnaryOp):
        return isinstance(parent.op, ast.Not)
    return isinstance(parent, ast.BoolOp) and _is_test(parent, parents)


def _covers(node: ast.expr, place: Place) -> bool:
    line, column, end_line, end_column = _span(node)
    if place.column is None or place.end_column is None:
        return line <= place.line <= end_line
    starts_before = (line, column) <= (place.line, place.column)
    # The instruction may end in a further line, of whose number nothing is known.
    ends_behind = end_line > place.line or end_column >= max(place.end_column, place.column + 1)
    return starts_before and end_line >= place.line and ends_behind


def _is_at(node: ast.expr, place: Place) -> bool:
    line, column, _, end_column = _span(node)
    return (line, column, end_column) == (place.line, place.column, place.end_column)


def _encloses(node: ast.expr, site: Site) -> bool:
    line, column, end_line, end_column = _span(node)
    return (
        (line, column) <= (site.line, site.column)
        and (end_line, end_column) >= (site.end_line, site.end_column)
        and _span(node) != _span_of(site)
    )


def _size(node: ast.AST) -> tuple[int, int]:
    line, column, end_line, end_column = _span(node)
    return end_line - line, end_column - column if end_line == line else end_column


def _span(node: ast.AST) -> tuple[int, int, int, int]:
    if not isinstance(node, ast.expr | ast.stmt):
        return (0, 0, 0, 0)
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0


def _span_of(site: Site) -> tuple[int, int, int, int]:
    return site.line, site.column, site.end_line, site.end_column
