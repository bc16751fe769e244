"""Readable names for what a captured graph holds: nodes, inputs that were attributes, module paths."""

from __future__ import annotations

import re
from typing import Any

import torch

from compilebisect.core.quoting import is_name

# Names that the script itself uses where the graph's names stand.
_TAKEN = frozenset({"torch", "operator", "math", "self", "device", "model", "saved", "Repro"})


class Names:
    """Gives nodes readable names, each one once."""

    def __init__(self) -> None:
        self._by_node: dict[str, str] = {}
        self._used: set[str] = set(_TAKEN)
        #: A tensor among the inputs, whose device stands for the one that the script was asked for.
        self.tensor = ""

    def fresh(self, wish: str) -> str:
        """Choose a name for what is no node of the graph."""
        name, count = wish, 1
        while name in self._used:
            count += 1
            name = f"{wish}_{count}"
        self._used.add(name)
        return name

    def new(self, node: torch.fx.Node, wish: str) -> str:
        """Choose the name of a node."""
        name = self.fresh(wish if is_name(wish) else node.name)
        self._by_node[node.name] = name
        is_tensor = isinstance(node.meta.get("example_value"), torch.Tensor)
        if node.op == "placeholder" and is_tensor and not self.tensor:
            self.tensor = name
        return name

    def alias(self, node: torch.fx.Node, other: torch.fx.Node) -> None:
        """Let `node` go by the name of `other`."""
        self._by_node[node.name] = self._by_node[other.name]

    def has(self, node: torch.fx.Node) -> bool:
        """Return whether the node has a name already."""
        return node.name in self._by_node

    def of(self, node: torch.fx.Node) -> str:
        """Return the name chosen before."""
        return self._by_node[node.name]

    def named(self, node_name: str) -> str:
        """Return the name chosen for the node that the graph calls `node_name`."""
        return self._by_node[node_name]


class Attributes:
    """Finds the parameter or buffer of a module that a graph's input is, by identity or by what Dynamo calls it."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        self._by_id: dict[int, str] = {}
        self._by_name: dict[str, str] = {}
        if module is None:
            return
        for kind, found in (("buffers", module.named_buffers()), ("parameters", module.named_parameters())):
            for name, tensor in found:
                self._by_id[id(tensor)] = name
                *holders, last = name.split(".")
                parts = [f"modules_{holder}" for holder in holders] + [f"{kind}_{last}"]
                self._by_name["_".join(parts).lower()] = name

    def name_of(self, node: torch.fx.Node, example: Any) -> str:
        """Return the attribute's path, empty where the input is none."""
        if id(example) in self._by_id:
            return self._by_id[id(example)]
        spoken = re.sub(r"^l_[a-z0-9]+?_(?=modules_|buffers_|parameters_)", "", node.name.lower()).strip("_")
        return self._by_name.get(spoken, "")


def readable_name(name: str) -> str:
    """Turn what Dynamo calls an input into what a person would."""
    text = re.sub(r"^l_(?:self_|kwargs_|args_)?", "", name.lower())
    text = re.sub(r"(?:^|(?<=_))(?:modules|parameters|buffers)_", "", text).strip("_")
    return text if is_name(text) else name


def module_path_of(node: torch.fx.Node) -> str:
    """Return the path of the module that a node came from, below the one that was compiled."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    path = re.sub(r"^L\[['\"]\w+['\"]\]\.?", "", path)
    return re.sub(r"(?:^|\.)_modules\[['\"](\w+)['\"]\]", r".\1", path).strip(".")
