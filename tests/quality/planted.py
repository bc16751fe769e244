"""A backend that compiles like `aot_eager` and gets one kind of operator of one class of module wrong.

The tool's own code is left as it is: faults go into the graphs, as those of a compiler would.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd

BACKEND = "planted"
#: What a dtype is cut down to and back by a fault of precision.
NARROWER = {
    torch.float32: torch.bfloat16,
    torch.float16: torch.float8_e4m3fn,
    torch.bfloat16: torch.float8_e4m3fn,
}
#: Operators that only give another view, where nothing is computed that could be wrong.
_VIEWS = ("t", "view", "transpose", "permute", "expand", "unsqueeze", "squeeze", "alias", "detach", "slice", "select",
          "reshape", "_unsafe_view", "as_strided", "unbind", "split", "chunk", "clone", "_to_copy", "new_zeros",
          "zeros", "full", "lift_fresh_copy", "copy_", "empty", "scalar_tensor", "zeros_like")  # fmt: skip


class Fault(NamedTuple):
    """What is wrong: `how` in all operators called `target` of the modules of `cls`.

    `graph` is `forward` or `backward` for the graphs behind AOTAutograd, `dynamo` for those before it.
    """

    graph: str
    cls: str
    target: str
    how: str
    size: float = 0.0


class Planted:
    """The state of the backend: the fault in force, and all operators that were met, as faults could name them."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.met: dict[tuple[str, str, str], None] = {}
        self.planted = 0
        #: The class of the module that is compiled: Dynamo's stacks begin below it.
        self.root = ""

    def backend(self, gm: fx.GraphModule, inputs: list[Any]) -> Any:
        """Compile a graph of Dynamo."""
        self._work_on(gm, "dynamo")
        return aot_autograd(fw_compiler=self._compiler("forward"), bw_compiler=self._compiler("backward"))(gm, inputs)

    def _compiler(self, graph: str) -> Callable[..., Any]:
        def compile_graph(gm: fx.GraphModule, inputs: list[Any]) -> Any:
            self._work_on(gm, graph)
            return make_boxed_func(gm.forward)

        return compile_graph

    def _work_on(self, gm: fx.GraphModule, graph: str) -> None:
        for node in list(gm.graph.nodes):
            place = (graph, _owner(node) or self.root, _name(node))
            if not _is_computed(node, graph):
                continue
            self.met.setdefault(place)
            fault = self.fault
            if fault is not None and place == (fault.graph, fault.cls, fault.target):
                self.planted += _plant(gm, node, fault)
        gm.graph.lint()
        gm.recompile()


def _owner(node: fx.Node) -> str:
    """Name the class of the innermost module whose forward made a node."""
    stack = node.meta.get("fwd_nn_module_stack") or node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    cls = list(stack.values())[-1][1]
    return cls.__name__ if isinstance(cls, type) else str(cls).rpartition(".")[2]


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    if node.target is operator.getitem:
        return f"{_name(node.args[0])}[{node.args[1]}]" if isinstance(node.args[0], fx.Node) else ""
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else getattr(node.target, "__name__", str(node.target))


def _is_computed(node: fx.Node, graph: str) -> bool:
    name = _name(node)
    if not name or name in _VIEWS:
        return False
    if graph == "dynamo":
        return name in IN_PLACE
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() < 2:
        return False
    return name.partition("[")[0] not in _VIEWS


#: Functions of Dynamo's graphs that write their first argument, and what they are without the write.
IN_PLACE: dict[str, Callable[..., Any]] = {
    "iadd": operator.add,
    "add_": torch.add,
    "mul_": torch.mul,
    "copy_": lambda into, value: value.expand_as(into),
    "setitem": lambda into, where, value: None,
}


def _plant(gm: fx.GraphModule, node: fx.Node, fault: Fault) -> int:
    if fault.how == "dropped write":
        with gm.graph.inserting_after(node):
            new = gm.graph.call_function(IN_PLACE[fault.target], node.args, node.kwargs)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
        return 1
    if (
        fault.how == "stale buffer"
    ):  # the write is made, but what reads the memory afterwards sees what was there before
        with gm.graph.inserting_before(node):
            old = gm.graph.call_function(torch.clone, (node.args[0],))
        later = list(gm.graph.nodes)[list(gm.graph.nodes).index(node) + 1 :]
        for reader in later:
            for name in _names_of_memory(node):
                reader.replace_input_with(name, old)
        return 1
    if not node.users:
        return 0
    others = [other for other in _before(node) if _is_alike(other, node)]
    if fault.how == "stale value" and not others:
        return 0
    with gm.graph.inserting_after(node):
        if fault.how == "stale value":
            new = gm.graph.call_function(torch.ops.aten.clone.default, (others[-1],))
        else:
            new = gm.graph.call_function(HOW[fault.how], (node, fault.size))
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    return 1


def _names_of_memory(node: fx.Node) -> list[fx.Node]:
    """List the nodes that stand for the tensor that an operator writes: itself, and what it was given."""
    names = [node]
    while isinstance(node.args[0] if node.args else None, fx.Node) and _name(node) in IN_PLACE:
        node = node.args[0]
        names.append(node)
    return names


def _before(node: fx.Node) -> list[fx.Node]:
    nodes = list(node.graph.nodes)
    return [other for other in nodes[: nodes.index(node)] if other.op in ("call_function", "placeholder")]


def _is_alike(other: fx.Node, node: fx.Node) -> bool:
    one, two = other.meta.get("val"), node.meta.get("val")
    return isinstance(one, torch.Tensor) and one.shape == two.shape and one.dtype == two.dtype


def _one_element(value: torch.Tensor, size: float) -> torch.Tensor:
    value = value.clone()
    flat = value.view(-1)
    flat[flat.abs().argmax()] *= 1 + size
    return value


def _transposed(value: torch.Tensor, size: float) -> torch.Tensor:
    if value.dim() < 2 or 1 in value.shape[-2:]:
        return value.flip(-1)
    return value.transpose(-1, -2).reshape(value.shape)


def _other_strides(value: torch.Tensor, size: float) -> torch.Tensor:
    dims = list(range(value.dim()))[::-1]
    return value.permute(dims).contiguous().permute(dims)


HOW: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "scaled": lambda value, size: value * (1 + size),
    "shifted": lambda value, size: value + size * value.abs().mean(),
    "one element": _one_element,
    "truncated": lambda value, size: value.to(NARROWER[value.dtype]).to(value.dtype),
    "transposed": _transposed,
    "moved by one": lambda value, size: value.reshape(-1).roll(1).reshape(value.shape),
    "other strides": _other_strides,
    "zeroed": lambda value, size: torch.zeros_like(value),
    "last row zeroed": lambda value, size: torch.cat([value[:-1], torch.zeros_like(value[-1:])]),
}
for _function in HOW.values():
    _function.__module__ = __name__


PLANTED = Planted()


def _planted_backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
    return PLANTED.backend(gm, inputs)


register_backend(_planted_backend, name=BACKEND)
