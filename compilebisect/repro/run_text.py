"""The part of a repro script that calls the model, and the tolerance that its results are compared with."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from compilebisect.core.outcome import Kind
from compilebisect.core.repro_case import ReproCase, TensorValue
from compilebisect.repro.expression import statement_text

# Relative and absolute tolerance for the lowest precision that takes part. Source: torch.testing.assert_close.
_TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float16": (1e-3, 1e-5),
}

_LEAVES = '''def leaves(value):
    """Return the tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        value = vars(value).values() if hasattr(value, "__dict__") else ()
    return [tensor for item in value for tensor in leaves(item)]'''


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


def run_lines(case: ReproCase, call: str) -> list[str]:
    """Return the lines that compile the model up to its graphs and call it."""
    lines = [f"    compiled = {compile_text(case, _callee(case), 'eager')}"]
    contexts = _contexts(case)
    return [*lines, *([f"    with {contexts}:", f"        {call}"] if contexts else [f"    {call}"])]


def run_function(case: ReproCase) -> str:
    """Return the function that calls the model once; for a divergence it returns all that can be compared."""
    is_divergence = case.fault.kind is Kind.DIVERGENCE
    result = " and return what it gives and changes" if is_divergence else ""
    lines = [
        "def run(model, args, kwargs, compiled):",
        f'    """Call the model once, compiled or as it is{result}."""',
        *(["    known = {name: set(vars(part)) for name, part in model.named_modules()}"] if is_divergence else []),
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
    lines = [
        "    # torch.compile leaves private notes of its own on a module; they are not what the model changed.",
        "    state = {",
        '        name: {key: item for key, item in vars(part).items() if key in known.get(name, ()) or key[0] != "_"}',
        "        for name, part in model.named_modules()",
        "    }",
        '    result = {"output": output, "inputs": {"args": args, "kwargs": kwargs}, "state": state}',
    ]
    if case.train:
        lines.append('    result["grad"] = [t.grad for t in (*model.parameters(), *leaves((args, kwargs)))]')
    return [*lines, "    return result"]


def tolerance(case: ReproCase) -> tuple[float, float, str]:
    """Return rtol, atol and where they come from."""
    if case.tolerance is not None:
        return (*case.tolerance, "as given with --tolerance")
    dtype = lowest_dtype(case)
    rtol, atol = _TOLERANCES[dtype]
    differences = msgspec.to_builtins(case.fault.evidence.get("differences", ()))
    figures: dict[str, Any] = next((item["figures"] for item in differences if item.get("figures")), {})
    seen, scale = figures.get("max_abs_error", 0.0), figures.get("scale", 1.0)
    if seen and seen <= 2 * (atol + rtol * scale):
        # Small, yet more than eager's own error against float64 explains.
        return 0.0, float(f"{seen / 4:.1g}"), "a quarter of what was seen, which is more than rounding explains"
    return rtol, atol, f"torch.testing's defaults for {dtype}"


def lowest_dtype(case: ReproCase) -> str:
    """Return the floating dtype of the lowest precision among a case's tensors and its autocast."""
    names = {tensor.dtype for tensor in _tensors(case)} | {
        dtype.removeprefix("torch.") for _, dtype in case.context.autocast
    }
    # Modules that are made by their constructor name their dtype in the text alone.
    text = "".join(statement_text(statement) for statement in (case.program.statements if case.program else ()))
    names |= set(re.findall(r"torch\.(b?float\d+)", text))
    for name in ("bfloat16", "float16", "float32", "float64"):
        if name in names:
            return name
    return "float32"


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
