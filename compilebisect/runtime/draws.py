"""Results over many seeds, for modules whose compiled code draws other random numbers than eager does.

A kernel for attention draws its dropout in an order of its own, and which kernel runs may differ between eager and
compiled code, so that no seed makes the two agree though both are right.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from compilebisect.core.other_draws import DrawFigures
from compilebisect.runtime.record import RunRecord

# Elements of a tensor that are looked at, evenly spread over it.
_MOST_ELEMENTS = 1 << 20


class DrawStatistics:
    """Sums over seeds of the results at some paths of a run."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = paths
        self._sums: dict[str, _Sums] = {}

    def add(self, eager: RunRecord, compiled: RunRecord) -> None:
        """Take the results of one seed.

        Raises:
            ValueError: a path is missing, or holds something else than tensors of one shape.
        """
        ours, theirs = dict(_tensors(eager)), dict(_tensors(compiled))
        for path in self._paths:
            if path not in ours or path not in theirs or ours[path].shape != theirs[path].shape:
                raise ValueError(f"{path} is not there for each seed")
            self._sums.setdefault(path, _Sums(ours[path])).add(ours[path], theirs[path])

    def figures(self) -> dict[str, DrawFigures]:
        """Return what was seen at each path."""
        return {path: sums.figures() for path, sums in self._sums.items()}


def _tensors(record: RunRecord) -> Iterator[tuple[str, torch.Tensor]]:
    for nodes in record.parts().values():
        for node in nodes:
            if isinstance(node.value, torch.Tensor):
                yield node.path, node.value


class _Sums:
    """Sums of values and of their squares: eager's, compiled's, and those of the difference."""

    def __init__(self, example: torch.Tensor) -> None:
        self._eps = torch.finfo(example.dtype).eps if example.dtype.is_floating_point else 0.0
        count = min(example.numel(), _MOST_ELEMENTS)
        self._step = max(example.numel() // max(count, 1), 1)
        self._count = 0
        self._sums = torch.zeros(6, len(self._sample(example)), dtype=torch.float64, device=example.device)

    def _sample(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().reshape(-1)[:: self._step].to(torch.float64)

    def add(self, eager: torch.Tensor, compiled: torch.Tensor) -> None:
        ours, theirs = self._sample(eager), self._sample(compiled)
        values = torch.stack([ours, theirs, theirs - ours])
        self._sums += torch.cat([values, values * values])
        self._count += 1

    def figures(self) -> DrawFigures:
        number = self._count
        means = self._sums[:3] / number
        variances = ((self._sums[3:] - number * means * means) / (number - 1)).clamp_min(0.0)
        # what rounding alone moves, so that results which hang on no draw do not divide by zero
        rounding = (self._eps**2 * (self._sums[3] / number).mean()).clamp_min(1e-300)
        t2 = number * means[2] ** 2 / (variances[2] + rounding)
        worst = int(t2.argmax())
        spread = (variances[1].mean() + rounding) / (variances[0].mean() + rounding)
        return DrawFigures(t2.numel(), float(t2.mean()), float(t2[worst]), worst, float(spread))
