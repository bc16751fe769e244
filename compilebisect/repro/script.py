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
import msgspec

from compilebisect.core.outcome import Kind
from compilebisect.core.repro_case import Graph, Program, ReproCase, Statement, TensorValue
from compilebisect.repro.expression import graph_text, statement_text, value_text
from compilebisect.repro.wording import expected_text, head_lines

_TEMPLATES = {
    Kind.GRAPH_BREAK: "graph_break.py.jinja",
    Kind.ERROR: "error.py.jinja",
    Kind.DIVERGENCE: "divergence.py.jinja",
    Kind.CRASH: "process.py.jinja",
    Kind.TIMEOUT: "process.py.jinja",
}
_STANDARD = ("argparse", "json", "os", "sys", "traceback")
_STANDARD_BY_KIND = {
    Kind.GRAPH_BREAK: ("linecache", "logging", "re"),
    Kind.DIVERGENCE: ("dataclasses",),
    Kind.CRASH: ("signal", "subprocess"),
    Kind.TIMEOUT: ("signal", "subprocess"),
}
# Relative and absolute tolerance for the lowest precision that takes part. Source: torch.testing.assert_close.
_TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float16": (1e-3, 1e-5),
}

_NEW = '''def new(cls, **attributes):
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
_FUNCTIONS = (("new_module(", _NEW_MODULE), ("new(", _NEW), ("cast(", _CAST), ("strided(", _STRIDED))


class UnwritableCase(Exception):
    """No template exists for the fault's kind."""


def write_script(case: ReproCase, path: Path) -> None:
    """Write the script of a case to `path`, and its tensors beside it where it needs any.

    Raises:
        UnwritableCase: for a kind of fault that no script shows.
    """
    saved = path.with_suffix(".safetensors")
    text = script_text(case, script_dir=path.parent, saved_name=saved.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if case.tensor_file:
        shutil.copyfile(case.tensor_file, saved)
    elif saved.exists():
        saved.unlink()


def script_text(case: ReproCase, *, script_dir: Path, saved_name: str = "") -> str:
    """Return the text of the script.

    Args:
        case: what to write.
        script_dir: where the script will lie; folders of the user's files are given relative to it.
        saved_name: file name of the tensors beside the script.

    Raises:
        UnwritableCase: for a kind of fault that no script shows.
    """
    template = _TEMPLATES.get(case.fault.kind)
    if template is None:
        raise UnwritableCase(f"no script shows a {case.fault.kind.value}")
    build, definitions, args, kwargs = _program_parts(case)
    body = "\n".join([*definitions, "def make(device):", *build, f"    return {args}, {kwargs}"])
    functions = [text for call, text in _FUNCTIONS if re.search(rf"(?<![\w.]){re.escape(call)}", body)]
    code = place_code(case)
    settings = _settings(case)
    imports = _imports(case, body + "\n" + "\n".join(functions), settings)
    values: dict[str, Any] = {
        "head": head_lines(case),
        "future": "from __future__ import annotations" in imports,
        "imports": [line for line in imports if "__future__" not in line],
        "standard_imports": [
            f"import {name}" for name in sorted((*_STANDARD, *_STANDARD_BY_KIND.get(case.fault.kind, ())))
        ],
        "expected_text": json.dumps(expected_text(case)),
        "functions": functions,
        "definitions": definitions,
        "settings": [line for line in settings if not line.startswith("import ")],
        "build": build,
        "args": args,
        "kwargs": kwargs,
        "seed": case.seed,
        "saved_file": saved_name if case.tensor_file else "",
        "device": case.device.split(":")[0],
        "fault_type": json.dumps(case.fault.type),
        "fault_code": json.dumps(code),
        "run": _run_lines(case, "compiled(*args, **kwargs)"),
        "run_function": _run_function(case),
        "user_imports": _user_imports(case),
        "user_folders": _user_folders(case, script_dir),
        "deadline_s": int(case.deadline_s),
        "process_seen": _process_seen(case),
        "process_same": _process_same(case),
    }
    values["rtol"], values["atol"], values["tolerance_source"] = _tolerance(case)
    text = _environment().get_template(template).render(values)
    return re.sub(r"\n{4,}", "\n\n\n", text).rstrip() + "\n"


def place_code(case: ReproCase) -> str:
    """Return the line of code by which the script knows the fault's place; empty where it has no such line."""
    fault = case.fault
    if not fault.frames or fault.location is None or case.program is None:
        return ""
    code = fault.location.code.strip()
    is_taken_along = any(code in line for text in case.definitions for line in text.text.splitlines())
    is_imported = case.imports_user_code or any(line.split()[1].split(".")[0] != "torch" for line in case.imports)
    is_own_call = (
        fault.location.file.endswith(tuple(d.file for d in case.definitions if d.file)) if case.definitions else False
    )
    if is_taken_along or (is_imported and not is_own_call and not case.definitions):
        return code
    return ""


def line_count(text: str) -> int:
    """Count the lines of a script that are neither empty nor comments."""
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))


def lowest_dtype(case: ReproCase) -> str:
    """Return the floating dtype of the lowest precision among a case's tensors and its autocast."""
    names = {tensor.dtype for tensor in _tensors(case)} | {
        dtype.removeprefix("torch.") for _, dtype in case.context.autocast
    }
    if any(isinstance(s.value, object) and "torch.bfloat16" in statement_text(s) for s in _statements(case)):
        names.add("bfloat16")
    for name in ("bfloat16", "float16", "float32", "float64"):
        if name in names:
            return name
    return "float32"


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


def _statements(case: ReproCase) -> tuple[Statement, ...]:
    return case.program.statements if case.program else ()


def _tensors(case: ReproCase) -> list[TensorValue]:
    found: list[TensorValue] = []

    def visit(value: Any) -> None:
        if isinstance(value, TensorValue):
            found.append(value)
        elif isinstance(value, msgspec.Struct):
            for name in value.__struct_fields__:
                visit(getattr(value, name))
        elif isinstance(value, tuple):
            for item in value:
                visit(item)

    visit(case.graph if case.graph else case.program)
    return found


def _program_parts(case: ReproCase) -> tuple[list[str], list[str], str, str]:
    if case.graph is not None:
        return _graph_parts(case.graph, [definition.text for definition in case.definitions])
    program = case.program or Program(statements=())
    definitions = [definition.text for definition in case.definitions]
    build = [statement_text(statement) for statement in program.statements]
    inputs_at = next(
        (
            i
            for i, s in enumerate(program.statements)
            if s.target and "." not in s.target and s.target != "model" and not s.target.startswith("module_")
        ),
        len(build),
    )
    build.insert(inputs_at, "    model.to(device)")
    if case.state_saved:
        build.insert(inputs_at, _LOAD)
    args = f"({', '.join(value_text(item) for item in program.args)}{',' if len(program.args) == 1 else ''})"
    kwargs = "{" + ", ".join(f'"{name}": {value_text(item)}' for name, item in program.kwargs) + "}"
    return build, definitions, args, kwargs


_LOAD = '    model.load_state_dict({key[6:]: value for key, value in saved.items() if key.startswith("model.")})'


def _graph_parts(graph: Graph, definitions: list[str]) -> tuple[list[str], list[str], str, str]:
    build = [f"    model = Repro({'device' if graph.children or graph.constants else ''})"]
    for item in graph.inputs:
        comment = f"  # {item.origin}" if item.origin else ""
        build.append(statement_text(Statement(item.name, item.value)) + comment)
    names = [item.name for item in graph.inputs]
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
        lines.append(f"{name} = {value}")
    return list(dict.fromkeys(lines))


def _imports(case: ReproCase, body: str, settings: list[str]) -> list[str]:
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    lines = ["import torch", *(line for line in settings if line.startswith("import "))]
    if case.fault.kind is Kind.GRAPH_BREAK:
        lines.append("import torch._logging")
    for line in sorted(case.imports):
        if "__future__" in line or any(name in used for name in _imported_names(line)):
            lines.append(line)
    if case.tensor_file:
        lines.append("from safetensors.torch import load_file")
    return list(dict.fromkeys(lines))


def _imported_names(line: str) -> list[str]:
    node = ast.parse(line).body[0]
    assert isinstance(node, ast.Import | ast.ImportFrom)
    return [alias.asname or alias.name.split(".")[0] for alias in node.names]


def _user_imports(case: ReproCase) -> list[str]:
    return [
        f"from {file.module} import {', '.join(file.names)}" if file.names else f"import {file.module}"
        for file in case.user_files
    ]


def _user_folders(case: ReproCase, script_dir: Path) -> str:
    folders = [os.path.relpath(file.folder, script_dir.resolve()) for file in case.user_files]
    return "".join(f"{json.dumps(folder)}, " for folder in dict.fromkeys(folders)).rstrip()


def _contexts(case: ReproCase) -> str:
    modes = {"no_grad": ["torch.no_grad()"], "inference": ["torch.inference_mode()"]}.get(case.context.grad_mode, [])
    modes = [] if case.train else modes
    modes += [
        f'torch.autocast("{kind}", dtype=torch.{dtype.removeprefix("torch.")})' for kind, dtype in case.context.autocast
    ]
    return ", ".join(modes)


def compile_text(case: ReproCase, function: str, backend: str | None = None) -> str:
    """Return the call of `torch.compile` on an expression."""
    options = [f'backend="{backend or case.backend}"'] if (backend or case.backend) != "inductor" else []
    options += [f'mode="{case.mode}"'] if case.mode else []
    options += [f"dynamic={case.dynamic}"] if case.dynamic is not None else []
    return f"torch.compile({', '.join([function, *options])})"


def _callee(case: ReproCase) -> str:
    method = case.program.method if case.program else "forward"
    return "model" if method == "forward" else f"model.{method}"


def _run_lines(case: ReproCase, call: str) -> list[str]:
    lines = [f"    compiled = {compile_text(case, _callee(case), 'eager')}"]
    contexts = _contexts(case)
    return [*lines, *([f"    with {contexts}:", f"        {call}"] if contexts else [f"    {call}"])]


def _run_function(case: ReproCase) -> str:
    is_divergence = case.fault.kind is Kind.DIVERGENCE
    result = "what it gives and what it changes, by name" if is_divergence else "nothing"
    lines = [
        "def run(model, args, kwargs, compiled):",
        f'    """Call the model once, compiled or as it is, and return {result}."""'
        if is_divergence
        else '    """Call the model once, compiled or as it is."""',
        f"    function = {compile_text(case, _callee(case))} if compiled else {_callee(case)}",
        f"    torch.manual_seed({case.seed})",
    ]
    keep = "output = " if is_divergence or case.train else ""
    contexts = _contexts(case)
    call = f"{keep}function(*args, **kwargs)"
    lines += [f"    with {contexts}:", f"        {call}"] if contexts else [f"    {call}"]
    if case.train:
        # A plain sum has no gradient behind a normalisation; other weights for each element show more.
        lines += [
            "    outputs = [t for t in leaves(output) if t.requires_grad]",
            "    torch.autograd.backward(outputs, [torch.randn_like(t) for t in outputs])",
        ]
    if is_divergence:
        lines += _result_lines(case)
    text = "\n".join(lines)
    return f"{_LEAVES}\n\n\n{text}" if case.train else text


def _result_lines(case: ReproCase) -> list[str]:
    lines = ['    result = {"output": output, "inputs": {"args": args, "kwargs": kwargs}}']
    if case.program is not None:
        lines += [
            '    result["state"] = {name: vars(part) for name, part in model.named_modules()}',
        ]
    else:
        lines.append('    result["state"] = {}')
    if case.train:
        lines.append('    result["grad"] = [t.grad for t in (*model.parameters(), *leaves((args, kwargs)))]')
    return [*lines, "    return result"]


def _tolerance(case: ReproCase) -> tuple[float, float, str]:
    if case.tolerance is not None:
        return (*case.tolerance, "as given with --tolerance")
    dtype = lowest_dtype(case)
    rtol, atol = _TOLERANCES[dtype]
    figures = next((item.get("figures") for item in case.fault.evidence.get("differences", ())), None)
    seen = getattr(figures, "max_abs_error", None) or (
        figures.get("max_abs_error") if isinstance(figures, dict) else None
    )
    scale = getattr(figures, "scale", None) or (figures.get("scale") if isinstance(figures, dict) else None) or 1.0
    if seen and seen <= 2 * (atol + rtol * scale):
        # Small, yet more than eager's own error against float64 explains.
        return 0.0, float(f"{seen / 4:.1g}"), "a quarter of what was seen, which is more than rounding explains"
    return rtol, atol, f"torch.testing's defaults for {dtype}"


_LEAVES = '''def leaves(value):
    """Return the tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        value = vars(value).values() if hasattr(value, "__dict__") else ()
    return [tensor for item in value for tensor in leaves(item)]'''


def _process_seen(case: ReproCase) -> str:
    return (
        "f'crash \"{signal.Signals(-process.returncode).name}\"' if process.returncode < 0 "
        "else f'crash \"exit status {process.returncode}\"'"
    )


def _process_same(case: ReproCase) -> str:
    if case.fault.kind is Kind.TIMEOUT:
        return 'seen.startswith("timeout")'
    return f"{json.dumps(case.fault.type)} in seen"
