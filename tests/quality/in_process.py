"""The whole walk over one model in this process: quick enough for hundreds of models, and nothing of it is a double."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compilebisect.core.messages import CaptureOrder, ProbeOrder
from compilebisect.core.module_tree import OPTIMIZER_PATH, GoldenCall, ModuleTree
from compilebisect.core.outcome import Kind, Observation
from compilebisect.core.unit_result import Probe
from compilebisect.core.units import units_of
from compilebisect.core.walk import Walk
from compilebisect.runtime.in_place_probe import probe_in_place
from compilebisect.runtime.optimizer_probe import probe_optimizer
from compilebisect.runtime.probe import probe
from compilebisect.runtime.session import Session
from compilebisect.settings import Settings


class Bench:
    """One model with its golden calls, over which the walk may go many times."""

    def __init__(
        self,
        target: str,
        spec: Any,
        *,
        backend: str,
        folder: Path | None = None,
        device: str = "cpu",
        looks_for_recompiles: bool = False,
        **options: Any,
    ) -> None:
        self.looks_for_recompiles = looks_for_recompiles
        self.settings = Settings(target=target, spec=spec, backend=backend, device=device, **options)
        self.session = Session(self.settings)
        self.tree = ModuleTree(self.session.describe().modules)
        self._folder = folder or Path(tempfile.mkdtemp())
        wanted = {path: self.tree[path].golden_indices for path in self.tree}
        failures = self.session.capture(CaptureOrder(str(self._folder), wanted))
        assert not failures
        self.path_of = {self.tree[path].class_name: path for path in self.tree}

    def walk(self, observe: Callable[[Probe], Observation] | None = None) -> Walk:
        """Go over all modules; `observe` stands between the walk and this bench."""
        units = units_of(self.tree, with_methods=self.settings.context)
        walk = Walk(self.tree, units, backend="eager", all_modules=True, context=self.settings.context)
        while (wanted := walk.next_probe()) is not None:
            walk.record(wanted, (observe or self.observe)(wanted))
        assert walk.is_finished()
        return walk

    def observe(self, wanted: Probe, *, tolerance: tuple[float, float] | None = None) -> Observation:
        """Carry out one probe."""
        if self.tree[wanted.path].uncaptured and not wanted.in_place:
            return Observation(untested=self.tree[wanted.path].uncaptured)
        order = ProbeOrder(
            path=wanted.path,
            folder=str(self._folder),
            calls=self._calls(wanted.path, wanted),
            instances=tuple((path, calls) for path in wanted.instances if (calls := self._calls(path, wanted))),
            backend=self.settings.backend,
            fenced=wanted.fenced,
            train=self.settings.train,
            seed=self.settings.seed,
            tolerance=tolerance,
            compares_rows=True,
            looks_for_recompiles=self.looks_for_recompiles or wanted.path == OPTIMIZER_PATH,
            tells_of_below=wanted.purpose == "recompiles",
            compiles_only=wanted.compiles_only,
            in_place=wanted.in_place,
            methods={path: self.tree[path].other_methods for path in self.tree} if self.settings.context else {},
        )
        if wanted.path == OPTIMIZER_PATH:
            return probe_optimizer(self.session.optimizer, order, on_phase=lambda phase: None)[0]
        if wanted.in_place:
            return probe_in_place(self.session, order, on_phase=lambda phase: None)[0]
        seen, _ = probe(self.session.model, order, on_phase=lambda phase: None, root_inputs=self.session.inputs)
        return seen

    def _calls(self, path: str, wanted: Probe) -> tuple[GoldenCall, ...]:
        return self.tree[path].calls if wanted.in_place else self.tree[path].golden_calls


def introduced(walk: Walk) -> dict[str, list[Kind]]:
    """Give the kinds of fault that each module introduces, by path."""
    found: dict[str, list[Kind]] = {}
    for unit in walk.units:
        for item in walk.results[unit.id].introduced:
            # a module that shows it in several of its calls is listed once for each
            for path in dict.fromkeys(item.instances or ((item.path,) if item.path != unit.path else unit.paths)):
                found.setdefault(path, []).append(item.fault.kind)
    return found
