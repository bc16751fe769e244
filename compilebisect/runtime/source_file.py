"""One source file of the user as a list of top-level statements, texts word for word."""

from __future__ import annotations

import ast
import itertools
import symtable
import sys
import textwrap
from pathlib import Path

from compilebisect.core.quoting import source_lines
from compilebisect.error_text import error_text
from compilebisect.runtime.user_files import module_file

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NotExtractable(Exception):
    """The source cannot be put into one file."""


class Piece:
    """One top-level statement of a file, or a method; `members` are the parts of a module class that may be dropped."""

    def __init__(self, node: ast.stmt, source: SourceFile) -> None:
        self.node = node
        self.start = _start(node)
        self.end = node.end_lineno or node.lineno
        self.names = _bound_names(node)
        self.source = source
        self.members: dict[str, list[ast.stmt]] | None = None
        self.kept: set[str] = set()

    def text(self) -> str:
        """Return the source, without the members that nothing reaches."""
        if self.members is None or not isinstance(self.node, ast.ClassDef):
            return textwrap.dedent("\n".join(self.source.lines[self.start - 1 : self.end]))
        head = self.source.lines[self.start - 1 : _start(self.node.body[0]) - 1]
        parts = []
        for statement in self.node.body:
            name = statement.name if isinstance(statement, FUNCTIONS) else None
            if _is_docstring(statement) or (name is not None and name not in self.kept):
                continue
            parts.append("\n".join(self.source.lines[_start(statement) - 1 : statement.end_lineno]))
        if not parts:
            indent = " " * self.node.body[0].col_offset
            parts = [f"{indent}pass"]
        # Fields stay together, methods stand apart.
        body = parts[0]
        for before, part in itertools.pairwise(parts):
            is_apart = "\n" in part or "\n" in before
            body += ("\n\n" if is_apart else "\n") + part
        return "\n".join(head).rstrip() + "\n" + body


class SourceFile:
    """The top-level statements of one user file."""

    def __init__(self, module: str) -> None:
        file = module_file(module)
        if file is None:
            raise NotExtractable(f"{module} has no source file")
        try:
            text = Path(file).read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            raise NotExtractable(f"the source of {module} cannot be read: {error_text(error)}") from error
        self.module = module
        self.file = Path(file).name
        self.lines = source_lines(text)
        self.pieces = [Piece(node, self) for node in tree.body if not _is_main_guard(node)]
        self.has_future_annotations = any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
        )
        self.bindings: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            for name in piece.names:
                self.bindings.setdefault(name, []).append(piece)
        self.stars = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]

    def absolute(self, node: ast.ImportFrom) -> str:
        """Return the full name of the module that an import statement of this file names."""
        if not node.level:
            return node.module or ""
        package = getattr(sys.modules.get(self.module), "__package__", None) or self.module.rpartition(".")[0]
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - node.level + 1])
        return f"{base}.{node.module}" if node.module else base


def _start(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return [node.name]
    names: list[str] = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Import | ast.ImportFrom):
            names += [alias.asname or alias.name.split(".")[0] for alias in inner.names if alias.name != "*"]
        elif isinstance(inner, (*FUNCTIONS, ast.ClassDef)):
            names.append(inner.name)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            names.append(inner.id)
    return list(dict.fromkeys(names))


def global_reads(text: str, has_future_annotations: bool) -> set[str]:
    """Return the names that source text reads and does not bind in a function or class of its own."""
    head = "from __future__ import annotations\n" if has_future_annotations else ""
    found: set[str] = set()

    def visit(table: symtable.SymbolTable) -> None:
        is_module = table.get_type() == "module"
        for symbol in table.get_symbols():
            is_outer = symbol.is_global() or (is_module and not symbol.is_imported())
            if is_outer and symbol.is_referenced():
                found.add(symbol.get_name())
        for child in table.get_children():
            visit(child)

    visit(symtable.symtable(head + text, "<source>", "exec"))
    return found
