"""Extraction of classes and functions, with what they need, from the user's source files.

Works on syntax trees of the files and looks into imported modules only to resolve names. Texts stay word for word, so
that a line of a fault is still found; of a `torch.nn.Module` only the methods that can be reached are kept.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import types

import torch

from compilebisect.core.repro_case import Definition
from compilebisect.runtime.source_file import FUNCTIONS, NotExtractable, Piece, SourceFile, global_reads
from compilebisect.runtime.user_files import is_user_module

_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}


class SourceExtractor:
    """Collects definitions from the user's files, and from those of `own_modules`, which may be a library's.

    Attributes:
        imports: import statements of what is not the user's.
    """

    def __init__(self, own_modules: frozenset[str] = frozenset()) -> None:
        self.imports: set[str] = set()
        self._own_modules = own_modules
        self._sources: dict[str, SourceFile] = {}
        self._owners: dict[str, tuple[str, str]] = {}
        self._included: list[Piece] = []
        self._classes: list[Piece] = []
        self._used: set[str] = {"forward"}
        self._called: set[str] = set()
        self._operators: set[tuple[str, str]] = set()
        self._namespaces: dict[str, tuple[str, set[str]]] = {}
        self._aliases: list[Definition] = []
        self._edges: dict[str, list[str]] = {}
        self._has_future_annotations = False

    def require(self, module: str, name: str) -> None:
        """Include what `module` defines as `name`, and all that it needs.

        Raises:
            NotExtractable: where the source is missing or two files use one name for different things.
        """
        self._resolve(module, name)
        self._settle()

    def require_method(self, module: str, cls: str, name: str) -> None:
        """Include a method of a class of `module` as a function of its own, and all that it needs.

        Raises:
            NotExtractable: where the source is missing or two files use one name for different things.
        """
        source = self._source(module)
        for holder in source.bindings.get(cls, ()):
            for node in getattr(holder.node, "body", ()):
                if isinstance(node, FUNCTIONS) and node.name == name:
                    self._own(name, (module, f"{cls}.{name}"))
                    self._include(Piece(node, source))
        self._settle()

    def require_operator(self, namespace: str, name: str) -> None:
        """Include the statements that define and register the custom operator `namespace::name`, where found."""
        self._operators.add((namespace, name))
        self._settle()

    def use_method(self, name: str) -> None:
        """Keep methods of this name: something outside the extracted source calls them."""
        self._used.add(name)
        self._settle()

    @property
    def missing_operators(self) -> list[str]:
        """Custom operators that were required and whose definition is in no file of the user."""
        texts = "\n".join(piece.text() for piece in self._included)
        return [f"{space}::{name}" for space, name in sorted(self._operators) if not _mentions(texts, space, name)]

    def definitions(self) -> tuple[Definition, ...]:
        """Return what was collected, in an order in which it can run."""
        result: list[Definition] = []
        if self._has_future_annotations:
            self.imports.add("from __future__ import annotations")
        for module in self._module_order():
            source = self._sources[module]
            for piece in sorted((p for p in self._included if p.source is source), key=lambda p: p.start):
                text = piece.text()
                needs = tuple(sorted(global_reads(text, source.has_future_annotations)))
                result.append(
                    Definition(names=tuple(piece.names), text=text, needs=needs, file=source.file, line=piece.start)
                )
            result += [alias for alias in self._aliases if alias.file == module]
            for alias, (target, attributes) in self._namespaces.items():
                if target == module:
                    self.imports.add("import types")
                    lines = [f'{alias} = types.ModuleType("{alias}")']
                    lines += [f"{alias}.{attribute} = {attribute}" for attribute in sorted(attributes)]
                    result.append(Definition(names=(alias,), text="\n".join(lines), needs=tuple(sorted(attributes))))
        return tuple(result)

    def modules_defining(self, operators: set[tuple[str, str]]) -> list[str]:
        """Return the user's imported modules whose source defines one of these custom operators."""
        found = []
        for module in [name for name in list(sys.modules) if self._is_own(name)]:
            try:
                text = "\n".join(self._source(module).lines)
            except NotExtractable:
                continue
            if any(_mentions(text, namespace, name) for namespace, name in operators):
                found.append(module)
        return found

    def _is_own(self, module: str) -> bool:
        return module in self._own_modules or is_user_module(module)

    # -- resolving names ------------------------------------------------------------------------------------------

    def _source(self, module: str) -> SourceFile:
        if module not in self._sources:
            self._sources[module] = SourceFile(module)
        return self._sources[module]

    def _resolve(self, module: str, name: str, user: str = "") -> None:
        if user and user != module and module not in self._edges.setdefault(user, []):
            self._edges[user].append(module)
        if not self._is_own(module):
            self._own(name, ("import", f"from {module} import {name}"))
            self.imports.add(f"from {module} import {name}")
            return
        source = self._source(module)
        pieces = source.bindings.get(name)
        if not pieces:
            self._resolve_dynamic(source, name)
            return
        for piece in pieces:
            if isinstance(piece.node, ast.Import | ast.ImportFrom):
                self._resolve_import(source, piece.node, name)
            elif not _is_overload(piece.node):
                self._own(name, (module, piece.text() if not isinstance(piece.node, ast.ClassDef) else name))
                self._include(piece)

    def _own(self, name: str, owner: tuple[str, str]) -> None:
        first = self._owners.setdefault(name, owner)
        is_same_text = first[1] == owner[1] and first[1] != name
        if first != owner and first[0] != owner[0] and not is_same_text:
            raise NotExtractable(f"two files use the name {name} for different things")

    def _resolve_dynamic(self, source: SourceFile, name: str) -> None:
        for star in source.stars:
            target = source.absolute(star)
            if hasattr(sys.modules.get(target), name):
                self._resolve(target, name, source.module)
                return
        value = getattr(sys.modules.get(source.module), name, None)
        if value is None:
            raise NotExtractable(f"{source.module} has no definition of {name}")
        if isinstance(value, types.ModuleType) and not self._is_own(value.__name__):
            self.imports.add(f"import {value.__name__} as {name}")
            return
        home, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not home or home == source.module or qualname != name:
            raise NotExtractable(f"{source.module}.{name} is made at run time")
        self._resolve(home, name, source.module)

    def _resolve_import(self, source: SourceFile, node: ast.Import | ast.ImportFrom, name: str) -> None:
        for alias in node.names:
            bound = alias.asname or alias.name.split(".")[0]
            if bound != name:
                continue
            if isinstance(node, ast.Import):
                if not self._is_own(alias.name):
                    self.imports.add(f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else ""))
                elif "." in alias.name and not alias.asname:
                    raise NotExtractable(f"{source.file} uses the user's package {alias.name} by its dotted name")
                else:
                    self._namespace(source, bound, alias.name)
                continue
            module = source.absolute(node)
            if module == "__future__":
                continue
            if self._is_own(f"{module}.{alias.name}"):
                self._namespace(source, bound, f"{module}.{alias.name}")
            elif not self._is_own(module):
                suffix = f" as {alias.asname}" if alias.asname and alias.asname != alias.name else ""
                self.imports.add(f"from {module} import {alias.name}{suffix}")
            else:
                self._resolve(module, alias.name, source.module)
                if bound != alias.name and not any(bound in made.names for made in self._aliases):
                    self._own(bound, (source.module, bound))
                    text = f"{bound} = {alias.name}"
                    self._aliases.append(Definition(names=(bound,), text=text, needs=(alias.name,), file=module))

    def _namespace(self, source: SourceFile, alias: str, module: str) -> None:
        self._own(alias, ("namespace", module))
        self._namespaces.setdefault(alias, (module, set()))
        self._source(module)
        if module not in self._edges.setdefault(source.module, []):
            self._edges[source.module].append(module)

    # -- including statements -------------------------------------------------------------------------------------

    def _include(self, piece: Piece) -> None:
        if piece in self._included:
            return
        self._included.append(piece)
        if piece.source.has_future_annotations:
            self._has_future_annotations = True
        if isinstance(piece.node, ast.ClassDef) and _is_module_class(piece.source.module, piece.node.name):
            self._split(piece)
        self._scan(piece, piece.text())

    def _split(self, piece: Piece) -> None:
        node = piece.node
        if not isinstance(node, ast.ClassDef) or node.body[0].lineno == node.lineno:
            return
        piece.members = {}
        cls = getattr(sys.modules[piece.source.module], node.name)
        inherited = _library_names(cls)
        for statement in node.body:
            if isinstance(statement, FUNCTIONS):
                piece.members.setdefault(statement.name, []).append(statement)
                is_dunder = statement.name.startswith("__") and statement.name.endswith("__")
                if (is_dunder and statement.name != "__init__") or statement.name in inherited:
                    piece.kept.add(statement.name)
        self._classes.append(piece)

    def _scan(self, piece: Piece, text: str) -> None:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                self._used.add(node.attr)
                self._operator(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                self._used.add(node.value)
            elif isinstance(node, ast.Call):
                name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                if name:
                    self._called.add(name)
        for name in sorted(global_reads(text, piece.source.has_future_annotations)):
            is_bound = name in piece.source.bindings or hasattr(sys.modules.get(piece.source.module), name)
            if name not in piece.names and (name in piece.source.bindings or (is_bound and name not in _BUILTINS)):
                self._resolve(piece.source.module, name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                self._namespace_use(node.value.id, node.attr)

    def _operator(self, node: ast.Attribute) -> None:
        text = ast.unparse(node)
        match = re.fullmatch(r"torch\.ops\.(\w+)\.(\w+)", text)
        if match and match[1] not in ("aten", "prims", "prim", "higher_order"):
            self._operators.add((match[1], match[2]))

    def _namespace_use(self, alias: str, attribute: str) -> None:
        known = self._namespaces.get(alias)
        if known and attribute not in known[1]:
            known[1].add(attribute)
            self._resolve(known[0], attribute)

    def _settle(self) -> None:
        before = -1
        while before != (before := self._progress()):
            for piece in list(self._classes):
                self._reach(piece)
            self._include_registrations()

    def _progress(self) -> int:
        return len(self._included) + sum(len(piece.kept) for piece in self._classes) + len(self._operators)

    def _reach(self, piece: Piece) -> None:
        is_constructed = bool(set(piece.names) & self._called)
        for name in piece.members or {}:
            is_needed = name in self._used if name != "__init__" else is_constructed
            if is_needed and name not in piece.kept:
                piece.kept.add(name)
                self._scan(piece, piece.text())

    def _include_registrations(self) -> None:
        # Statements that nothing names, yet that act on what is included: operator definitions and registrations.
        names = {name for piece in self._included for name in piece.names if not isinstance(piece.node, ast.ClassDef)}
        for module in [m for m in list(sys.modules) if self._is_own(m)] if self._operators else list(self._sources):
            try:
                source = self._source(module)
            except NotExtractable:
                continue
            for piece in source.pieces:
                if piece in self._included or isinstance(piece.node, ast.Import | ast.ImportFrom):
                    continue
                own = {n for n in names if any(n in p.names and p.source is source for p in self._included)}
                if _registers(piece.node, own) or self._defines_operator(piece):
                    for name in piece.names:
                        if name != "_":
                            self._own(name, (module, piece.text()))
                    self._include(piece)

    def _defines_operator(self, piece: Piece) -> bool:
        if isinstance(piece.node, ast.ClassDef):
            return False
        text = piece.text()
        for namespace, name in self._operators:
            if f"{namespace}::{name}" in text and "library" in text:
                return True
            if re.search(rf"""Library\(\s*["']{re.escape(namespace)}["']""", text) and not isinstance(
                piece.node, FUNCTIONS
            ):
                return True
        return False

    def _module_order(self) -> list[str]:
        order: list[str] = []

        def visit(module: str) -> None:
            if module in seen:
                return
            seen.add(module)
            for target in self._edges.get(module, ()):
                visit(target)
            if module in self._sources:
                order.append(module)

        seen: set[str] = set()
        for module in self._sources:
            visit(module)
        return order


def _is_overload(node: ast.stmt) -> bool:
    """Return whether a function is only there for type checkers."""
    return isinstance(node, FUNCTIONS) and any(ast.unparse(item).endswith("overload") for item in node.decorator_list)


def _is_module_class(module: str, name: str) -> bool:
    value = getattr(sys.modules.get(module), name, None)
    return inspect.isclass(value) and issubclass(value, torch.nn.Module)


def _library_names(cls: type) -> set[str]:
    # What a library's base class may call on the instance; torch's own base calls only what the script asks for.
    names: set[str] = set()
    for base in cls.__mro__:
        if not is_user_module(base.__module__) and base not in (torch.nn.Module, object):
            names |= {name for name in vars(base) if not name.startswith("__")}
    return names


def _registers(node: ast.stmt, names: set[str]) -> bool:
    calls: list[ast.expr] = list(getattr(node, "decorator_list", []))
    if isinstance(node, ast.Expr | ast.For | ast.With | ast.If | ast.Try):
        calls += [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    for call in calls:
        function = call.func if isinstance(call, ast.Call) else call
        root: ast.expr = function
        while isinstance(root, ast.Attribute):
            root = root.value
        # `lib.define(...)` and `@op.register_fake`, yet not every function that one decorator of the user wraps.
        if isinstance(function, ast.Attribute) and isinstance(root, ast.Name) and root.id in names:
            return True
        if isinstance(call, ast.Call) and "torch" in ast.unparse(call.func):
            for argument in call.args:
                if isinstance(argument, ast.Name) and argument.id in names:
                    return True
    return False


def _mentions(text: str, namespace: str, name: str) -> bool:
    return f"{namespace}::{name}" in text or bool(re.search(rf"""Library\(\s*["']{re.escape(namespace)}["']""", text))
