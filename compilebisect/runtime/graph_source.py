"""Graph cases: a captured FX graph and its inputs as a module of operators that stands alone."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from compilebisect.attempt import attempt
from compilebisect.core.call import CallContext
from compilebisect.core.outcome import Fault, Kind
from compilebisect.core.quoting import literal
from compilebisect.core.reduce.graph import without_operators
from compilebisect.core.repro_case import (
    Call,
    Definition,
    Graph,
    GraphInput,
    Items,
    Literal,
    Operator,
    Ref,
    ReproCase,
    TensorValue,
    UserFile,
    Value,
)
from compilebisect.core.repro_case import Mapping as MappingValue
from compilebisect.error_text import error_text
from compilebisect.runtime.graph_names import Attributes, Names, module_path_of, readable_name
from compilebisect.runtime.module_source import CannotMakeCase, environment
from compilebisect.runtime.rerun import run_once
from compilebisect.runtime.source_extract import SourceExtractor
from compilebisect.runtime.source_file import NotExtractable
from compilebisect.runtime.tensor_source import TensorFile, tensor_value
from compilebisect.runtime.torch_internals import is_within_function_transform, leave_function_transforms
from compilebisect.runtime.torch_names import NotNameable, name_of
from compilebisect.runtime.user_files import is_user_module, user_file
from compilebisect.runtime.value_source import NotRebuildable, ValueBuilder

_OWN_NAMESPACES = frozenset({"aten", "prims", "prim", "higher_order", "inductor", "_c10d_functional"})
# Spellings of what Dynamo records that users write and Dynamo traces.
_PUBLIC = {"torch._C._set_grad_enabled": "torch.set_grad_enabled"}
_OWN_GRADIENT = "torch.ops.higher_order.autograd_function_apply"
_CHECKPOINT = "torch.ops.higher_order.tag_activation_checkpoint"
# Operators that Dynamo makes of functions of torch and does not take itself: their results become inputs.
_NOT_TRACEABLE = (
    "torch.ops.higher_order.flex_attention",
    "torch.ops.higher_order.scan",
    "torch.ops.higher_order.associative_scan",
)
# Names of functions and methods that change a tensor in place.
_WRITING = re.compile(r"[^_]_$|^setitem$|^i(add|sub|mul|truediv|floordiv|mod|pow|matmul|and|or|xor)$")
# Operators whose arguments live in tables of the process that captured them; they change tensors in place.
_UNWRITABLE = ("triton_kernel_wrapper", "call_torchbind", "executorch_call")


def graph_case(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    fault: Fault,
    *,
    module: torch.nn.Module | None = None,
    module_path: str = "",
    context: CallContext | None = None,
    device: str = "cpu",
    tensor_file: Path | None = None,
    import_user_code: bool = False,
    **settings: Any,
) -> ReproCase:
    """Describe a graph that Dynamo handed to a backend, and the inputs that it handed over with it.

    Args:
        gm: the graph as the backend got it, before any pass changed it.
        example_inputs: its inputs, with the values that they have before the call.
        fault: what the script must show.
        module: the module that was compiled; its parameters give the inputs their names.
        module_path: where the module sits in the user's model.
        context: grad mode and autocast of the call.
        device: the device that the fault was seen on.
        tensor_file: where to save the inputs; None gives all of them seeded numbers.
        import_user_code: import the user's files that define custom operators, instead of taking the definitions.
        settings: further fields of `ReproCase`, such as `backend`, `mode`, `dynamic`, `config`, `train`, `seed`.

    Raises:
        CannotMakeCase: where the graph holds what no script can write down.
    """
    file = TensorFile(tensor_file) if tensor_file else None
    writer = _GraphWriter(ValueBuilder(device=device, file=file), Attributes(module))
    try:
        if fault.kind not in (Kind.CRASH, Kind.TIMEOUT):  # an operator at fault may do that in eager mode too
            writer.results = _results(gm, example_inputs, context, device, file)
        if _writes(gm):  # who shares memory with whom only matters then
            writer.values.find_shared([item for item in example_inputs if isinstance(item, torch.Tensor)])
        graph = without_operators(writer.graph(gm, example_inputs), writer.not_traceable)
        graph = msgspec.structs.replace(graph, memory=tuple(writer.values.statements))
        if not graph.operators:
            raise CannotMakeCase("the graph holds nothing that Dynamo traces when it is written down")
        definitions, user_files, notes = _operator_sources(writer, import_user_code)
    except (NotRebuildable, NotExtractable, NotNameable) as error:
        raise CannotMakeCase(error_text(error)) from error
    is_saved = file is not None and file.write()
    settings.setdefault("environment", environment(device))
    if writer.has_symbols and settings.get("dynamic") is None:
        settings["dynamic"] = True
    return ReproCase(
        fault=fault,
        graph=graph,
        definitions=definitions,
        imports=tuple(sorted(writer.values.imports)),
        user_files=user_files,
        module_path=module_path,
        module_class=type(module).__name__ if module is not None else "",
        device=device,
        context=context or CallContext(grad_mode="no_grad"),
        tensor_file=str(tensor_file) if is_saved else "",
        notes=(*writer.values.notes, *notes),
        **settings,
    )


class _GraphWriter:
    def __init__(self, values: ValueBuilder, attributes: Attributes) -> None:
        self.values = values
        self.attributes = attributes
        self.operators: set[tuple[str, str]] = set()
        self.not_traceable: set[str] = set()
        self.has_symbols = False
        self.results: dict[str, TensorValue] = {}

    def graph(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] | None) -> Graph:
        """Describe one graph; the bodies of higher-order operators come without inputs of their own."""
        names = Names()
        inputs: list[GraphInput] = []
        operators: list[Operator] = []
        constants: list[tuple[str, TensorValue]] = []
        children: list[tuple[str, Graph]] = []
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        examples = list(example_inputs) if example_inputs is not None else [None] * len(placeholders)
        symbols = _symbol_sources(placeholders)
        for node, example in zip(placeholders, examples, strict=True):
            symbol = str(node.meta.get("example_value", "")) if example_inputs is not None else ""
            if symbol in symbols:
                self.has_symbols = True
                source, dim = symbols[symbol]
                operators.append(_size_operator(names.new(node, node.name), source, dim))
                continue
            inputs.append(self._input(names, node, example, is_body=example_inputs is None))
            number = _wrapped_number(node, example)
            if number is not None:
                # With dynamic shapes Dynamo hands numbers over as tensors and reads them at once; users pass numbers.
                inputs[-1] = GraphInput(name=inputs[-1].name, value=Literal(literal(number)), origin=inputs[-1].origin)
                for user in node.users:
                    names.alias(user, node)
        # Sizes are read from tensors, which may be named after the sizes were met.
        operators = [_renamed(operator, names) for operator in operators]
        output: Value = Literal("None")
        for node in gm.graph.nodes:
            if node.op == "output":
                output = self._argument(names, node.args[0])
            elif node.op == "get_attr":
                target = _attribute(gm, node.target)
                name = str(node.target).replace(".", "_")
                if isinstance(target, torch.fx.GraphModule):
                    if name not in dict(children):
                        children.append((name, self.graph(target, None)))
                elif isinstance(target, torch.Tensor):
                    if name not in dict(constants):
                        constants.append((name, self._constant(name, target)))
                else:
                    raise NotRebuildable(f"the graph reads an attribute of class {type(target).__name__}")
                operators.append(Operator(name=names.new(node, node.name), kind="attribute", target=name))
            elif node.op in ("call_function", "call_method") and not names.has(node):
                operators += self._operators(names, node)
            elif node.op == "call_module":
                raise NotRebuildable(f"the graph calls a module: {node.target}")
        if isinstance(output, Items) and len(output.items) == 1 and example_inputs is not None:
            output = output.items[0]
        return Graph(
            inputs=tuple(inputs),
            operators=tuple(operators),
            output=output,
            constants=tuple(constants),
            children=tuple(children),
        )

    def _input(self, names: Names, node: torch.fx.Node, example: Any, *, is_body: bool) -> GraphInput:
        origin = "" if is_body else self.attributes.name_of(node, example)
        name = names.new(node, origin.replace(".", "_") if origin else readable_name(node.name))
        if is_body:
            return GraphInput(name=name, value=Literal("None"))
        return GraphInput(name=name, value=self.values.value(example, name), origin=origin)

    def _constant(self, name: str, tensor: torch.Tensor) -> TensorValue:
        # Constants are part of the program, so they keep their values where a file is there to hold them.
        try:
            return tensor_value(tensor, name, device=self.values.device, file=self.values.file)
        except TypeError as error:
            raise NotRebuildable(error_text(error)) from error

    def _operators(self, names: Names, node: torch.fx.Node) -> list[Operator]:
        args = tuple(self._argument(names, item) for item in node.args)
        kwargs = tuple((name, self._argument(names, item)) for name, item in node.kwargs.items())
        if node.op == "call_method":
            kind, target = "method", str(node.target)
        else:
            kind, target = "function", self._function(node.target)
        if target == _CHECKPOINT:
            # The operator itself asks its body for what only Dynamo puts there.
            self.values.imports.add("import torch.utils.checkpoint")
            target = "torch.utils.checkpoint.checkpoint"
            kwargs = tuple(item for item in kwargs if item[0] in ("use_reentrant", "preserve_rng_state"))
        module = module_path_of(node)
        before: list[Operator] = []
        if target == _OWN_GRADIENT:
            # The operator itself runs nothing but graphs. Its forward part gives outputs and what backward needs; a
            # fault of the user's own gradient is left to the module's source.
            both = Operator(name=names.fresh("outputs_and_saved"), kind="method", target="__call__", module=module)
            before = [msgspec.structs.replace(both, args=(args[0], *args[2:]))]
            kind, target, args, kwargs = "function", "operator.getitem", (Ref(both.name), Literal("0")), ()
        own = Operator(
            name=names.new(node, node.name),
            kind=kind,
            target=target,
            args=args,
            kwargs=kwargs,
            module=module,
            output=self._result(names, node),
        )
        if target in _NOT_TRACEABLE:
            self.not_traceable.add(own.name)
        return [*before, own]

    def _result(self, names: Names, node: torch.fx.Node) -> TensorValue | None:
        seen = self.results.get(node.name)
        return seen or _described(node.meta.get("example_value"), self.values.device, "", None)

    def _function(self, function: Any) -> str:
        name = name_of(function)
        if any(part in name.text for part in _UNWRITABLE):
            raise NotRebuildable(f"{name.text} refers to objects of the process that captured it")
        match = re.match(r"torch\.ops\.(\w+)\.(\w+)", name.text)
        if match and match[1] not in _OWN_NAMESPACES:
            self.operators.add((match[1], match[2]))
        if name.module and name.module.startswith("_operator"):
            self.values.imports.add("import operator")
            return f"operator.{name.text}"
        return _PUBLIC.get(name.text) or self.values.use(name)

    def _argument(self, names: Names, item: Any) -> Value:
        if isinstance(item, torch.fx.Node):
            return Ref(names.of(item))
        if isinstance(item, list | tuple) and not hasattr(item, "_fields"):
            kind = "list" if isinstance(item, list) else "tuple"
            return Items(kind, tuple(self._argument(names, part) for part in item))
        if isinstance(item, dict):
            return MappingValue(tuple((self._argument(names, k), self._argument(names, v)) for k, v in item.items()))
        if isinstance(item, slice):
            parts = (item.start, item.stop, item.step)
            return Call("slice", tuple(self._argument(names, part) for part in parts))
        if isinstance(item, torch.Tensor):
            raise NotRebuildable("a tensor stands in the graph itself")
        if isinstance(item, torch.device) and names.tensor and item.type == torch.device(self.values.device).type:
            return Ref(f"{names.tensor}.device")
        return self.values.value(item, "")


def _symbol_sources(placeholders: Sequence[torch.fx.Node]) -> dict[str, tuple[str, int]]:
    """Return, for each symbolic size that is an input, the tensor input and dimension that have it."""
    wanted = {
        str(node.meta["example_value"])
        for node in placeholders
        if isinstance(node.meta.get("example_value"), torch.SymInt)
    }
    found: dict[str, tuple[str, int]] = {}
    for node in placeholders:
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor):
            for dim, size in enumerate(example.shape):
                if str(size) in wanted:
                    found.setdefault(str(size), (node.name, dim))
    return found


def _wrapped_number(node: torch.fx.Node, example: Any) -> float | None:
    if type(example) is not torch.Tensor or example.ndim or example.dtype is not torch.float64:
        return None
    is_read_at_once = bool(node.users) and all(user.target == "item" for user in node.users)
    return float(example) if is_read_at_once else None


def _size_operator(name: str, source: str, dim: int) -> Operator:
    return Operator(name=name, kind="method", target="size", args=(Ref(source), Literal(str(dim))))


def _renamed(operator: Operator, names: Names) -> Operator:
    source, dim = operator.args
    assert isinstance(source, Ref)
    return Operator(
        name=operator.name, kind=operator.kind, target=operator.target, args=(Ref(names.named(source.name)), dim)
    )


def _results(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    context: CallContext | None,
    device: str,
    file: TensorFile | None,
) -> dict[str, TensorValue]:
    """Run the graph in eager mode and describe what each operator gives, so that a smaller graph can begin there."""
    found: dict[str, TensorValue] = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            result = super().run_node(node)
            if node.op in ("call_function", "call_method"):
                described = _described(result, device, f"result.{node.name}", file)
                if described is not None:
                    found[node.name] = described
            return result

    switches = CallContext("no_grad") if context is None else context
    recorder = Recorder(gm)
    if attempt(run_once, recorder.run, tuple(inputs), {}, switches).error is not None:
        leave_function_transforms()  # what was described up to here is of use; the rest keeps its fake description
    return found


def _writes(gm: torch.fx.GraphModule) -> bool:
    """Say whether an operator of a graph may change a tensor in place."""
    for node in gm.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        name = getattr(node.target, "__name__", str(node.target)).rpartition(".")[2]
        if (schema is not None and schema.is_mutable) or _WRITING.search(name) or {"out", "inplace"} & {*node.kwargs}:
            return True
    return False


def _described(example: Any, device: str, key: str, file: TensorFile | None) -> TensorValue | None:
    if not isinstance(example, torch.Tensor) or is_within_function_transform(example):
        return None
    try:
        return tensor_value(example, key, device=device, file=file)
    except TypeError:
        return None


def _attribute(gm: torch.fx.GraphModule, target: Any) -> Any:
    found: Any = gm
    for part in str(target).split("."):
        found = getattr(found, part)
    return found


def _operator_sources(
    writer: _GraphWriter, import_user_code: bool
) -> tuple[tuple[Definition, ...], tuple[UserFile, ...], list[str]]:
    """Find what defines the custom operators: the user's source, or the library that goes by the namespace's name."""
    definitions: list[Definition] = []
    extractor = SourceExtractor()
    for namespace, name in sorted(writer.operators):
        if namespace in sys.modules and not is_user_module(namespace):
            definitions.append(Definition(names=(), text=f"import {namespace}"))
        elif not import_user_code:
            extractor.require_operator(namespace, name)
    if import_user_code:
        modules = extractor.modules_defining(writer.operators)
        found = [user_file(module, ()) for module in modules]
        return tuple(definitions), tuple(file for file in found if file), []
    if extractor.missing_operators:
        raise NotExtractable(f"no definition was found of {', '.join(extractor.missing_operators)}")
    taken = extractor.definitions()
    writer.values.imports |= extractor.imports
    for module, name in sorted(writer.values.user_names):
        writer.values.imports.add(f"from {module} import {name}")
    unique = list(dict.fromkeys(definitions))
    return (*unique, *taken), (), []
