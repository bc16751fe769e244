"""The part of a repro script that calls the model, and the tolerance that its results are compared with."""

from __future__ import annotations

import ast
import math
from typing import Any

import msgspec

from compilebisect.core import quoting
from compilebisect.core.outcome import Kind
from compilebisect.core.repro_case import Items, Ref, ReproCase, TensorValue
from compilebisect.repro.expression import statement_text

# Relative and absolute tolerance for the lowest precision that takes part. Source: torch.testing.assert_close.
_TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float16": (1e-3, 1e-5),
}

_LEAVES = """def leaves(value):
    if isinstance(value, (torch.Tensor, int, float, complex)):
        return [torch.as_tensor(value)]
    if not isinstance(value, (list, tuple)):
        value = (value if isinstance(value, dict) else getattr(value, "__dict__", {})).values()
    return [leaf for item in value for leaf in leaves(item)]"""

_OUTLINE = """def outline(value):
    if isinstance(value, torch.Tensor):
        return type(value).__name__, value.layout, value.is_nested
    parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    parts = dict(enumerate(value)) if isinstance(value, (list, tuple)) else parts
    return type(value).__name__, {name: outline(part) for name, part in parts.items()}"""


def _contexts(case: ReproCase) -> str:
    modes = {"no_grad": ["torch.no_grad()"], "inference": ["torch.inference_mode()"]}.get(case.context.grad_mode, [])
    modes = [] if case.train else modes
    modes += [
        f"torch.autocast({quoting.literal(kind)}, dtype=torch.{quoting.name(dtype.removeprefix('torch.'))})"
        for kind, dtype in case.context.autocast
    ]
    return ", ".join(modes)


def compile_text(case: ReproCase, function: str, backend: str | None = None) -> str:
    """Return the call of `torch.compile` on an expression."""
    return f"torch.compile({', '.join([function, *_compile_options(case, backend)])})"


def _compile_options(case: ReproCase, backend: str | None) -> list[str]:
    backend = backend or case.backend
    options = [f"backend={quoting.literal(backend)}"] if backend != "inductor" else []
    options += [f"mode={quoting.literal(case.mode)}"] if case.mode else []
    return options + ([f"dynamic={case.dynamic}"] if case.dynamic is not None else [])


def in_place_lines(case: ReproCase, backend: str | None = None) -> list[str]:
    """Return the lines that compile one module in its place, by all ways that lead into it."""
    path = case.in_place[0].partition(":")[0]
    lines = [f"    part = model.get_submodule({path!r})"]
    for way in case.in_place:
        method = way.partition(":")[2]
        if method:
            attribute = quoting.attribute("part", method)
            lines.append(f"    {quoting.assignment(attribute, compile_text(case, attribute, backend))}")
        else:
            lines.append(f"    part.compile({', '.join(_compile_options(case, backend))})")
    return lines


def callee(case: ReproCase) -> str:
    """Return the expression that is compiled."""
    method = case.program.method if case.program else "forward"
    return "model" if method == "forward" else quoting.attribute("model", method)


def run_lines(case: ReproCase) -> list[str]:
    """Return the lines that compile the model, up to its graphs where that is enough, and call it."""
    backend = "eager" if case.fault.shows_with_any_backend else None
    if case.in_place:
        return [*in_place_lines(case, backend), *in_contexts(case, "model(*args, **kwargs)")]
    if case.has_calls:
        return [f"    function = {compile_text(case, callee(case), backend)}", *in_contexts(case, *_row(case, ""))]
    lines = in_contexts(case, f"{compile_text(case, callee(case), backend)}(*args, **kwargs)")
    if case.steps:  # torch itself breaks the graph around the step of most optimizers
        lines += [
            "    own = 'torch._dynamo.graph_break()'",
            "    texts[:] = [text for text in texts if 'raph break' in text and own not in text]",
        ]
    return lines


def in_contexts(case: ReproCase, *lines: str) -> list[str]:
    """Return lines of a function's body, under the grad mode and autocast of the case."""
    contexts = _contexts(case)
    if not contexts:
        return [f"    {line}" for line in lines]
    return [f"    with {contexts}:", *(f"        {line}" for line in lines)]


