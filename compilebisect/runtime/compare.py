"""Comparison of an eager and a compiled run: structure strictly first, then values by the rules of `core.tolerance`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from compilebisect.core.tolerance import ValueFigures, Verdict
from compilebisect.error_text import error_line
from compilebisect.runtime.compare_tensors import TensorComparer, tensor_layout_difference
from compilebisect.runtime.figures import is_constant, is_inexact, plain_parts
from compilebisect.runtime.key_text import key_texts, safe_repr, same_atom
from compilebisect.runtime.record import RunRecord
from compilebisect.runtime.state import REMOVED
from compilebisect.runtime.tensor_copy import UNSUPPORTED
from compilebisect.runtime.values import Node, is_a, is_atomic
from compilebisect.runtime.witness import Supplier, Witnesses

DifferenceType = Literal[
    "structure", "shape", "dtype", "device", "stride", "requires_grad", "aliasing", "mutation", "nonfinite", "values"
]
Nudged = RunRecord | Sequence[RunRecord] | Callable[[int], RunRecord | None] | None


@dataclass(frozen=True)
class Difference:
    """One way in which the compiled run differs: what differs, where, and the same in plain words."""

    type: DifferenceType
    path: str
    text: str
    figures: ValueFigures | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Comparison:
    """All differences; `notes` say what was seen and is no fault.

    `is_constant_output` marks an output that would hide a fault inside the module, `has_excused` that something differs
    by more than the floor and is right all the same.
    """

    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_constant_output: bool = False
    used_reference: bool = False
    has_excused: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def compare_runs(
    eager: RunRecord,
    compiled: RunRecord,
    *,
    repeat: RunRecord | Supplier | None = None,
    nudged: Nudged = None,
    reference: Supplier | None = None,
    tolerance: tuple[float, float] | None = None,
) -> Comparison:
    """Compare two runs of one module on the same inputs.

    Args:
        eager: the run that is right.
        compiled: the run to judge.
        repeat: the eager run once more with the same seed, or what makes it; asked for only when it matters.
        nudged: eager runs on inputs one ulp away: one, several, or a function of the number of the nudge.
        reference: makes the float64 run, or None where that is not possible; called only where nothing cheaper decides.
        tolerance: (rtol, atol) to use instead of all that.
    """
    witnesses = Witnesses(repeat, nudged, reference)
    return _Comparer(eager, compiled, witnesses, tolerance).run()


class _Comparer:
    def __init__(
        self,
        eager: RunRecord,
        compiled: RunRecord,
        witnesses: Witnesses,
        tolerance: tuple[float, float] | None,
    ) -> None:
        self._eager, self._compiled = eager, compiled
        self._witnesses = witnesses
        self._objects: tuple[str, ...] = ()
        self._differences: list[Difference] = []
        self._notes: list[str] = []
        self._tensors = TensorComparer(eager, compiled, witnesses, tolerance, self._notes)

    def run(self) -> Comparison:
        eager_parts, compiled_parts = self._eager.parts(), self._compiled.parts()
        for part, eager_nodes in eager_parts.items():
            self._tensors.start_part(eager_nodes)
            compiled_nodes = {node.path: node for node in compiled_parts[part]}
            if part in ("state", "grad"):
                self._compare_entries(part, {node.path: node for node in eager_nodes}, compiled_nodes)
            else:
                self._compare_trees(part, eager_nodes, compiled_nodes)
        self._compare_autograd()
        self._compare_aliases()
        return Comparison(
            self._differences,
            self._notes,
            self._has_constant_output(),
            self._witnesses.has_made_reference,
            self._tensors.has_excused,
        )

    def _add(self, kind: DifferenceType, path: str, text: str, **more: Any) -> None:
        self._differences.append(Difference(kind, path, f"{path}: {text}", **more))

    def _compare_trees(self, part: str, eager: list[Node], compiled: dict[str, Node]) -> None:
        """Walk eager's nodes; below a container that differs nothing more is said."""
        broken: list[str] = []
        self._objects = tuple(f"{node.path}." for node in eager if node.keys is not None and _is_object(node.value))
        for node in eager:
            if any(node.path.startswith(path) for path in broken):
                continue
            other = compiled.get(node.path)
            text = "compiled gives nothing here" if other is None else _structure_difference(node, other)
            if text:
                self._add("mutation" if part == "inputs" else "structure", node.path, text)
                broken.append(node.path)
            elif node.keys is None and other is not None:
                self._compare_leaves(part, node.path, node.value, other.value)

    def _compare_entries(self, part: str, eager: dict[str, Node], compiled: dict[str, Node]) -> None:
        """Compare what was changed (state) or computed (gradients), path by path."""
        for path in dict.fromkeys([*eager, *compiled]):
            left, right = eager.get(path), compiled.get(path)
            if left is None or right is None:
                self._compare_one_sided(part, path, left, right)
            elif left.keys is None or right.keys is None:
                text = _structure_difference(left, right)
                if text is None:
                    self._compare_leaves(part, path, left.value, right.value)
                elif part == "grad":
                    self._compare_missing_gradient(path, left.value, right.value)
                else:
                    self._add("mutation", path, text)

    def _compare_one_sided(self, part: str, path: str, eager: Node | None, compiled: Node | None) -> None:
        if part == "grad":
            self._compare_missing_gradient(path, eager and eager.value, compiled and compiled.value)
        elif eager is not None and self._witnesses.repeat_lacks(path):
            self._notes.append(f"{path}: eager itself changes this only in some of its runs")
        elif self._is_rounding(path, (eager or compiled).value):  # type: ignore[union-attr] # one of them is there
            self._notes.append(f"{path}: what is left here is rounding, and none of it in one of the runs")
        elif eager is not None:
            self._add("mutation", path, f"eager changes this to {_short(eager.value)}, compiled leaves it as it was")
        elif compiled is not None:
            self._add("mutation", path, f"compiled changes this to {_short(compiled.value)}, eager leaves it as it was")

    def _is_rounding(self, path: str, value: Any) -> bool:
        """Say whether a number moves by all that it is where inputs move by their last bit, and not by itself."""
        if not isinstance(value, (float, complex)) or self._witnesses.repeat_differs(path, value):
            return False  # what differs from run to run is a clock
        nudges = [other for other in self._witnesses.nudges(path) if isinstance(other, (float, complex))]
        return any(abs(other - value) >= abs(value) for other in nudges)

    def _compare_missing_gradient(self, path: str, eager: Any, compiled: Any) -> None:
        """Zeros and no gradient at all mean the same to an optimizer's user, and AOT autograd mixes them."""
        present = eager if eager is not None else compiled
        if isinstance(present, torch.Tensor) and bool((present == 0).all()):
            return
        who, other = ("eager", "compiled") if eager is not None else ("compiled", "eager")
        self._add("values", path, f"{who} gives a gradient here, {other} gives none")

    def _compare_leaves(self, part: str, path: str, eager: Any, compiled: Any) -> None:
        if is_a(eager, torch.Tensor):
            try:
                self._compare_tensors(part, path, eager, compiled)
            except UNSUPPORTED as error:  # a class of the user's that does not let itself be read
                self._tensors.excuse(f"{path}: not compared, its class does not allow it: {error_line(error)}")
            return
        text = self._scalar_difference(path, eager, compiled)
        if text:
            self._add("mutation" if part in ("inputs", "state") else "values", path, text)

    def _compare_tensors(self, part: str, path: str, eager: torch.Tensor, compiled: torch.Tensor) -> None:
        # What a module leaves in a cache or another object of its own is state: only it reads it again.
        with_strides = part == "output" and not path.startswith(self._objects)
        layout = tensor_layout_difference(eager, compiled, with_strides=with_strides)
        if layout is not None:
            self._add(layout[0], path, layout[1])
            return
        for finding in self._tensors.compare(path, eager, compiled):
            kind = "mutation" if part in ("inputs", "state") else finding.type
            self._add(kind, path + finding.suffix, finding.text, figures=finding.figures, verdict=finding.verdict)

    def _scalar_difference(self, path: str, eager: Any, compiled: Any) -> str | None:
        if isinstance(eager, (np.ndarray, np.generic)):
            same = np.array_equal(eager, compiled, equal_nan=np.asarray(eager).dtype.kind in "fc")
            return None if same else "the arrays differ"
        if not is_atomic(eager) or same_atom(eager, compiled):
            return None
        if isinstance(eager, (float, complex)):
            return self._tensors.compare_numbers(path, eager, compiled)
        if self._witnesses.repeat_differs(path, eager) or self._witnesses.any_nudge_differs(path, eager):
            told = f"{_short(eager)} in eager, {_short(compiled)} in compiled"
            self._notes.append(f"{path}: {told}; eager itself is not sure of it")
            return None
        return f"{_short(eager)} in eager, {_short(compiled)} in compiled"

    def _compare_autograd(self) -> None:
        for path, value in ((node.path, node.value) for node in self._eager.parts()["output"]):
            if not isinstance(value, torch.Tensor):
                continue
            left, right = path in self._eager.requires_grad, path in self._compiled.requires_grad
            if left != right and not any(d.path == path and d.type != "values" for d in self._differences):
                self._add("requires_grad", path, f"requires_grad is {left} in eager, {right} in compiled")

    def _compare_aliases(self) -> None:
        """Memory that only compiled shares is a fault; what only eager shares is a copy too many at worst.

        torch.compile hands back a copy where eager's dropout in eval mode hands back its input, for example.
        """
        for path, source in sorted(self._compiled.aliases - self._eager.aliases):
            self._add("aliasing", path, f"compiled returns memory of {source}, eager returns memory of its own")
        for path, source in sorted(self._eager.aliases - self._compiled.aliases):
            self._notes.append(f"{path}: eager returns memory of {source}, compiled returns a copy")

    def _has_constant_output(self) -> bool:
        judged = []
        for node in self._eager.parts()["output"]:
            if is_a(node.value, torch.Tensor):
                parts = plain_parts(node.value) or []
                judged += [is_constant(tensor) for _, tensor in parts if is_inexact(tensor) and tensor.numel() > 1]
        return bool(judged) and all(judged)


def _is_object(value: Any) -> bool:
    return not isinstance(value, (list, tuple, dict)) and not dataclasses.is_dataclass(value)


def _structure_difference(eager: Node, compiled: Node) -> str | None:
    left, right = eager.value, compiled.value
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return None
    if (left is REMOVED) != (right is REMOVED) or type(left) is not type(right):
        return f"{_short(left)} in eager, {_short(right)} in compiled"
    if eager.keys is None or compiled.keys is None:
        return None
    ours, theirs = key_texts(eager.keys), key_texts(compiled.keys)
    if isinstance(left, dict) and set(ours) == set(theirs):
        return None
    if ours != theirs:
        return f"entries {_short(eager.keys)} in eager, {_short(compiled.keys)} in compiled"
    return None


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}" if not value.is_nested else "a nested tensor"
    if is_atomic(value) or value is REMOVED or isinstance(value, (tuple, list)):
        text = safe_repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    return f"an object of type {type(value).__qualname__}"
