"""What a divergence inside a model does to the model's output, measured in units of eager's own noise."""

from __future__ import annotations

from typing import Any

import torch

from compilebisect.core.tolerance import floor_for
from compilebisect.runtime import figures as measure
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.record import RunRecord
from compilebisect.runtime.witness import same_shape

_OUTPUT = "output['output']"


def impact_of(oracle: Oracle, compiled: RunRecord, *, train: bool) -> dict[str, Any]:
    """Compare what leaves the whole model, as plain data for the report.

    Args:
        oracle: of an `InPlace` model.
        compiled: a run with something compiled inside.
        train: whether there are gradients to compare as well.
    """
    impact = _Impact(oracle, compiled)
    found = impact.of(_OUTPUT)
    if train:
        found["gradients"] = impact.of("grad.")
    oracle.snapshot.restore()
    return found


class _Impact:
    def __init__(self, oracle: Oracle, compiled: RunRecord) -> None:
        self._oracle = oracle
        self._eager = _leaves(oracle.eager())
        self._compiled = _leaves(compiled)
        self._dtype = oracle.eager().noise_dtype
        self._noise: tuple[str, dict[str, torch.Tensor]] | None = None

    def of(self, prefix: str) -> dict[str, Any]:
        """Return the figures of the result that is farthest off among those whose paths begin with `prefix`."""
        ours = {path: tensor for path, tensor in self._eager.items() if path.startswith(prefix)}
        theirs = {path: tensor for path, tensor in self._compiled.items() if path.startswith(prefix)}
        if ours.keys() != theirs.keys() or not all(same_shape(ours[path], theirs[path]) for path in ours):
            return {"text": "other tensors or shapes than in eager"}
        found = [self._figures(path, ours[path], theirs[path]) for path in ours if _differs(ours[path], theirs[path])]
        if not found:
            is_constant = bool(ours) and all(measure.is_constant(tensor) for tensor in ours.values())
            return {"text": f"none: {'constant' if is_constant else 'unchanged'}"}
        return max(found, key=lambda item: item["times_eager_noise"])

    def _figures(self, path: str, eager: torch.Tensor, compiled: torch.Tensor) -> dict[str, Any]:
        where = path.removeprefix(_OUTPUT) or "output"
        if not measure.is_inexact(eager) or compiled.dtype != eager.dtype:
            count = int((eager != compiled).sum())
            text = f"{count} of {eager.numel()} elements differ"
            return {"where": where, "text": text, "times_eager_noise": float("inf")}
        scale = measure.robust_scale(eager)
        difference, largest = measure.error_figures(compiled, eager, scale)
        name, witness = self._eager_noise()
        noise = 0.0
        if path in witness and same_shape(witness[path], eager):
            noise = measure.error_figures(eager, witness[path], scale)[0].rms
        floor = floor_for(measure.dtype_name(eager.dtype), self._dtype).eps
        if noise < floor / 8:  # an eager result that is exact by chance is no measure
            noise, name = floor, "eps of the dtype"
        times = difference.rms / noise
        if measure.count_class_mismatches(compiled, eager):
            times = float("inf")
        within = "; no more than rounding does" if times <= 4 else ""
        return {
            "where": where,
            "max_abs_error": largest,
            "max_rel_error": difference.largest,
            "rms_rel_error": difference.rms,
            "eager_noise": noise,
            "yardstick": name,
            "times_eager_noise": times,
            "text": f"relative error {difference.largest:.2g} at most, {times:.3g} times eager's own noise{within}",
        }

    def _eager_noise(self) -> tuple[str, dict[str, torch.Tensor]]:
        if self._noise is None:
            name, record = "float64 reference", self._oracle.reference()
            if record is None:
                name, record = "inputs moved by one ulp", self._oracle.nudged(0)
            self._noise = name, _leaves(record) if record is not None else {}
        return self._noise


def _differs(eager: torch.Tensor, compiled: torch.Tensor) -> bool:
    if eager.dtype != compiled.dtype:
        return True
    if not measure.is_inexact(eager):
        return not measure.is_equal(eager, compiled)
    return bool(measure.count_class_mismatches(compiled, eager)) or not measure.is_close(compiled, eager, 0.0, 0.0)


def _leaves(record: RunRecord) -> dict[str, torch.Tensor]:
    found = {}
    for nodes in record.parts().values():
        for node in nodes:
            if isinstance(node.value, torch.Tensor):
                for suffix, part in measure.plain_parts(node.value) or []:
                    found[node.path + suffix] = part
    return found
