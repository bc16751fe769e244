"""Values and graphs of a repro case as Python text."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from compilebisect.core import quoting
from compilebisect.core.repro_case import (
    Call,
    Fill,
    Graph,
    Items,
    Literal,
    Mapping,
    Operator,
    Ref,
    Statement,
    TensorValue,
    Value,
    ViewValue,
)

WIDTH = 110
_BRACKETS = {"list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}"), "frozenset": ("frozenset({", "})")}
_INFIX = {
    "operator.add": "+",
    "operator.sub": "-",
    "operator.mul": "*",
    "operator.truediv": "/",
    "operator.floordiv": "//",
    "operator.mod": "%",
    "operator.pow": "**",
    "operator.matmul": "@",
    "operator.and_": "&",
    "operator.or_": "|",
    "operator.xor": "^",
    "operator.lshift": "<<",
    "operator.rshift": ">>",
    "operator.eq": "==",
    "operator.ne": "!=",
    "operator.lt": "<",
    "operator.le": "<=",
    "operator.gt": ">",
    "operator.ge": ">=",
}
# Changes in place, which an infix operator would not make; as statements they stand for themselves.
_INPLACE = {"operator.iadd": "+=", "operator.isub": "-=", "operator.imul": "*=", "operator.itruediv": "/="}
_PREFIX = {"operator.neg": "-", "operator.invert": "~", "operator.pos": "+"}


def value_text(value: Value, indent: int = 0, room: int = WIDTH) -> str:
    """Return the expression of a value, over several lines where one is too short."""
    flat = _flat(value)
    if indent + len(flat) <= room:
        return flat
    opening, parts, closing = _parts(value, indent + 4, room)
    if not parts:
        return flat
    pad = " " * (indent + 4)
    return opening + "\n" + "".join(f"{pad}{part},\n" for part in parts) + " " * indent + closing


def statement_text(statement: Statement, indent: int = 4) -> str:
    """Return one indented line (or several) for a statement."""
    pad, target = " " * indent, statement.target
    value = value_text(statement.value, indent, WIDTH - (len(target) + 3 if target else 0))
    return pad + (quoting.assignment(target, value) if target else value)


def _flat(value: Value) -> str:
    if isinstance(value, Literal):
        return quoting.expression(value.text)
    if isinstance(value, Ref):
        return quoting.expression(value.name)
    if isinstance(value, TensorValue):
        return tensor_text(value)
    if isinstance(value, ViewValue):
        return f"torch.as_strided({quoting.expression(value.base)}, {value.shape}, {value.stride}, {value.offset})"
    opening, parts, closing = _parts(value, 0, 1 << 30)
    if isinstance(value, Items) and value.kind == "tuple" and len(parts) == 1:
        closing = "," + closing
    return opening + ", ".join(parts) + closing


def _parts(value: Value, indent: int, room: int) -> tuple[str, list[str], str]:
    if isinstance(value, Items):
        if not value.items and value.kind in ("set", "frozenset"):
            return f"{value.kind}(", [], ")"
        opening, closing = _BRACKETS[value.kind]
        return opening, [value_text(item, indent, room) for item in value.items], closing
    if isinstance(value, Mapping):
        items = [f"{_flat(key)}: {value_text(item, indent, room)}" for key, item in value.items]
        return "{", items, "}"
    if isinstance(value, Call):
        parts = [value_text(item, indent, room) for item in value.args]
        parts += keyword_parts([(name, value_text(item, indent, room)) for name, item in value.kwargs])
        return f"{quoting.expression(value.function)}(", parts, ")"
    return _flat(value), [], ""


def keyword_parts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the keyword arguments of a call; those whose names are none in Python come in a dict at the end."""
    parts = [f"{name}={value}" for name, value in pairs if quoting.is_name(name)]
    others = [f"{quoting.literal(name)}: {value}" for name, value in pairs if not quoting.is_name(name)]
    return [*parts, *(["**{" + ", ".join(others) + "}"] if others else [])]


def tensor_text(value: TensorValue) -> str:
    """Return the expression that makes a tensor."""
    if value.lazily == "zero":
        device = f'"{value.device}"' if value.device else "device"
        return f"torch._efficientzerotensor({value.shape}, dtype=torch.{value.dtype}, device={device})"
    order = _memory_order(value)
    shape = tuple(value.shape[dim] for dim in order) if order else value.shape
    text, is_atom = _filled(value, shape)
    if order:
        if value.fill in (Fill.SAVED, Fill.VALUES):
            text = f"{text}.permute{tuple(order)}.contiguous()"
        inverse = tuple(order.index(dim) for dim in range(len(order)))
        text, is_atom = f"{_atom(text, is_atom)}.permute{inverse}", True
    elif value.stride is not None:
        text, is_atom = f"strided({text}, {value.stride})", True
    if value.lazily == "conj":
        text, is_atom = f"{_atom(text, is_atom)}.conj()", True
    elif value.lazily == "neg":
        text, is_atom = f"torch._neg_view({text})", True
    if value.is_parameter:
        return f"torch.nn.Parameter({text}{'' if value.requires_grad else ', requires_grad=False'})"
    if value.requires_grad:
        return f"{_atom(text, is_atom)}.requires_grad_()"
    return text


