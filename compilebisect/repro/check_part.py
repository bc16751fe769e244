"""Which part of a script judges, and so must stay as it is while the rest of it shrinks."""

from __future__ import annotations

import ast
import re

from compilebisect.core.quoting import source_lines
from compilebisect.core.reduce.script_text import ScriptText
from compilebisect.core.reduce.unread_names import names_bound, names_read

# Decorators that make a custom operator, one of its kernels, or a kernel of Triton.
_DEFINES_OPERATOR = re.compile(r"\b(library|custom_op|impl|register_\w+|jit|autotune|heuristics)\b")
_UNINITIALIZED = re.compile(r"\b(?:new_)?empty(?:_like|_strided|_permuted)?\((?:[^()]|\([^()]*\))*\)(?!\.\w+_\()")
_WRITES = re.compile(r"\w_\(|\] [-+*/|&]?= |torch\.ops\.")
# What belongs to the part of our own scripts that judges.
_OURS = frozenset(
    {
        "verdict",
        "unforeseen",
        "main",
        "run",
        "child",
        "chain",
        "leaves",
        "cotangents",
        "outline",
        "difference",
        "DEADLINE_S",
    }
)
# Whoever calls these decides how the script ends, or compiles.
_ENDS = frozenset({"exit", "_exit", "abort", "kill", "SystemExit", "quit", "compile", "excepthook"})


def is_check(statement: ast.stmt) -> bool:
    """Return whether a top-level statement of a script belongs to the part that compiles and judges."""
    if isinstance(statement, ast.ClassDef | ast.Import | ast.ImportFrom):
        return False
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        # A custom operator is taken as it is: change one of its kernels, and it brings a fault of its own.
        is_kernel = any(_DEFINES_OPERATOR.search(ast.unparse(item)) for item in statement.decorator_list)
        return statement.name in _OURS or is_kernel or _names_any(statement, _ENDS)
    if isinstance(statement, ast.If | ast.Try | ast.For | ast.While | ast.With):
        return True
    return _names_any(statement, _ENDS | _OURS | {"library", "path", "environ"})


def model_lines(text: str) -> int:
    """Count the lines of code of a script of ours that are the model, its inputs and what these need.

    Those that compile and judge do not count, nor do imports for them alone.
    """
    script = ScriptText(text, _judges, frozenset())
    read = set().union(*(names_read(statement) for statement in script.editable))
    imports = [item for item in script.editable if isinstance(item, ast.Import | ast.ImportFrom)]
    return script.size()[0] - sum(not read.intersection(names_bound(item)) for item in imports)


def _judges(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return statement.name in _OURS
    if isinstance(statement, ast.If | ast.For | ast.Assign | ast.ImportFrom):
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        return bool(names & {"sys", "__name__", "DEADLINE_S"})
    return False


def _names_any(statement: ast.stmt, wanted: frozenset[str]) -> bool:
    names = {node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return bool(names & wanted)


def kept_lines(text: str, code: str, *, keeps_seeds: bool) -> frozenset[str]:
    """Return the lines of a script outside of its check that must stay word for word.

    Args:
        text: the script.
        code: the line that the fault points to, if there is one.
        keeps_seeds: also those that seed, as they must where results are compared.
    """
    lines = {code} if code else set()
    for line in map(str.strip, source_lines(text)):
        # The script has to run from any folder and on any device.
        if "__file__" in line or line == "model.to(device)" or (keeps_seeds and "manual_seed(" in line):
            lines.add(line)
    return frozenset(lines)


def with_joined_move(text: str) -> str:
    """Return a script that makes its model and moves it to the device in one line, where nothing stands between."""
    return re.sub(r"^( +)model = (.+\))\n\1model\.to\(device\)$", r"\1model = \2.to(device)", text, flags=re.MULTILINE)


def may_read_garbage(text: str, before: str) -> bool:
    """Return whether a script may compare memory that nothing wrote, which `before`, the one it comes from, did not.

    Such memory differs from run to run, and a difference would be taken for one between eager and compiled.
    """
    uninitialized = len(_UNINITIALIZED.findall(text))
    if not uninitialized:
        return False
    has_more = uninitialized > len(_UNINITIALIZED.findall(before))
    return has_more or len(_WRITES.findall(text)) < len(_WRITES.findall(before))
