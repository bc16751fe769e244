"""What Dynamo says about a guard that failed, read into the user's terms. Pure text work.

The texts are those of `torch._dynamo.guards` and of the tensor check in `torch/csrc/dynamo/guards.cpp`; all forms were
seen with torch 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

import ast
import re
from enum import Enum

import msgspec


class Cause(str, Enum):
    """What about a value made compiled code unusable for a call."""

    SIZE = "size"
    RANK = "number of dims"
    STRIDE = "stride"
    DTYPE = "dtype"
    DEVICE = "device"
    LAYOUT = "kind of tensor"
    REQUIRES_GRAD = "requires_grad"
    VALUE = "value"
    LENGTH = "length"
    KEYS = "keys"
    PRESENCE = "presence"
    TYPE = "type"
    IDENTITY = "identity"
    ALIASING = "aliasing"
    GLOBAL_STATE = "state of torch"
    OTHER = "guard"


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """One failed guard.

    `source` is the Python expression of what was looked at, as Dynamo writes it; empty where there is none, the name
    of the setting for the state of torch. `dim` is set for a size or stride. `expected` and `actual` are texts, empty
    where the guard does not say. `compile_id` names the compiled code that did not fit.
    `is_of_first_sizes` marks the guard on a size that was never seen to change, and `is_static_integer` the one on an
    integer attribute of a module, which Dynamo never makes dynamic by itself.
    `code`, `file` (its last parts), `line` and `function` are the user's line that the guard comes from. `stack` holds
    (file, line, function, code) from the compiled frame inwards.
    """

    cause: Cause
    source: str = ""
    dim: int | None = None
    expected: str = ""
    actual: str = ""
    text: str = ""
    compile_id: str = ""
    is_of_first_sizes: bool = False
    is_static_integer: bool = False
    code: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    stack: tuple[tuple[str, int, str, str], ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts of which one stands in each message about such a guard on the same source, whatever the numbers are."""
        source = self.source
        if self.cause is Cause.SIZE:
            return f"tensor '{source}' size mismatch at index {self.dim}.", f"{source}.size()[{self.dim}]"
        if self.cause is Cause.LENGTH:
            return f"not {source} ", f"len({source})"
        if self.cause is Cause.GLOBAL_STATE:
            return (f"changed: {source}",)
        if self.cause in _TENSOR_WORDS_OF:
            return (f"tensor '{source}' {_TENSOR_WORDS_OF[self.cause]} mismatch",)
        if self.cause is Cause.VALUE:
            return f"{source} == ", f"{source} is "
        if self.cause is Cause.ALIASING:  # `a is b`, which stands there word for word
            return (self.text,)
        return (source,) if source else (self.text,)


_TENSOR_WORDS = {
    "size": Cause.SIZE,
    "stride": Cause.STRIDE,
    "rank": Cause.RANK,
    "dtype": Cause.DTYPE,
    "requires_grad": Cause.REQUIRES_GRAD,
    "dispatch key set": Cause.LAYOUT,
    "Tensor device index": Cause.DEVICE,
}
_TENSOR_WORDS_OF = {cause: word for word, cause in _TENSOR_WORDS.items() if cause is not Cause.SIZE}
_COMPILE_ID = re.compile(r"^(\W?\d+/\d+\S*): ")
_TENSOR = re.compile(
    r"^tensor '(?P<source>.+)' (?P<word>[\w ]+?) mismatch(?: at index (?P<dim>\d+))?[.,] (?P<rest>.*)$"
)
_EXPECTED = re.compile(r"[Ee]xpected(?:[^,=]*?to be)? (?P<expected>.*?)(?:, actual (?P<actual>.*))?$")
_NO_TENSOR = re.compile(r"^expected type of '(?P<source>.+)' to be a tensor type, ?'? but found (?P<actual>.*)$")
_STATE = re.compile(r"^GLOBAL_STATE changed: (?P<what>.*)$")
_ORIGIN = re.compile(
    r"^(?P<code>.*?)  # (?P<file>\S+?):(?P<line>\d+) in (?P<function>\S+)(?: \((?P<remark>.*)\))?$", re.S
)
_STACK_LINE = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)$')
_STACK_TITLE = "User stack trace:"
_STATIC_INTEGER = "considers integer attributes of the nn.Module to be static"
_ADDRESS = re.compile(r"\b(?:0x[0-9a-f]{6,}|\d{9,})\b")
# What follows an identity or type check in the same line is no Python.
_TYPE_NOTE = re.compile(r", type=<.*$")
_SIZE = re.compile(r"(?P<source>[A-Za-z_][\w.\[\]'\"]*)\.(?:size|stride)\(\)\[(?P<dim>\d+)\]")
_DELETED = re.compile(r"(?:got deallocated|invalidated)")


def parse_guard(reason: str) -> Guard:
    """Read one reason for a recompile, as `torch._dynamo.guards.get_guard_fail_reason` gives it."""
    match = _COMPILE_ID.match(reason)
    compile_id = match[1] if match else ""
    body, _, stack = reason[match.end() if match else 0 :].partition(_STACK_TITLE)
    text, code, file, line, function, remark = _with_origin(body.strip())
    guard = _parsed(text)
    return msgspec.structs.replace(
        guard,
        text=without_addresses(text),
        compile_id=compile_id,
        is_static_integer=_STATIC_INTEGER in remark,
        code=code,
        file=file,
        line=line,
        function=function,
        stack=_stack(stack),
    )


def without_addresses(text: str) -> str:
    """Return a guard's text without the ids and addresses of objects, which differ in every process."""
    return re.sub(r",\s*…", "", _ADDRESS.sub("…", _TYPE_NOTE.sub("", text)))


