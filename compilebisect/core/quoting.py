"""The one door through which text becomes part of a Python script: as a comment, a string, a name or an expression.

Names of classes, attributes, files, messages and code lines come from the user's model. Whatever they hold, they stay
on one line, in one token or one expression, and never become a statement of the script.
"""

from __future__ import annotations

import ast
import functools
import keyword
import math
import re
import unicodedata
from typing import Any

from compilebisect.error_text import error_text

#: The most characters of a text that a comment holds.
LONGEST_COMMENT = 400
_LINE_END = re.compile("\r\n|\r|\n")
# What Python takes for a declaration of the file's encoding when it stands in one of the first two lines.
_ENCODING = re.compile("coding(?=[:=])")


class NotPython(ValueError):
    """A text cannot be what the script needs in its place."""


def comment(text: str) -> str:
    """Return text for one line behind a `#`: printable, bounded, and no declaration of an encoding."""
    if len(text) > LONGEST_COMMENT:
        text = f"{text[:LONGEST_COMMENT]} ..."
    text = "".join(char if char.isprintable() else _escaped(char) for char in text)
    return _ENCODING.sub("coding ", text).rstrip()


def _escaped(char: str) -> str:
    return " " if char in "\t\n\r" else char.encode("unicode_escape", "surrogatepass").decode("ascii")


def literal(value: Any) -> str:
    """Return the expression of a text, a number, or a list, tuple or dict of such, in one line.

    Raises:
        NotPython: for any other value, and for integers that Python refuses to print.
    """
    if type(value) is str:
        text = repr(value)
        return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in value else text
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if type(value) is list:
        return f"[{', '.join(map(literal, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if type(value) is dict:
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    if type(value) in (int, bool, bytes, type(None)):
        try:
            return repr(value)
        except ValueError as error:
            raise NotPython(f"a number that Python does not print: {error_text(error)}") from error
    raise NotPython(f"no literal stands for an object of class {type(value).__name__}")


def is_name(text: object) -> bool:
    """Return whether text can stand as a name, and Python takes it for that very name and no other."""
    return (
        isinstance(text, str)
        and text.isidentifier()
        and not keyword.iskeyword(text)
        and text != "__debug__"  # nobody can assign to it
        and unicodedata.normalize("NFKC", text) == text
    )


def is_dotted_name(text: object) -> bool:
    """Return whether text is names joined by dots."""
    return isinstance(text, str) and all(map(is_name, text.split(".")))


def name(text: str) -> str:
    """Return text that is a name.

    Raises:
        NotPython: it is none.
    """
    if not is_name(text):
        raise NotPython(f"{comment(repr(text))} is no name in Python")
    return text


def dotted_name(text: str) -> str:
    """Return text that is names joined by dots.

    Raises:
        NotPython: it is none.
    """
    if not is_dotted_name(text):
        raise NotPython(f"{comment(repr(text))} is no dotted name in Python")
    return text


def attribute(owner: str, attribute_name: str) -> str:
    """Return the expression that reads an attribute, whatever it is called."""
    return f"{owner}.{attribute_name}" if is_name(attribute_name) else f"getattr({owner}, {literal(attribute_name)})"


def attribute_path(path: str) -> str:
    """Return the expression of names joined by dots, of which some may be none in Python, such as `from`."""
    first, *others = path.split(".")
    return functools.reduce(attribute, others, first)


def assignment(target: str, value: str) -> str:
    """Return the statement that gives `target` a value; an attribute that `attribute` had to spell out is set.

    Raises:
        NotPython: nothing can be assigned to it.
    """
    kind, owner, key = _target(target)
    return f"setattr({owner}, {key}, {value})" if kind == "getattr" else f"{target} = {value}"


@functools.lru_cache(maxsize=4096)
def _target(text: str) -> tuple[str, str, str]:
    node = _parsed(text)
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return "plain", "", ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        owner, key = (ast.get_source_segment(text, part) or "" for part in node.args)
        return "getattr", owner, key
    raise NotPython(f"nothing can be assigned to {comment(text)}")


@functools.lru_cache(maxsize=4096)
def expression(text: str) -> str:
    """Return text that is one expression in one line, and stays one wherever it is put.

    Raises:
        NotPython: it is none.
    """
    _parsed(text)
    return text


def _parsed(text: str) -> ast.expr:
    try:
        node = ast.parse(text, mode="eval").body
        ast.parse(f"({text})", mode="eval")  # a comment behind it would swallow what follows
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise NotPython(f"{comment(text)} is no expression: {error_text(error)}") from error
    if _LINE_END.search(text) or "\f" in text:
        raise NotPython(f"{comment(text)} is more than one line")
    return node


@functools.lru_cache(maxsize=256)
def import_statement(text: str) -> str:
    """Return text that is one import statement.

    Raises:
        NotPython: it is none.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise NotPython(f"{comment(text)} imports nothing: {error_text(error)}") from error
    if len(body) != 1 or not isinstance(body[0], ast.Import | ast.ImportFrom) or _LINE_END.search(text):
        raise NotPython(f"{comment(text)} is no import statement")
    return text


def source_lines(text: str) -> list[str]:
    """Return the lines of source as Python counts them: a form feed or a U+2028 ends none."""
    return _LINE_END.split(text)


def names_in(source: str) -> set[str]:
    """Return the names that source uses as such, wherever else they may stand in its texts and comments."""
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
