"""The text of a repro script, made from a case."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import jinja2

from compilebisect.core import quoting
from compilebisect.core.fingerprint import telling_words
from compilebisect.core.outcome import Kind
from compilebisect.core.recompile import CALLS_IN_A_ROW
from compilebisect.core.repro_case import Graph, Program, ReproCase, Statement, Value
from compilebisect.error_text import error_line
from compilebisect.repro.expression import graph_text, statement_text, value_text
from compilebisect.repro.recompile_text import judging_lines, row_lines
from compilebisect.repro.run_text import compare_lines, run_function, run_lines
from compilebisect.repro.wording import expected_text, head_lines

_TEMPLATES = {
    Kind.GRAPH_BREAK: "graph_break.py.jinja",
    Kind.RECOMPILE: "recompile.py.jinja",
    Kind.ERROR: "error.py.jinja",
    Kind.DIVERGENCE: "divergence.py.jinja",
    Kind.CRASH: "process.py.jinja",
    Kind.TIMEOUT: "process.py.jinja",
}
_STANDARD = ("os", "sys")
_STANDARD_BY_KIND = {
    Kind.GRAPH_BREAK: ("logging",),
    Kind.RECOMPILE: ("copy", "logging"),
    Kind.ERROR: ("traceback",),
    Kind.CRASH: ("json", "multiprocessing", "signal"),
    Kind.TIMEOUT: ("json", "multiprocessing", "signal"),
}
_NEW = '''def new(cls, /, **attributes):
    """Make an object from its class and attributes alone; its constructor is not called."""
    result = cls.__new__(cls)
    result.__dict__.update(attributes)
    return result'''
_NEW_MODULE = '''def new_module(cls):
    """Make a module without calling its own constructor: its state is set below."""
    result = cls.__new__(cls)
    torch.nn.Module.__init__(result)
    return result'''
_CAST = '''def cast(module, dtype):
    """Return the module with its floating parameters and buffers in another dtype."""
    return module.to(dtype)'''
_STRIDED = '''def strided(values, stride):
    """Lay values out in memory with these strides."""
    first = values[tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)]
    result = torch.empty_strided(first.shape, stride, dtype=values.dtype, device=values.device)
    return result.copy_(first).expand(values.shape)'''
_FUNCTIONS = (("new_module", _NEW_MODULE), ("new", _NEW), ("cast", _CAST), ("strided", _STRIDED))


class UnwritableCase(Exception):
    """No script can be written for a case; the message says why."""


def write_script(case: ReproCase, path: Path) -> None:
    """Write the script of a case to `path`, and its tensors beside it where it needs any.

    Raises:
        UnwritableCase: see `script_text`.
    """
    write_text(case, script_text(case, script_dir=path.parent), path)


def write_text(case: ReproCase, text: str, path: Path) -> None:
    """Write a script made from a case, and beside it the case's tensors where it reads any."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = path.with_suffix(".safetensors")
    if case.tensor_file and "load_file(" in text:
        shutil.copyfile(case.tensor_file, saved)
    else:
        saved.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")