def run_function(case: ReproCase) -> str:
    """Return the functions that call the model once; for a divergence it returns all that is compared."""
    if case.steps:
        return f"{_LEAVES}\n\n\n{_step_function(case)}"
    what = case.fault.type if case.fault.kind is Kind.DIVERGENCE else ""
    lines = [f"def run(model, {'calls' if case.has_calls else 'args, kwargs'}, compiled):"]
    if what == "mutation":
        lines.append("    before = {(part, name) for part in model.modules() for name in vars(part)}")
    if case.in_place:
        lines += ["    if compiled:", *(f"    {line}" for line in in_place_lines(case)), "    function = model"]
    else:
        lines.append(f"    function = {compile_text(case, callee(case))} if compiled else {callee(case)}")
    is_seeded = case.train or what not in (
        "",
        "shape",
        "dtype",
        "device",
        "stride",
        "requires_grad",
        "structure",
        "aliasing",
    )
    keep = "output = " if what or case.train else ""
    seed = [f"torch.manual_seed({case.seed})"] if is_seeded else []
    if case.has_calls:
        lines += in_contexts(case, *_row(case, keep, *seed))
    else:
        lines += [f"    {line}" for line in seed]
        lines += in_contexts(case, f"{keep}function(*args, **kwargs)")
    if case.train:
        # A plain sum has no gradient behind a normalisation; other weights for each element show more.
        lines.append("    outputs = [leaf for leaf in leaves(output) if leaf.requires_grad]")
        if case.cotangents:
            lines += [
                "    pairs = [(outputs[number], cotangent) for number, cotangent in cotangents().items()]",
                "    torch.autograd.backward([leaf for leaf, _ in pairs], [value.to(leaf) for leaf, value in pairs])",
            ]
        else:
            lines.append("    torch.autograd.backward(outputs, [torch.randn_like(leaf) for leaf in outputs])")
    lines += _result_lines(case, what)
    text = "\n".join(lines)
    used = quoting.names_in(text)
    helpers = [_LEAVES] if "leaves" in used else []
    helpers += [_cotangents_function(case)] if "cotangents" in used else []
    helpers += [_OUTLINE] if what == "structure" else []
    return "\n\n\n".join([*helpers, text])


def _row(case: ReproCase, keep: str, *before: str) -> list[str]:
    """Return the lines that make all calls, each on copies of its inputs; what the last one leaves stays."""
    lines = ["for args, kwargs in calls:", "    args, kwargs = copy.deepcopy((args, kwargs))"]
    lines += [f"    {line}" for line in before]
    lines.append(f"    {keep}function(*args, **kwargs)")
    return lines


def _step_function(case: ReproCase) -> str:
    lines = [
        "def run(model, args, kwargs, compiled):",
        '    weights = [weight for group in model.param_groups for weight in group["params"]]',
        "    before = [weight.detach().clone() for weight in weights]",
        f"    step = {compile_text(case, callee(case))} if compiled else {callee(case)}",
        f"    torch.manual_seed({case.seed})",
        f"    for _ in range({case.steps}):",
        "        step()",
        "    updates = [weight.detach() - old for weight, old in zip(weights, before)]",
        "    return leaves([updates, [model.state[weight] for weight in weights]])",
    ]
    return "\n".join(lines)


def _cotangents_function(case: ReproCase) -> str:
    entries = ", ".join(f'{number}: saved["cotangent.{number}"]' for number in case.cotangents)
    return "\n".join(
        [
            "def cotangents():",
            '    """Return what the model\'s loss sent to the outputs, by their numbers."""',
            '    saved = load_file(os.path.splitext(os.path.abspath(__file__))[0] + ".safetensors")',
            f"    return {{{entries}}}",
        ]
    )