def _atom(text: str, is_atom: bool) -> str:
    return text if is_atom else f"({text})"


def _memory_order(value: TensorValue) -> list[int] | None:
    # Dimensions from the outermost to the innermost in memory, for a permuted contiguous block.
    if value.stride is None or value.storage is not None:
        return None
    stride = value.stride
    return sorted(range(len(stride)), key=lambda dim: (-stride[dim], value.shape[dim] == 1, dim))


def _filled(value: TensorValue, shape: tuple[int, ...]) -> tuple[str, bool]:
    device = quoting.literal(value.device) if value.device else "device"
    size = ", ".join(map(str, shape)) if shape else "()"
    dims = f"({size},)" if len(shape) == 1 else f"({size})" if shape else "()"
    is_integer = value.fill in (Fill.RANDINT, Fill.ARANGE, Fill.VALUES)
    default = "int64" if is_integer else "float32"
    dtype = "" if value.dtype == default else f", dtype=torch.{quoting.name(value.dtype)}"
    end = f"{dtype}, device={device}"
    if value.fill is Fill.SAVED:
        return f"saved[{quoting.literal(value.key)}].to({device})", True
    if value.fill is Fill.RANDINT:
        return f"torch.randint({value.low}, {value.high}, {dims}{end})", True
    if value.fill is Fill.BOOL:
        return f"torch.randint(0, 2, {dims}{end})", True
    if value.fill is Fill.EMPTY:
        return f"torch.empty({size}{end})", True
    if value.fill is Fill.VALUES:
        return _written_out(value, shape, end), True
    if value.fill is Fill.ARANGE:
        return _range(value, shape, end), True
    if value.fill is Fill.FULL:
        if value.dtype != "bool" and value.low in (0, 1):
            return f"torch.{'ones' if value.low else 'zeros'}({size}{end})", True
        constant = bool(value.low) if value.dtype == "bool" else value.low
        return f"torch.full({dims}, {quoting.literal(constant)}{end})", True
    is_small_float = value.dtype.startswith("float8")
    if is_small_float:
        end = f", device={device}"
    if value.fill is Fill.RAND:
        if (value.low, value.high) == (0, 1):
            text, is_atom = f"torch.rand({size}{end})", True
        else:
            low, high = quoting.literal(value.low), quoting.literal(value.high)
            text, is_atom = f"torch.empty({size}{end}).uniform_({low}, {high})", True
    else:
        text, is_atom = f"torch.randn({size}{end})", True
        if value.high != 1:
            text, is_atom = f"{quoting.literal(value.high)} * {text}", False
        if value.low:
            text, is_atom = f"{quoting.literal(value.low)} + {text}", False
    if is_small_float:
        text, is_atom = f"{_atom(text, is_atom)}.to(torch.{value.dtype})", True
    return text, is_atom


def _written_out(value: TensorValue, shape: tuple[int, ...], end: str) -> str:
    items = [bool(item) for item in value.values] if value.dtype == "bool" else list(value.values)
    if value.dtype == "bool":
        end = end.replace(", dtype=torch.bool", "")
    text = f"torch.tensor({items}{end})"
    return text if len(shape) == 1 else f"{text}.reshape({', '.join(map(str, value.shape)) or '()'})"


def _range(value: TensorValue, shape: tuple[int, ...], end: str) -> str:
    count = 1
    for size in shape:
        count *= size
    stop = value.low + count * value.high
    step = "" if value.high == 1 else f", {value.high}"
    start = "" if value.low == 0 and not step else f"{value.low}, "
    text = f"torch.arange({start}{stop}{step}{end})"
    return text if len(shape) == 1 else f"{text}.reshape{shape}"