def script_text(case: ReproCase, *, script_dir: Path) -> str:
    """Return the text of the script.

    Args:
        case: what to write.
        script_dir: where the script will lie; folders of the user's files are given relative to it.

    Raises:
        UnwritableCase: for a kind of fault that no script shows, and where a part of the case is no Python.
    """
    try:
        text = _script_text(case, script_dir)
        text.encode("utf-8")
        ast.parse(text)
    except (quoting.NotPython, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnwritableCase(f"what the script needs cannot be written as Python: {error_line(error)}") from error
    return text


def _script_text(case: ReproCase, script_dir: Path) -> str:
    template = _TEMPLATES.get(case.fault.kind)
    if template is None:
        raise UnwritableCase(f"no script shows a {case.fault.kind.value}")
    build, definitions, args, kwargs = _program_parts(case)
    build = [_plainly_made(line, definitions) for line in build]
    has_calls = case.fault.kind is Kind.RECOMPILE or case.has_calls
    made = f"model, {_calls(case)}" if has_calls else f"model, {args}, {kwargs}"
    body = "\n".join([*definitions, "def make(device):", *build, f"    return {made}"])
    used = quoting.names_in(body)
    functions = [text for name, text in _FUNCTIONS if name in used]
    code = place_code(case)
    settings = _settings(case)
    standard = [f"import {name}" for name in _standard_imports(case)]
    imports = _imports(case, used | quoting.names_in("\n".join(functions)), settings)
    values: dict[str, Any] = {
        "head": head_lines(case),
        "future": "from __future__ import annotations" in imports,
        "imports": [line for line in imports if "__future__" not in line and line not in standard],
        "standard_imports": standard,
        "expected": expected_text(case),
        "functions": functions,
        "definitions": definitions,
        "settings": [line for line in settings if not line.startswith("import ")],
        "build": build,
        "made": made,
        "seed": case.seed,
        "has_file": bool(case.tensor_file),
        "device": quoting.literal(case.device.split(":")[0]),
        "conditions": _conditions(case, code),
        "observed": repr(_observed(case, code)),
        "run": row_lines(case) if case.fault.kind is Kind.RECOMPILE else run_lines(case),
        "judging": judging_lines(case) if case.fault.kind is Kind.RECOMPILE else [],
        "run_function": run_function(case),
        "compare": compare_lines(case) if case.fault.kind is Kind.DIVERGENCE else [],
        "user_imports": _user_imports(case),
        "user_folders": _user_folders(case, script_dir),
        "deadline_s": int(case.deadline_s),
        "process_same": _process_same(case),
    }
    text = _environment().get_template(template).render(values)
    return _with_few_empty_lines(text)


def _with_few_empty_lines(text: str) -> str:
    """Leave at most two empty lines in a row, but for those within a string."""
    kept: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            kept.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: list[str] = []
    for number, line in enumerate(quoting.source_lines(text), start=1):
        if line or number in kept or lines[-2:] != ["", ""]:
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n"


def place_code(case: ReproCase) -> str:
    """Return the line of code by which the script knows the fault's place; empty where it has no such line."""
    fault = case.fault
    if not fault.frames or fault.location is None or case.program is None:
        return ""
    code = fault.location.code.strip()
    is_taken_along = any(code in line for text in case.definitions for line in quoting.source_lines(text.text))
    # A line of a library is there when the library is; one of the user that was not taken along calls the module.
    modules = [line.split()[1:2] for line in case.imports]
    is_library_line = not case.definitions and any(module[0].split(".")[0] != "torch" for module in modules if module)
    return code if is_taken_along or case.imports_user_code or is_library_line else ""


def with_deadline(text: str, deadline_s: float) -> str:
    """Return a script about a hang or a crash with another deadline."""
    return re.sub(r"^DEADLINE_S = \d+$", f"DEADLINE_S = {int(deadline_s)}", text, flags=re.MULTILINE)


def saved_keys(text: str) -> tuple[str, ...]:
    """Return the keys of the tensors that a script takes from its file; `state.` stands for a whole state."""
    keys = [
        node.slice.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "saved"
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    ]
    return (*keys, *(["state."] if '"state."' in text else []))


def line_count(text: str) -> int:
    """Count the lines of a script that are neither empty nor comments."""
    return sum(1 for line in quoting.source_lines(text) if line.strip() and not line.strip().startswith("#"))


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("compilebisect.repro"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # the output is Python, not HTML
    )


def _program_parts(case: ReproCase) -> tuple[list[str], list[str], str, str]:
    if case.graph is not None:
        return _graph_parts(case.graph, [definition.text for definition in case.definitions])
    program = case.program or Program(statements=())
    definitions = [definition.text for definition in case.definitions]
    build = [statement_text(statement) for statement in program.statements]
    if case.state_saved:
        is_lazy = any(re.search(r"\btorch\.nn\.(Lazy|Uninitialized)\w+\(", line) for line in build)
        build.append(f"{_LOAD.removesuffix(')')}, strict=False)" if is_lazy else _LOAD)
    if not case.steps:
        build.append("    model.to(device)")
    build += [statement_text(statement) for statement in program.arguments]
    return build, definitions, *_call_texts(program.args, program.kwargs)


def _standard_imports(case: ReproCase) -> list[str]:
    names = {*_STANDARD, *_STANDARD_BY_KIND.get(case.fault.kind, ()), *(("copy",) if case.has_calls else ())}
    if case.fault.kind is Kind.RECOMPILE and "re" in quoting.names_in(textwrap.dedent("\n".join(judging_lines(case)))):
        names.add("re")
    return sorted(names)


def _call_texts(args: tuple[Value, ...], kwargs: tuple[tuple[str, Value], ...]) -> tuple[str, str]:
    return (
        f"({', '.join(value_text(item) for item in args)}{',' if len(args) == 1 else ''})",
        "{" + ", ".join(f"{quoting.literal(name)}: {value_text(item)}" for name, item in kwargs) + "}",
    )


def _calls(case: ReproCase) -> str:
    """Return the list of calls: with other inputs, or several times with the same."""
    program = case.program or Program(statements=())
    calls = [_call_texts(*call) for call in ((program.args, program.kwargs), *program.further_calls)]
    text = ", ".join(f"({args}, {kwargs})" for args, kwargs in calls)
    return f"[{text}]" if len(calls) > 1 else f"[{text}] * {case.row if case.has_calls else CALLS_IN_A_ROW}"


_LOAD = '    model.load_state_dict({key[6:]: value for key, value in saved.items() if key.startswith("state.")})'


def _plainly_made(line: str, definitions: list[str]) -> str:
    """Call the class itself where it has no constructor of its own that could do more than `new_module` does."""
    match = re.search(r"new_module\((\w+)\)$", line)
    if match is None:
        return line
    text = next((text for text in definitions if re.search(rf"^class {match[1]}\(", text, re.MULTILINE)), "")
    is_plain = re.search(rf"^class {match[1]}\((torch\.)?nn\.Module\):", text, re.MULTILINE) and "__init__" not in text
    return line.replace(match[0], f"{match[1]}()") if is_plain and "__new__" not in text else line


def _graph_parts(graph: Graph, definitions: list[str]) -> tuple[list[str], list[str], str, str]:
    build = [f"    model = Repro({'device' if graph.children or graph.constants else ''})"]
    build += [statement_text(statement) for statement in graph.memory]
    for item in graph.inputs:
        comment = f"  # {quoting.comment(item.origin)}" if item.origin else ""
        build.append(statement_text(Statement(item.name, item.value)) + comment)
    names = [quoting.name(item.name) for item in graph.inputs]
    args = f"({', '.join(names)}{',' if len(names) == 1 else ''})"
    if len(args) > 80:
        args = "(\n" + textwrap.indent("".join(f"{name},\n" for name in names), " " * 8) + "    )"
    return build, [*definitions, graph_text(graph, "Repro")], args, "{}"


def _settings(case: ReproCase) -> list[str]:
    settings = list(case.config)
    if case.fault.kind is Kind.DIVERGENCE and case.backend == "inductor":
        settings.append(("torch._inductor.config.fallback_random", "True"))
    lines = []
    for name, value in settings:
        module = re.match(r"torch\.\w+\.config|torch\.\w+", name)
        lines += [f"import {module[0]}"] if module else []
        lines.append(f"{quoting.dotted_name(name)} = {quoting.expression(value)}")
    return list(dict.fromkeys(lines))


def _imports(case: ReproCase, used: set[str], settings: list[str]) -> list[str]:
    lines = ["import torch", *(line for line in settings if line.startswith("import "))]
    for line in map(quoting.import_statement, sorted(case.imports)):
        if "__future__" in line or any(name in used for name in _imported_names(line)):
            lines.append(line)
    if case.tensor_file:
        lines.append("from safetensors.torch import load_file")
    return list(dict.fromkeys(lines))


def _imported_names(line: str) -> list[str]:
    (node,) = ast.parse(line).body
    assert isinstance(node, ast.Import | ast.ImportFrom)
    return [alias.asname or alias.name.split(".")[0] for alias in node.names]


def _user_imports(case: ReproCase) -> list[str]:
    lines = []
    for file in case.user_files:
        if quoting.is_dotted_name(file.module):
            names = ", ".join(map(quoting.name, file.names))
            lines.append(f"from {file.module} import {names}" if names else f"import {file.module}")
        else:  # a file such as `my-model.py`
            found = f"importlib.import_module({quoting.literal(file.module)})"
            lines += ["import importlib", *(f"{quoting.name(name)} = {found}.{name}" for name in file.names)]
            lines += [] if file.names else [found]
    return list(dict.fromkeys(lines))


def _user_folders(case: ReproCase, script_dir: Path) -> str:
    folders = [os.path.relpath(file.folder, script_dir.resolve()) for file in case.user_files]
    return "".join(f"{quoting.literal(folder)}, " for folder in dict.fromkeys(folders)).rstrip()


def _conditions(case: ReproCase, code: str) -> str:
    """Return the condition under which the text of a break or an error tells of the same fault."""
    what = case.fault.type
    same = f"{what!r} in names" if case.fault.kind is Kind.ERROR else f"{what!r} in text"
    for words in telling_words(case.fault):
        same += f" and {words!r} in text"
    if operator := case.fault.failed_operator:
        same += f" and {f'failed with {operator}'!r} in text"  # another operator may well fail in the same way
    return f"{same} and {code!r} in text" if code else same


def _observed(case: ReproCase, code: str) -> str:
    fault = case.fault
    return f"{fault.kind.value} {json.dumps(fault.type)}" + (f" at {json.dumps(code)}" if code else "")


def _process_same(case: ReproCase) -> str:
    if case.fault.kind is Kind.TIMEOUT:
        return 'seen.startswith("timeout")'
    return f"{quoting.literal(case.fault.type)} in seen"
