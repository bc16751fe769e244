"""What one run of a module left behind, in the form in which two runs are compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from compilebisect.runtime.tensor_copy import storage_key
from compilebisect.runtime.values import Node, tensors_in, walk


@dataclass(frozen=True)
class RunRecord:
    """Everything that leaves a module.

    Attributes:
        output: what the module returned, detached where `requires_grad` was already noted.
        inputs_after: args and kwargs after the run.
        state: `StateSnapshot.changes()` after the run.
        grads: gradients by path, `inputs.args[0]` or a parameter's name; None where there is none.
        requires_grad: paths of output tensors that take part in autograd.
        aliases: pairs of an output's path and the path of what it shares memory with.
        noise_dtype: the coarsest floating dtype among inputs, parameters and autocast.
        draws_random: the forward run consumed random numbers.
        draws_end: stands for the generators' states after the forward run.
    """

    output: Any
    inputs_after: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    state: dict[str, Any] = field(default_factory=dict)
    grads: dict[str, torch.Tensor | None] = field(default_factory=dict)
    requires_grad: frozenset[str] = frozenset()
    aliases: frozenset[tuple[str, str]] = frozenset()
    noise_dtype: str = ""
    draws_random: bool = False
    draws_end: str = ""

    def parts(self) -> dict[str, list[Node]]:
        """List the nodes of all four parts; paths begin with `output`, `inputs`, `state` or `grad`."""
        args, kwargs = self.inputs_after
        state = [node for path, value in self.state.items() for node in walk(value, f"state.{path}")]
        return {
            "output": list(walk(self.output, "output")),
            "inputs": [*walk(args, "inputs.args"), *walk(kwargs, "inputs.kwargs")],
            "state": state,
            "grad": [Node(f"grad.{path}", grad, None) for path, grad in self.grads.items()],
        }


def alias_pairs(output: Any, sources: list[tuple[str, torch.Tensor]]) -> frozenset[tuple[str, str]]:
    """Find which output tensors share memory with which of `sources` (path, tensor)."""
    by_storage: dict[tuple[str, int], list[str]] = {}
    for path, tensor in sources:
        key = storage_key(tensor)
        if key is not None:
            by_storage.setdefault(key, []).append(path)
    pairs: set[tuple[str, str]] = set()
    for path, tensor in tensors_in(output, "output"):
        key = storage_key(tensor)
        if key is not None:
            pairs.update((path, source) for source in by_storage.get(key, ()))
    return frozenset(pairs)