def operator_lines(operator: Operator) -> list[str]:
    """Return the statements of one graph node, without indentation."""
    args = [_flat(item) for item in operator.args]
    keywords = keyword_parts([(name, _flat(item)) for name, item in operator.kwargs])
    name, target = quoting.name(operator.name), operator.target
    if operator.kind == "attribute":
        return [f"{name} = {quoting.attribute('self', target)}"]
    if operator.kind == "method" and target == "__call__":
        return [f"{name} = {args[0]}({', '.join([*args[1:], *keywords])})"]
    if operator.kind == "method":
        return [f"{name} = {quoting.attribute(_operand(args[0]), target)}({', '.join([*args[1:], *keywords])})"]
    if target in _INPLACE and len(args) == 2:
        return [f"{name} = {args[0]}", f"{name} {_INPLACE[target]} {args[1]}"]
    if target in _INFIX and len(args) == 2 and not keywords:
        return [f"{name} = {_operand(args[0])} {_INFIX[target]} {_operand(args[1])}"]
    if target in _PREFIX and len(args) == 1:
        return [f"{name} = {_PREFIX[target]}{_operand(args[0])}"]
    if target == "operator.getitem" and len(args) == 2:
        return [f"{name} = {_operand(args[0])}[{_subscript(operator.args[1])}]"]
    if target == "operator.setitem" and len(args) == 3:
        return [f"{_operand(args[0])}[{_subscript(operator.args[1])}] = {args[2]}"]
    if target == "getattr" and len(args) == 2 and quoting.is_name(attribute := _text_of(operator.args[1])):
        return [f"{name} = {_operand(args[0])}.{attribute}"]
    return [f"{name} = {quoting.expression(target)}({', '.join([*args, *keywords])})"]


def _text_of(value: Value) -> object:
    """Return the text that a literal holds, None for anything else."""
    node = ast.parse(value.text, mode="eval").body if isinstance(value, Literal) else None
    return node.value if isinstance(node, ast.Constant) else None


def _operand(text: str) -> str:
    return f"({text})" if text.startswith("-") or (" " in text and not text.startswith(("(", "["))) else text


def _subscript(value: Value) -> str:
    if isinstance(value, Items) and value.kind == "tuple" and value.items:
        inner = ", ".join(_subscript(item) for item in value.items)
        return f"{inner}," if len(value.items) == 1 else inner
    if isinstance(value, Call) and value.function == "slice" and len(value.args) == 3:
        parts = ["" if item == Literal("None") else _flat(item) for item in value.args]
        return f"{parts[0]}:{parts[1]}" + (f":{parts[2]}" if parts[2] else "")
    return "..." if value == Literal("Ellipsis") else _flat(value)


def graph_text(graph: Graph, name: str) -> str:
    """Return the source of a module class whose `forward` is the graph, its bodies' classes first."""
    parts = [graph_text(child, _class_name(name, attribute)) for attribute, child in graph.children]
    lines = [f"class {name}(torch.nn.Module):"]
    if graph.children or graph.constants:
        lines += ["    def __init__(self, device):", "        super().__init__()"]
        lines += [
            _own_attribute(attribute, f"{_class_name(name, attribute)}({'device' if _takes_device(child) else ''})")
            for attribute, child in graph.children
        ]
        lines += [_own_attribute(attribute, tensor_text(value)) for attribute, value in graph.constants]
        lines.append("")
    inputs = [quoting.name(item.name) for item in graph.inputs]
    head = f"    def forward({', '.join(['self', *inputs])}):"
    if len(head) > WIDTH:
        head = "    def forward(\n        self,\n" + "".join(f"        {item},\n" for item in inputs) + "    ):"
    lines.append(head)
    lines += _operator_lines(graph)
    lines.append(f"        return {value_text(graph.output, 8)}")
    return "\n\n\n".join([*parts, "\n".join(lines)])


def _own_attribute(name: str, value: str) -> str:
    return f"        {quoting.assignment(quoting.attribute('self', name), value)}"


def _operator_lines(graph: Graph) -> list[str]:
    lines: list[str] = []
    module, indent = "", 8
    for operator in graph.operators:
        if operator.target.endswith("_exit_autocast"):
            if lines[-1].lstrip().startswith("with "):
                lines.append(" " * indent + "pass")
            indent = max(8, indent - 4)
            continue
        if operator.module and operator.module != module:
            lines.append(" " * indent + f"# {quoting.comment(operator.module)}")
        module = operator.module
        if operator.target.endswith("_enter_autocast"):
            lines.append(" " * indent + _autocast(operator))
            indent += 4
            continue
        lines += [" " * indent + line for line in operator_lines(operator)]
    return lines


def _autocast(operator: Operator) -> str:
    # Dynamo records how the context is entered and left; people write a `with` block.
    names = ("", "dtype", "enabled", "cache_enabled")
    parts = [
        f"{name}={_flat(value)}" if name else _flat(value)
        for name, value in zip(names, operator.args, strict=False)
        if value != Literal("None")
    ]
    return f"with torch.autocast({', '.join(part for part in parts if part != 'enabled=True')}):"


def _takes_device(graph: Graph) -> bool:
    return bool(graph.children or graph.constants)


def _class_name(parent: str, attribute: str) -> str:
    return quoting.name(f"{parent}{''.join(part.capitalize() for part in attribute.split('_'))}")
