"""The text of a script with its syntax tree: where each node stands, which parts may be edited, and edits by place."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)


class Edit(NamedTuple):
    """A piece of text that is replaced."""

    start: int
    end: int
    text: str = ""


class Block(NamedTuple):
    """A list of statements: a field of the node that owns it.

    `depth` counts the blocks around it within its function; those of classes and the script itself do not count.
    """

    owner: ast.AST
    field: str
    statements: list[ast.stmt]
    depth: int


class ScriptText:
    """One parsed text.

    Args:
        text: the script, which must parse.
        is_frozen: says of a top-level statement whether it must stay as it is.
        keep_lines: stripped lines that must stay.
    """

    def __init__(self, text: str, is_frozen: Callable[[ast.stmt], bool], keep_lines: frozenset[str]) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.split("\n")
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.frozen = [statement for statement in self.tree.body if is_frozen(statement)]
        self.editable = [statement for statement in self.tree.body if statement not in self.frozen]
        self.kept = {number for number, line in enumerate(self.lines, 1) if line.strip() in keep_lines}
        self._names_in_frozen = {
            node.id for statement in self.frozen for node in ast.walk(statement) if isinstance(node, ast.Name)
        }
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def offset(self, line: int, column: int) -> int:
        """Return the place in the text of a line (from 1) and a column in UTF-8 bytes, as syntax trees have them."""
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode())
        return self._starts[line - 1] + column

    def line_start(self, line: int) -> int:
        """Return where a line begins; the line behind the last one begins at the end of the text."""
        return min(self._starts[line - 1], len(self.text))

    def line_end(self, line: int) -> int:
        """Return where a line ends, its line break aside."""
        return self._starts[line - 1] + len(self.lines[line - 1])

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node begins and ends, its decorators aside."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def segment(self, node: ast.AST) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def has_kept_line(self, node: ast.AST) -> bool:
        """Return whether one of the lines to keep lies within a statement."""
        return any(line in self.kept for line in range(first_line(node), end_line(node) + 1))

    def blocks(self) -> Iterator[Block]:
        """Yield the lists of statements inside the editable top-level statements, outer ones first."""
        for statement in self.editable:
            yield from _blocks(statement, 0)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield the editable functions and methods."""
        for statement in self.editable:
            for node in ast.walk(statement):
                if isinstance(node, FUNCTIONS):
                    yield node

    def function_of(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Return the innermost function around a node."""
        found = self.parents.get(node)
        while found is not None and not isinstance(found, FUNCTIONS):
            found = self.parents.get(found)
        return found

    def is_called_by_frozen(self, function: ast.AST | None) -> bool:
        """Return whether frozen statements name a function, so that how it is called must stay."""
        return isinstance(function, FUNCTIONS) and function.name in self._names_in_frozen

    def is_docstring(self, statement: ast.stmt) -> bool:
        """Return whether a statement is the docstring of its class or function."""
        owner = self.parents[statement]
        return (
            isinstance(owner, DEFINITIONS)
            and owner.body[0] is statement
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        )

    def edited(self, edits: Iterable[Edit]) -> str:
        """Return the text with some edits; of two that overlap the one that begins first counts."""
        parts, place = [], 0
        for edit in sorted(edits, key=lambda edit: (edit.start, -edit.end)):
            if edit.end <= place and place:
                continue
            parts += [self.text[place : max(edit.start, place)], edit.text]
            place = edit.end
        return "".join([*parts, self.text[place:]])

    def frozen_texts(self) -> list[str]:
        """Return what must stay byte for byte."""
        return [self.text[self.line_start(first_line(node)) : self.span(node)[1]] for node in self.frozen]

    def kept_texts(self) -> Counter[str]:
        """Return the lines to keep and how often they stand in the text."""
        return Counter(self.lines[line - 1].strip() for line in self.kept)

    def size(self) -> tuple[int, int]:
        """Return the number of code lines that are not frozen, and of the characters of them."""
        away = {line for node in self.frozen for line in range(first_line(node), end_line(node) + 1)}
        code = [line.strip() for number, line in enumerate(self.lines, 1) if number not in away]
        code = [line for line in code if line and not line.startswith("#")]
        return len(code), sum(map(len, code))


def size(source: str, is_frozen: Callable[[ast.stmt], bool]) -> tuple[int, int]:
    """Return how large a script is: its code lines that are not frozen, and the characters of them.

    Args:
        source: the script.
        is_frozen: says of a top-level statement whether it counts as frozen.
    """
    return ScriptText(source, is_frozen, frozenset()).size()


def first_line(node: ast.AST) -> int:
    """Return the first line of a statement, its decorators included."""
    decorators = getattr(node, "decorator_list", ())
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])  # type: ignore[attr-defined,no-any-return]


def end_line(node: ast.AST) -> int:
    """Return the last line of a node."""
    return node.end_lineno  # type: ignore[attr-defined,no-any-return]


def _blocks(node: ast.AST, depth: int) -> Iterator[Block]:
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(node, field, None)
        if isinstance(statements, list) and statements:
            yield Block(node, field, statements, depth)
            for statement in statements:
                yield from _blocks(statement, depth if isinstance(node, ast.ClassDef) else depth + 1)
    for part in [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]:
        yield from _blocks(part, depth)