def _with_origin(body: str) -> tuple[str, str, str, int, str, str]:
    """Split `guard  # code  # file:line in function (remark)`."""
    text, mark, rest = body.partition("  # ")
    origin = _ORIGIN.match(rest) if mark else None
    if origin is None:
        return text.strip(), "", "", 0, "", rest
    return (
        text.strip(),
        origin["code"].strip(),
        origin["file"],
        int(origin["line"]),
        origin["function"],
        origin["remark"] or "",
    )


def _stack(text: str) -> tuple[tuple[str, int, str, str], ...]:
    frames: list[tuple[str, int, str, str]] = []
    for line in text.splitlines():
        match = _STACK_LINE.match(line)
        if match:
            frames.append((match["file"], int(match["line"]), match["function"], ""))
        elif frames and line.strip() and not frames[-1][3]:
            frames[-1] = (*frames[-1][:3], line.strip())
    return tuple(frames)


def _parsed(text: str) -> Guard:
    if match := _TENSOR.match(text):
        return _tensor_guard(match)
    if match := _NO_TENSOR.match(text):
        return Guard(cause=Cause.TYPE, source=match["source"], expected="a tensor", actual=match["actual"])
    if match := _STATE.match(text):
        return Guard(cause=Cause.GLOBAL_STATE, source=(match["what"].split() or [""])[0])
    if _DELETED.search(text):
        return Guard(cause=Cause.IDENTITY)
    expression = _TYPE_NOTE.sub("", text)
    try:
        node = ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError):
        return Guard(cause=Cause.OTHER)
    return _expression_guard(node, expression)


def _tensor_guard(match: re.Match[str]) -> Guard:
    values = _EXPECTED.search(match["rest"])
    expected = (values["expected"] if values else "").removeprefix("requires_grad=")
    dim = int(match["dim"]) if match["dim"] else None
    cause = _TENSOR_WORDS.get(match["word"], Cause.OTHER)
    actual = (values["actual"] or "") if values else ""
    if cause is Cause.REQUIRES_GRAD:
        expected, actual = ("True", "False") if expected == "1" else ("False", "True")
    return Guard(
        cause=cause,
        source=match["source"],
        dim=dim,
        expected=expected,
        actual=actual,
        is_of_first_sizes=cause is Cause.SIZE,
    )


def _expression_guard(node: ast.expr, text: str) -> Guard:
    if match := _SIZE.search(text):
        cause = Cause.STRIDE if ".stride()" in match[0] else Cause.SIZE
        return Guard(cause=cause, source=match["source"], dim=int(match["dim"]), expected=text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = node.operand
        if isinstance(inner, ast.Call):
            return _call_guard(inner, is_negative=True)
        return Guard(cause=Cause.LENGTH, source=ast.unparse(inner), expected="0")
    if isinstance(node, ast.Call):
        return _call_guard(node, is_negative=False)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _comparison_guard(node.left, node.ops[0], node.comparators[0])
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return Guard(cause=Cause.LENGTH, source=ast.unparse(node), expected="at least 1")
    return Guard(cause=Cause.OTHER)


def _call_guard(call: ast.Call, *, is_negative: bool) -> Guard:
    function = ast.unparse(call.func).rpartition(".")[2].strip("_")
    values = [ast.unparse(argument) for argument in call.args]
    if function == "hasattr" and len(values) == 2 and isinstance(call.args[1], ast.Constant):
        name = f"{values[0]}.{call.args[1].value!s}"
        return Guard(cause=Cause.PRESENCE, source=name, expected="missing" if is_negative else "there")
    if function in ("dict_contains", "set_contains") and len(values) == 2:
        return Guard(cause=Cause.KEYS, source=values[1], expected=_has(values[0], is_negative))
    if function == "contains" and len(values) == 2:  # set.__contains__(s, item)
        return Guard(cause=Cause.KEYS, source=values[0], expected=_has(values[1], is_negative))
    if function == "check_type_id" and values:
        return Guard(cause=Cause.TYPE, source=values[0])
    if function == "check_obj_id" and values:
        return Guard(cause=Cause.IDENTITY, source=values[0])
    if function == "isnan" and values:
        return Guard(cause=Cause.VALUE, source=values[0], expected="nan")
    return Guard(cause=Cause.OTHER)


def _has(item: str, is_negative: bool) -> str:
    return f"no {item}" if is_negative else f"has {item}"


def _comparison_guard(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Guard:
    if isinstance(operator, (ast.Is, ast.IsNot)):
        if isinstance(right, ast.Constant):
            expected = f"{'not ' * isinstance(operator, ast.IsNot)}{ast.unparse(right)}"
            return Guard(cause=Cause.VALUE, source=ast.unparse(left), expected=expected)
        return Guard(cause=Cause.ALIASING, source=f"{ast.unparse(left)} and {ast.unparse(right)}")
    if isinstance(operator, (ast.In, ast.NotIn)):
        is_negative = isinstance(operator, ast.NotIn)
        return Guard(cause=Cause.KEYS, source=ast.unparse(right), expected=_has(ast.unparse(left), is_negative))
    expected = ast.unparse(right)
    if isinstance(left, ast.Call) and ast.unparse(left.func) == "len":
        return Guard(cause=Cause.LENGTH, source=ast.unparse(left.args[0]), expected=expected)
    if "keys(" in ast.unparse(left):
        source = next((a for node in ast.walk(left) if isinstance(node, ast.Call) for a in node.args), left)
        while isinstance(source, ast.Call) and source.args:
            source = source.args[0]
        return Guard(cause=Cause.KEYS, source=ast.unparse(source), expected=f"has {expected}")
    if isinstance(left, (ast.Name, ast.Attribute, ast.Subscript)):
        return Guard(cause=Cause.VALUE, source=ast.unparse(left), expected=expected)
    return Guard(cause=Cause.OTHER)