def _result_lines(case: ReproCase, what: str) -> list[str]:
    if what == "mutation":
        return [
            "    known = vars(torch.nn.Module())",
            "    # torch.compile leaves private notes of its own on a module; they are not what the model changed.",
            "    state = [",
            "        value for part in model.modules() for name, value in vars(part).items()",
            '        if name not in known and ((part, name) in before or name[0] != "_")',
            "    ]",
            "    return leaves([args, kwargs, state, *model.parameters(), *model.buffers()])",
        ]
    if what == "aliasing":
        return ["    return leaves(output), leaves([args, kwargs, *model.parameters(), *model.buffers()])"]
    if what == "structure":
        return ["    return outline(output)"]
    if not what:
        return []
    outputs = _plain_outputs(case) or "leaves(output)"
    if case.train:
        outputs = f"[*{outputs}, *leaves([leaf.grad for leaf in (*model.parameters(), *leaves((args, kwargs)))])]"
    return [f"    return {outputs}"]


def _plain_outputs(case: ReproCase) -> str:
    """Return the list of outputs of a graph that returns tensors alone."""
    if case.graph is None:
        return ""
    tensors = {operator.name for operator in case.graph.operators if operator.output is not None}
    output = case.graph.output
    if isinstance(output, Ref) and output.name in tensors:
        return "[output]"
    if isinstance(output, Items) and all(isinstance(item, Ref) and item.name in tensors for item in output.items):
        return "list(output)"
    return ""


def compare_lines(case: ReproCase) -> list[str]:
    """Return the body of a function that tells how `compiled` differs from `eager`, for the case's type alone."""
    what = quoting.name(case.fault.type)
    if what in ("values", "mutation"):
        return _value_lines(case, what)
    if what == "nonfinite":
        return [
            "    for one, other in zip(eager, compiled):",
            "        if not torch.equal(one.isnan(), other.isnan()) or not torch.equal(one.isinf(), other.isinf()):",
            "            return 'divergence \"nonfinite\" (NaN or infinity at other places)'",
        ]
    if what == "aliasing":
        return [
            "    def shared(outputs, sources):",
            "        places = [leaf.untyped_storage().data_ptr() for leaf in sources]",
            "        return {n for n, leaf in enumerate(outputs) if leaf.untyped_storage().data_ptr() in places}",
            "",
            "    found = shared(*compiled) - shared(*eager)",
            "    return found and f'divergence \"aliasing\" (outputs {found} share memory with inputs)'",
        ]
    lines = []
    if what != "structure":
        part = "leaf.stride()" if what == "stride" else f"leaf.{what}"
        some = " if leaf.numel()" if what == "stride" else ""
        lines = [f"    eager, compiled = ([{part} for leaf in result{some}] for result in (eager, compiled))"]
    shown = f'divergence "{what}" ({{eager}} in eager, {{compiled}} in compiled)'
    return [*lines, f"    return eager != compiled and f'{shown}'"]


def _value_lines(case: ReproCase, what: str) -> list[str]:
    rtol, atol, source = tolerance(case)
    # NaN and infinity at other places are a fault of another type
    is_counted = "wrong & one.isfinite() & other.isfinite()" if what == "values" else "wrong"
    figures = "largest difference {(one - other).abs().max():.3g} of {one.abs().max():.3g}"
    shape = (
        "return 'divergence \"mutation\" (other shapes)'"
        if what == "mutation"
        else "verdict(125, 'another failure, divergence \"shape\"')"
    )
    return [
        "    if [leaf.shape for leaf in eager] != [leaf.shape for leaf in compiled]:",
        f"        {shape}",
        "    for pair in zip(eager, compiled):",
        "        one, other = (leaf.to(torch.promote_types(leaf.dtype, torch.float64)) for leaf in pair)",
        f"        # {quoting.comment(source)}",
        f"        wrong = ~torch.isclose(other, one, rtol={_number(rtol)}, atol={_number(atol)}, equal_nan=True)",
        f"        if ({is_counted}).any():",
        f"            return f'divergence \"{what}\" ({figures})'",
    ]


def _number(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else quoting.literal(float(value))


def tolerance(case: ReproCase) -> tuple[float, float, str]:
    """Return rtol, atol and where they come from."""
    if case.tolerance is not None:
        return (*case.tolerance, "as given with --tolerance or in the spec")
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
    statements = case.program.statements if case.program else ()
    text = "\n".join(statement_text(statement, indent=0) for statement in statements)
    names |= {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
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
