"""Comparison of two tensors: layout first, then NaN and inf, then values with as many yardsticks as it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch

from compilebisect.core.tolerance import (
    OTHER_DRAWS_TIMES,
    STRANGE_AT_ALL,
    ErrorFigures,
    Outcome,
    ValueFigures,
    Verdict,
    floor_for,
    judge,
)
from compilebisect.error_text import error_line
from compilebisect.runtime import figures as measure
from compilebisect.runtime.record import RunRecord
from compilebisect.runtime.tensor_copy import UNSUPPORTED, is_dense
from compilebisect.runtime.values import Node, is_a
from compilebisect.runtime.witness import MAX_NUDGES, MEASURED_NUDGES, Witnesses, same_shape


@dataclass(frozen=True)
class TensorFinding:
    """A difference between two tensors; `suffix` names the part of a sparse or nested one."""

    type: Literal["nonfinite", "values", "shape", "structure"]
    text: str
    suffix: str = ""
    figures: ValueFigures | None = None
    verdict: Verdict | None = None


def tensor_layout_difference(
    eager: torch.Tensor, compiled: torch.Tensor, *, with_strides: bool
) -> tuple[Literal["structure", "shape", "dtype", "device", "stride"], str] | None:
    """Say what differs besides values: kind of tensor, shape, dtype, device, strides."""
    if _kind(eager) != _kind(compiled):
        return "structure", f"a {_kind(eager)} tensor in eager, a {_kind(compiled)} tensor in compiled"
    if not eager.is_nested and eager.shape != compiled.shape:
        return "shape", f"shape {tuple(eager.shape)} in eager, {tuple(compiled.shape)} in compiled"
    if eager.dtype != compiled.dtype:
        names = [measure.dtype_name(tensor.dtype) for tensor in (eager, compiled)]
        return "dtype", f"dtype {names[0]} in eager, {names[1]} in compiled"
    if eager.device != compiled.device:
        return "device", f"on {eager.device} in eager, on {compiled.device} in compiled"
    if with_strides and eager.layout is torch.strided and not eager.is_nested and _strides_matter(eager, compiled):
        return "stride", f"strides {eager.stride()} in eager, {compiled.stride()} in compiled"
    return None


#: What is no fault, and yet worth saying.
_NOTED = (Outcome.NON_DETERMINISTIC, Outcome.ILL_CONDITIONED, Outcome.ACCUMULATED_ROUNDING)
#: Elements that are looked at to accept a result at once; what is not accepted is measured with more.
_QUICK_SAMPLE = 1 << 12


class TensorComparer:
    """Compares tensors of two runs and keeps what the witnesses say about each path."""

    def __init__(
        self,
        eager: RunRecord,
        compiled: RunRecord,
        witnesses: Witnesses,
        tolerance: tuple[float, float] | None,
        notes: list[str],
    ) -> None:
        #: Whether something differs by more than the floor and is right all the same, or could not be compared.
        self.has_excused = False
        self._noise_dtype = eager.noise_dtype
        self._eager = eager
        self._agreement: bool | None = None
        self._draws_random = eager.draws_random or compiled.draws_random
        self._witnesses = witnesses
        self._tolerance = tolerance
        self._notes = notes
        self._context_scale = 0.0
        self._part: list[Node] = []

    def start_part(self, nodes: list[Node]) -> None:
        """Set what a result of zeros is measured by: the largest scale among its siblings."""
        self._part = nodes
        self._context_scale = -1.0

    def compare(self, path: str, eager: torch.Tensor, compiled: torch.Tensor) -> list[TensorFinding]:
        """Compare two tensors of one layout."""
        left, right = measure.plain_parts(eager), measure.plain_parts(compiled)
        if left is None or right is None:
            self.excuse(f"{path}: the values of a {_kind(eager)} tensor cannot be read")
            return []
        if [suffix for suffix, _ in left] != [suffix for suffix, _ in right]:
            return [TensorFinding("structure", "the parts of the tensors differ in number")]
        findings = []
        for (suffix, ours), (_, theirs) in zip(left, right, strict=True):
            if ours.shape != theirs.shape:
                text = f"shape {tuple(ours.shape)} in eager, {tuple(theirs.shape)} in compiled"
                findings.append(TensorFinding("shape", text, suffix))
                continue
            finding = self._compare_part(_Place(path, suffix), ours, theirs)
            findings += [finding] if finding is not None else []
        return findings

    def compare_numbers(self, path: str, eager: complex, compiled: complex) -> str | None:
        """Compare two Python floats as results of the dtype that took part."""
        left, right = torch.tensor(eager), torch.tensor(compiled)
        wide = torch.complex128 if isinstance(eager, complex) else torch.float64
        finding = self._compare_part(_Place(path, "", is_number=True), left.to(wide), right.to(wide))
        return finding.text if finding is not None else None

    def excuse(self, note: str) -> None:
        """Note what is not as in eager, or not known, and is no fault."""
        self.has_excused = True
        self._notes.append(note)

    def _compare_part(self, place: _Place, eager: torch.Tensor, compiled: torch.Tensor) -> TensorFinding | None:
        if eager.numel() == 0:
            return None
        try:
            compare = self._compare_inexact if measure.is_inexact(eager) else self._compare_exact
            return compare(place, eager, compiled)
        except UNSUPPORTED as error:
            self.excuse(f"{place}: not compared, torch has no kernel for it: {error_line(error)}")
            return None

    def _compare_exact(self, place: _Place, eager: torch.Tensor, compiled: torch.Tensor) -> TensorFinding | None:
        if measure.is_equal(eager, compiled):
            return None
        open_places = eager != compiled
        total = measure.count_marked(open_places)
        for witness in self._exact_witnesses(place):
            if same_shape(witness, eager):
                open_places &= ~(witness != eager)
                if not bool(open_places.any()):
                    self.excuse(f"{place}: {total} of {eager.numel()} elements are ties that rounding decides")
                    return None
        worst = measure.first_marked(open_places)
        values = f"{eager[worst].item()} in eager, {compiled[worst].item()} in compiled"
        left = measure.count_marked(open_places)
        return TensorFinding(
            "values", f"{left} of {eager.numel()} elements differ, at {list(worst)} {values}", place.suffix
        )

    def _exact_witnesses(self, place: _Place) -> Any:
        yield self._part_of(self._witnesses.repeat(place.path), place)
        for leaf in self._witnesses.nudges(place.path, MAX_NUDGES):
            yield self._part_of(leaf, place)
        yield self._part_of(self._witnesses.reference(place.path), place)

    def _compare_inexact(self, place: _Place, eager: torch.Tensor, compiled: torch.Tensor) -> TensorFinding | None:
        if eager.dtype is compiled.dtype and measure.is_equal(eager, compiled):
            return None
        if self._tolerance is None and self._is_within_floor(eager, compiled):
            return None
        scale = measure.robust_scale(eager)
        mismatches = measure.count_class_mismatches(compiled, eager)
        if mismatches:
            finding = self._judge_nonfinite(place, eager, compiled, mismatches)
            if finding is not None:
                return finding
        difference, absolute = measure.error_figures(compiled, eager, scale)
        if absolute == 0.0:
            return None
        figures = ValueFigures(
            dtype=measure.dtype_name(eager.dtype),
            noise_dtype=self._noise_dtype,
            count=eager.numel(),
            is_number=place.is_number,
            scale=scale,
            difference=difference,
            max_abs_error=absolute,
            max_rel_error=difference.largest,
        )
        figures, verdict = self._settle(place, figures, eager, compiled)
        if verdict.outcome in _NOTED:
            self._notes.append(f"{place}: {verdict.outcome.value}: {verdict.text}")
        self.has_excused = self.has_excused or verdict.is_excused
        if not verdict.is_fault:
            return None
        if self._tolerance is None and self._is_tie(place, figures, eager, compiled):
            return None
        figures = self._with_worst(figures, eager, compiled)
        text = (
            f"{figures.exceeding} of {figures.count} values differ by more than rounding explains, worst at "
            f"{list(figures.worst_index)}: {figures.worst_eager:.9g} in eager, {figures.worst_compiled:.9g} in "
            f"compiled; {verdict.text} (yardstick: {verdict.yardstick})"
        )
        return TensorFinding("values", text, place.suffix, figures, verdict)

    def _is_within_floor(self, eager: torch.Tensor, compiled: torch.Tensor) -> bool:
        """Say in one pass whether no element differs by more than the floor of the dtype, as nearly all results do."""
        if eager.dtype is not compiled.dtype or eager.dtype.itemsize < 2:
            return False
        floor = floor_for(measure.dtype_name(eager.dtype), self._noise_dtype)
        limit = min(floor.largest, floor.rms) * floor.eps
        scale = measure.robust_scale(eager, sample=_QUICK_SAMPLE)
        return measure.is_close(compiled, eager, limit, scale)

    def _settle(
        self, place: _Place, figures: ValueFigures, eager: torch.Tensor, compiled: torch.Tensor
    ) -> tuple[ValueFigures, Verdict]:
        """Bring in one yardstick after the other, cheap ones first, until the result counts as right."""
        if self._tolerance is not None:
            exceeding = measure.count_exceeding(compiled, eager, *self._tolerance)
            figures = msgspec.structs.replace(figures, exceeding=exceeding)
            return figures, judge(figures, self._tolerance)
        figures = msgspec.structs.replace(figures, context_scale=self._scale_of_part())
        for more in (self._with_repeat, self._with_reference, self._with_nudges):
            verdict = judge(figures, can_measure_more=True)
            if not verdict.is_fault:
                return figures, verdict
            figures = more(place, figures, eager, compiled)
        return figures, judge(figures)

    def _with_repeat(
        self, place: _Place, figures: ValueFigures, eager: torch.Tensor, compiled: torch.Tensor
    ) -> ValueFigures:
        repeated = self._part_of(self._witnesses.repeat(place.path), place)
        if not same_shape(repeated, eager):
            return figures
        return msgspec.structs.replace(figures, repeated=measure.error_figures(repeated, eager, figures.scale)[0])

    def _with_nudges(
        self, place: _Place, figures: ValueFigures, eager: torch.Tensor, compiled: torch.Tensor
    ) -> ValueFigures:
        found = []
        for leaf in self._witnesses.nudges(place.path, MEASURED_NUDGES):
            nudged = self._part_of(leaf, place)
            if same_shape(nudged, eager):
                found.append(measure.error_figures(nudged, eager, figures.scale)[0])
        if not found:
            return figures
        noise = ErrorFigures(max(f.largest for f in found), max(f.rms for f in found))
        return msgspec.structs.replace(figures, nudged=noise)

    def _with_reference(
        self, place: _Place, figures: ValueFigures, eager: torch.Tensor, compiled: torch.Tensor
    ) -> ValueFigures:
        exact = self._part_of(self._witnesses.reference(place.path), place)
        if not same_shape(exact, eager) or eager.dtype == exact.dtype:
            return figures
        return msgspec.structs.replace(
            figures,
            has_other_draws=self._draws_random and not self._draws_agree(),
            compiled=measure.error_figures(compiled, exact, figures.scale)[0],
            eager=measure.error_figures(eager, exact, figures.scale)[0],
        )

    def _draws_agree(self) -> bool:
        """Say whether the float64 run drew eager's random numbers: then most results are near eager's."""
        if self._agreement is None:
            near = []
            for node in (node for nodes in self._eager.parts().values() for node in nodes):
                exact = self._part_of(self._witnesses.reference(node.path), _Place(node.path, ""))
                eager = self._part_of(node.value, _Place(node.path, ""))
                if not same_shape(exact, eager) or not measure.is_inexact(eager) or eager.numel() == 0:
                    continue
                floor = floor_for(measure.dtype_name(eager.dtype), self._noise_dtype)
                error, _ = measure.error_figures(eager, exact, measure.robust_scale(eager))
                near.append(error.rms <= max(STRANGE_AT_ALL, OTHER_DRAWS_TIMES * floor.eps))
            self._agreement = 2 * sum(near) > len(near)
        return self._agreement

    def _judge_nonfinite(
        self, place: _Place, eager: torch.Tensor, compiled: torch.Tensor, mismatches: int
    ) -> TensorFinding | None:
        """Let pass what eager is not sure of itself, and an overflow that only eager has."""
        open_places = measure.mark_class_mismatches(eager, compiled)
        exact = self._part_of(self._witnesses.reference(place.path), place)
        if same_shape(exact, eager):
            # fused kernels keep a wider dtype in between, so compiled may stay finite where eager overflows
            open_places &= measure.mark_class_mismatches(compiled, exact)
        for witness in [self._witnesses.repeat(place.path), *self._witnesses.nudges(place.path, MEASURED_NUDGES)]:
            other = self._part_of(witness, place)
            if same_shape(other, eager):
                open_places &= measure.mark_class_mismatches(other, eager).logical_not_()
        if not bool(open_places.any()):
            self.excuse(f"{place}: {mismatches} elements overflow in one run only; rounding decides about them")
            return None
        worst = measure.first_marked(open_places)
        text = (
            f"{measure.count_marked(open_places)} of {eager.numel()} elements differ in being finite, at {list(worst)} "
            f"{eager[worst].item()} in eager, {compiled[worst].item()} in compiled"
        )
        return TensorFinding("nonfinite", text, place.suffix)

    def _is_tie(self, place: _Place, figures: ValueFigures, eager: torch.Tensor, compiled: torch.Tensor) -> bool:
        """Say whether each value that is off also jumps when the inputs move by one ulp, as after a flipped choice."""
        open_places = self._off(figures, eager, compiled)
        total = measure.count_marked(open_places)
        if total == 0:
            return False  # too many small errors, none of which stands out
        for leaf in self._witnesses.nudges(place.path, MAX_NUDGES):
            nudged = self._part_of(leaf, place)
            if same_shape(nudged, eager):
                open_places &= ~self._off(figures, eager, nudged)
                if not bool(open_places.any()):
                    self.excuse(f"{place}: {total} of {eager.numel()} values hang on a choice between equals")
                    return True
        return False

    def _off(self, figures: ValueFigures, eager: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        floor = floor_for(figures.dtype, figures.noise_dtype)
        noise = figures.eager.largest if figures.eager is not None else 0.0
        limit = floor.limit.largest + 3.0 * noise
        return measure.beyond(other, eager, figures.scale, limit)

    def _with_worst(self, figures: ValueFigures, eager: torch.Tensor, compiled: torch.Tensor) -> ValueFigures:
        place = measure.worst_position(compiled, eager, figures.scale)
        exceeding = figures.exceeding
        if self._tolerance is None:
            floor = floor_for(figures.dtype, figures.noise_dtype)
            exceeding = int(measure.beyond(compiled, eager, figures.scale, floor.limit.rms).sum())
        worst_eager, worst_compiled = eager[place].item(), compiled[place].item()
        return msgspec.structs.replace(
            figures,
            exceeding=exceeding,
            worst_index=place,
            worst_eager=worst_eager if isinstance(worst_eager, float) else abs(worst_eager),
            worst_compiled=worst_compiled if isinstance(worst_compiled, float) else abs(worst_compiled),
        )

    def _scale_of_part(self) -> float:
        if self._context_scale < 0.0:
            self._context_scale = 0.0
            for node in self._part:
                parts = measure.plain_parts(node.value) if is_a(node.value, torch.Tensor) else None
                for tensor in (part for _, part in parts or [] if measure.is_inexact(part)):
                    self._context_scale = max(self._context_scale, measure.robust_scale(tensor))
        return self._context_scale

    def _part_of(self, leaf: Any, place: _Place) -> Any:
        if isinstance(leaf, (float, complex)):
            return torch.tensor(leaf, dtype=torch.complex128 if isinstance(leaf, complex) else torch.float64)
        if not isinstance(leaf, torch.Tensor):
            return None
        return dict(measure.plain_parts(leaf) or []).get(place.suffix)


@dataclass(frozen=True)
class _Place:
    path: str
    suffix: str
    is_number: bool = False

    def __str__(self) -> str:
        return self.path + self.suffix


def _kind(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "nested"
    base = (
        ""
        if isinstance(tensor, (torch.nn.Parameter, torch.nn.Buffer)) or type(tensor) is torch.Tensor
        else (f"{type(tensor).__name__} ")
    )
    return base + str(tensor.layout).removeprefix("torch.")


def _strides_matter(eager: torch.Tensor, compiled: torch.Tensor) -> bool:
    """Say whether eager is dense and compiled lays its elements out another way.

    Dimensions of size 1 and empty tensors have strides without meaning; a view with gaps may come back dense.
    On a GPU Inductor pads rows, so that kernels find them aligned; seen with torch 2.11 for an `nn.Linear` with three
    outputs, whose result has strides (4, 1).
    """
    if eager.numel() == 0:
        return False
    ours = [stride for size, stride in zip(eager.shape, eager.stride(), strict=True) if size > 1]
    theirs = [stride for size, stride in zip(compiled.shape, compiled.stride(), strict=True) if size > 1]
    if compiled.is_cuda and is_padded(ours, theirs):
        return False
    return ours != theirs and is_dense(eager)


def is_padded(dense: list[int], other: list[int]) -> bool:
    """Say whether `other` strides keep the order of `dense` ones and only leave gaps between rows."""
    order = sorted(range(len(dense)), key=lambda dim: dense[dim])
    steps = [other[dim] for dim in order]
    return (
        steps == sorted(steps)
        and steps[:1] == [dense[dim] for dim in order][:1]
        and all(theirs >= ours for ours, theirs in zip(dense, other, strict=True))
    )
