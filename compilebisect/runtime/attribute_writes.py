"""Where a module's own code changes an attribute: the line that makes compiled code unusable for the next call."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from torch import nn

from compilebisect.core.outcome import Frame
from compilebisect.source_files import is_user_or_library_file

_MUTATORS = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop", "popitem", "popleft"}
    | {"remove", "setdefault", "update"}
)


def write_place(module: nn.Module, subject: str) -> Frame | None:
    """Return the first line of a method of `module` that changes `subject`, such as `self.step`.

    `forward` is looked at before other methods, and constructors not at all. A part of what `subject` names counts,
    as does a container around it: `self.cache` where `self.cache['k']` changed.
    """
    wanted = re.sub(r"\[[^\]]*\]", "", subject)
    cls: Any = type(module)  # mypy takes `nn.Module.__hash__` for one of the class
    found = list(_writes(cls))
    for name in (wanted, wanted.rpartition(".")[0]):
        if name and name != "self":
            for written, frame in found:
                if written == name:
                    return frame
    return None


@functools.cache
def _writes(cls: type) -> tuple[tuple[str, Frame], ...]:
    """List what the methods of a class write to, as `self.name`, with the line of each write."""
    functions: dict[str, Any] = {}
    for base in cls.__mro__:
        for name, function in vars(base).items():
            if inspect.isfunction(function) and name != "__init__" and not base.__module__.startswith("torch."):
                functions.setdefault(name, function)
    ordered = sorted(functions.items(), key=lambda item: item[0] != "forward")
    return tuple(found for _, function in ordered for found in _writes_of(inspect.unwrap(function)))


def _writes_of(function: object) -> Iterator[tuple[str, Frame]]:
    try:
        lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
        file = inspect.getsourcefile(function) or ""  # type: ignore[arg-type]
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return
    if not isinstance(tree, ast.FunctionDef) or not tree.args.args or not is_user_or_library_file(file):
        return
    own_name = tree.args.args[0].arg
    found = []
    for node in ast.walk(tree):
        for target in _targets(node):
            text = ast.unparse(target)
            if text.startswith(f"{own_name}."):
                found.append((f"self{text[len(own_name) :]}", node.lineno))  # type: ignore[attr-defined]
    for written, line in sorted(found, key=lambda item: item[1]):
        number = first + line - 1
        code = linecache.getline(file, number).strip()
        yield written, Frame(file=file, line=number, function=tree.name, code=code)


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
        targets = [node.func.value]
    for target in targets:
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        for part in parts:
            while isinstance(part, ast.Subscript | ast.Starred):
                part = part.value
            yield part
