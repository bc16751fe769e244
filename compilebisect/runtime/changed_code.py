"""Running functions of the user or of a library with other code for a while: the same file, compiled from a changed
syntax tree.
"""

from __future__ import annotations

import ast
import functools
import gc
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compilebisect.error_text import error_text

# From a file's tree, made anew for each use, to the changed one.
Change = Callable[[ast.Module], ast.Module]


class CannotChange(Exception):
    """The code that runs is not that of the file, or does not fit in once it is changed; the message says which."""


@functools.lru_cache(maxsize=64)
def file_text(file: str) -> str:
    """Return the text of a source file.

    Raises:
        CannotChange: it cannot be read.
    """
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotChange(f"{file} cannot be read: {error_text(error)}") from error


def file_tree(file: str) -> ast.Module:
    """Parse a source file.

    Raises:
        CannotChange: it cannot be read or parsed.
    """
    try:
        return ast.parse(file_text(file))
    except SyntaxError as error:
        raise CannotChange(f"{file} cannot be parsed: {error_text(error)}") from error


@contextmanager
def changed_code(changes: Mapping[str, Change], names: Mapping[str, Any]) -> Iterator[None]:
    """Let all living functions of some files run changed code, which may read `names` as globals.

    The whole file is compiled, so closures, decorators and classes need no care. Only functions that change get new
    code, and only if what they run now is really what their file says.

    Raises:
        CannotChange: one of the changes did not reach any function, or does not fit.
    """
    swapped: list[tuple[types.FunctionType, types.CodeType]] = []
    named: list[dict[str, Any]] = []
    try:
        for file, change in changes.items():
            before, after = _code_of(file_tree(file), file), _code_of(change(file_tree(file)), file)
            changed = {old: new for old, new in _pairs(before, after) if old != new}
            functions = [function for function in _functions_in(file) if function.__code__ in changed]
            if not functions:
                raise CannotChange(f"what runs is not what {Path(file).name} says")
            for function in functions:
                if not any(space is function.__globals__ for space in named):
                    function.__globals__.update(names)
                    named.append(function.__globals__)
                swapped.append((function, function.__code__))
                try:
                    function.__code__ = changed[function.__code__]
                except ValueError as error:
                    raise CannotChange(f"{function.__qualname__}: {error_text(error)}") from error
        yield
    finally:
        for function, code in swapped:
            function.__code__ = code
        for space in named:
            for name in names:
                space.pop(name, None)


def _code_of(tree: ast.Module, file: str) -> types.CodeType:
    try:
        code: types.CodeType = compile(tree, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, TypeError) as error:
        raise CannotChange(f"{Path(file).name} does not compile when it is changed: {error_text(error)}") from error
    return code


def _pairs(before: types.CodeType, after: types.CodeType) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """Yield the code of each function of a file with its counterpart: a change of expressions moves none of them."""
    yield before, after
    counterparts = {(code.co_name, code.co_firstlineno): code for code in _nested(after)}
    for code in _nested(before):
        other = counterparts.get((code.co_name, code.co_firstlineno))
        if other is not None:
            yield from _pairs(code, other)


def _nested(code: types.CodeType) -> list[types.CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def _functions_in(file: str) -> list[types.FunctionType]:
    return [
        found for found in gc.get_objects() if type(found) is types.FunctionType and found.__code__.co_filename == file
    ]
