"""Edits of what stands around the code of functions: docstrings, annotations, defaults, decorators, parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from compilebisect.core.reduce.expression_edits import element_edits, entry_edits, tuple_edits
from compilebisect.core.reduce.script_text import DEFINITIONS, Edit, ScriptText
from compilebisect.core.reduce.statement_edits import without
from compilebisect.core.reduce.unread_names import names_read

Function = ast.FunctionDef | ast.AsyncFunctionDef


def without_docstrings(script: ScriptText) -> str:
    """Return the text without the docstrings of functions and classes."""
    statements = [statement for block in script.blocks() for statement in block.statements]
    return without(script, [statement for statement in statements if script.is_docstring(statement)])


def annotation_edits(script: ScriptText) -> list[Edit]:
    """Return the edits that drop the annotations of functions and of assignments in them."""
    edits = []
    for function in script.functions():
        for parameter in _parameters(function.args):
            if parameter.annotation is not None:
                start, end = script.span(parameter)
                edits.append(Edit(start + len(parameter.arg), end))
        if function.returns is not None:
            start, end = script.span(function.returns)
            arrow = script.text.rindex("->", 0, start)
            edits.append(Edit(len(script.text[:arrow].rstrip()), end))
        for node in ast.walk(function):
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                edits.append(Edit(script.span(node.target)[1], script.span(node.annotation)[1]))
    return edits


def default_edits(script: ScriptText) -> list[Edit]:
    """Return the edits that drop the default of one parameter each."""
    edits = []
    for function in script.functions():
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs: list[tuple[ast.arg, ast.expr | None]] = []
        if arguments.defaults:
            pairs += zip(positional[-len(arguments.defaults) :], arguments.defaults, strict=True)
        pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        edits += [Edit(script.span(name)[1], script.span(value)[1]) for name, value in pairs if value is not None]
    return edits


def decorator_edits(script: ScriptText) -> list[Edit]:
    """Return the edits that drop one decorator each."""
    return [
        Edit(script.line_start(item.lineno), script.line_start(item.end_lineno + 1))
        for statement in script.editable
        for node in ast.walk(statement)
        if isinstance(node, DEFINITIONS)
        for item in node.decorator_list
        if item.end_lineno is not None
    ]


def parameter_edits(script: ScriptText) -> Iterator[list[Edit]]:
    """Yield the edits that drop one parameter that nothing reads, together with what calls pass for it."""
    for function in script.functions():
        if script.is_called_by_frozen(function):
            continue
        is_method = isinstance(script.parents[function], ast.ClassDef)
        positional = len(function.args.posonlyargs) + len(function.args.args) - is_method
        read = set().union(*(names_read(statement) for statement in function.body))
        for number, parameter in enumerate(_parameters(function.args)):
            if parameter.arg in read or (is_method and number == 0):
                continue
            edit = _dropped_parameter(script, function, number)
            position = number - is_method if number - is_method < positional else None
            passed = list(_passed(script, _callers(script, function, positional), position, parameter.arg))
            returned = _in_returned(script, positional, position, parameter.arg)
            # A forward is called as a part of another module, or with what a function returns, or both.
            for sites in dict.fromkeys([(*passed, *returned), tuple(passed), tuple(returned), ()]):
                yield [edit, *sites]


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _dropped_parameter(script: ScriptText, function: Function, position: int) -> Edit:
    """Return the edit that drops a parameter and its default."""
    arguments, names = function.args, _parameters(function.args)
    start, end = script.span(names[position])
    positional = len(arguments.posonlyargs) + len(arguments.args)
    defaults = [None] * (positional - len(arguments.defaults)) + arguments.defaults + arguments.kw_defaults
    default = defaults[position]
    if default is not None:
        end = script.span(default)[1]
    rest = script.text[end:]
    if rest.lstrip().startswith(","):
        comma = end + rest.index(",") + 1
        return Edit(start, comma + len(script.text[comma:]) - len(script.text[comma:].lstrip()))
    before = script.text[:start].rstrip().removesuffix(",").rstrip()
    if before.endswith("*") and len(arguments.kwonlyargs) == 1 and arguments.vararg is None:
        before = before[:-1].rstrip().removesuffix(",")  # a star with nothing behind it does not parse
    return Edit(len(before), end)


def _callers(script: ScriptText, function: Function, count: int) -> list[ast.Call]:
    """Return the calls by the function's name, or its class's; of a forward those of attributes of `self` that fit."""
    owner = script.parents[function]
    wanted = owner.name if function.name == "__init__" and isinstance(owner, ast.ClassDef) else function.name
    methods = {other.name for other in script.functions()}
    calls = []
    for node in (node for statement in script.editable for node in ast.walk(statement)):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            is_part = (
                isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "self"
                and node.func.attr not in methods
            )
            if called == wanted or (wanted == "forward" and is_part and len(node.args) == count):
                calls.append(node)
    return calls


def _passed(script: ScriptText, calls: list[ast.Call], position: int | None, name: str) -> Iterator[Edit]:
    """Yield the edits that drop what calls pass for a parameter."""
    for call in calls:
        arguments = sorted([*call.args, *call.keywords], key=script.span)
        for argument, edit in zip(arguments, element_edits(script, arguments), strict=True):
            is_at_position = position is not None and argument in call.args[position : position + 1]
            if is_at_position or (isinstance(argument, ast.keyword) and argument.arg == name):
                yield edit


def _in_returned(script: ScriptText, count: int, position: int | None, name: str) -> list[Edit]:
    """Return the edits that drop an argument where a function returns what a model is called with.

    That is a tuple with an element for each parameter, or a dictionary with an entry of the parameter's name.
    """
    for node in (node for statement in script.editable for node in ast.walk(statement)):
        if not (isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)):
            continue
        for item in node.value.elts:
            if isinstance(item, ast.Tuple) and len(item.elts) == count and position is not None:
                return next(islice(tuple_edits(script, item), position, None), [])
            if isinstance(item, ast.Dict):
                keys = [getattr(key, "value", None) for key in item.keys]
                if name in keys and None not in item.keys:
                    return [list(entry_edits(script, item))[keys.index(name)]]
    return []
