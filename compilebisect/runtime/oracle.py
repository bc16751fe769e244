"""The oracle: does the compiled module do what the eager one does? Ties runs, witnesses and comparison together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from compilebisect.attempt import attempt
from compilebisect.core.call import CallContext
from compilebisect.core.other_draws import SEEDS, DrawFigures, speaks_against
from compilebisect.error_text import error_line
from compilebisect.runtime.compare import Comparison, compare_runs
from compilebisect.runtime.cotangents import Cotangents
from compilebisect.runtime.draws import DrawStatistics
from compilebisect.runtime.loss import Loss
from compilebisect.runtime.nudge import can_nudge, nudged_inputs, nudged_parameters
from compilebisect.runtime.record import RunRecord
from compilebisect.runtime.reference import inputs_to_float64, to_float64
from compilebisect.runtime.rerun import run_once
from compilebisect.runtime.state import StateSnapshot
from compilebisect.runtime.stopwatch import Stopwatch
from compilebisect.runtime.torch_internals import OperatorCounter
from compilebisect.runtime.values import tensors_in

#: Seeds that are tried before values that differ with the first one become a finding.
FURTHER_SEEDS = 2
#: How a note begins about values that differ with the first seed alone.
WITHDRAWN = "no finding, since"
_MADE_UP = "the model's loss sends nothing to these outputs, or zeros, or no finite values; made-up gradients were used"


class Oracle:
    """Eager runs of one module on one golden call, made when they are needed, and the verdict on a compiled run.

    With `earlier` it is about the call after that many equal ones, each of which finds the state that the last one
    left. What has been compiled is made anew by `renew` for each such row.

    Attributes:
        notes: why a witness could not be had.
    """

    def __init__(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: CallContext,
        *,
        seed: int = 0,
        train: Cotangents | Loss | None = None,
        tolerance: tuple[float, float] | None = None,
        snapshot: StateSnapshot | None = None,
        earlier: int = 0,
        renew: Callable[[], Callable[..., Any]] | None = None,
    ) -> None:
        self._module = module
        self._args, self._kwargs = args, kwargs
        self._context, self._seed, self._train, self._tolerance = context, seed, train, tolerance
        self.snapshot = snapshot or StateSnapshot(module)
        self._earlier, self._renew = earlier, renew
        self.notes = [
            f"{path} is neither put back nor compared: {why}" for path, why in self.snapshot.unwatched.items()
        ]
        self._eager: RunRecord | None = None

    @property
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the golden call, which runs get copies of."""
        return self._args, self._kwargs

    @property
    def module(self) -> nn.Module:
        """The module in eager mode."""
        return self._module

    def agrees(self, eager: RunRecord, compiled: RunRecord) -> bool:
        """Say whether two runs are equal without asking witnesses, which cost runs."""
        return compare_runs(eager, compiled, tolerance=self._tolerance).is_equal

    def has_nested_inputs(self) -> bool:
        """Say whether a strided nested tensor is among the inputs: eager's fast paths make them, Dynamo takes none."""
        tensors = tensors_in((self._args, self._kwargs))
        return any(tensor.is_nested and tensor.layout is torch.strided for _, tensor in tensors)

    def eager(self) -> RunRecord:
        """Run eager once; later calls give the same record."""
        if self._eager is None:
            self._eager = self.run(self._module)
            if self._train is not None and not self._train and self._eager.requires_grad:
                self.notes.append(_MADE_UP)
        return self._eager

    def computes(self) -> bool:
        """Say whether the module runs any operator at all, so that there is something to compile."""
        counter = OperatorCounter()

        def call(*args: Any, **kwargs: Any) -> Any:
            with counter:
                return self._module(*args, **kwargs)

        self.run(call)
        return counter.count > 0

    def run(self, module_callable: Callable[..., Any], stopwatch: Stopwatch | None = None) -> RunRecord:
        """Run the module, or what was compiled from it, from the snapshot's state on copies of the inputs."""
        if self._renew is not None and module_callable is not self._module:
            module_callable = self._renew()
        return self._run_row(module_callable, self._args, self._kwargs, stopwatch=stopwatch)

    def run_again(self, module_callable: Callable[..., Any]) -> RunRecord:
        """Run it once more on copies of the inputs, from the state that the last run left."""
        return run_once(
            module_callable,
            self._args,
            self._kwargs,
            self._context,
            seed=self._seed,
            snapshot=self.snapshot,
            restores=False,
            module=self._module,
            train=self._train,
        )

    def after(
        self, earlier: int, eager: RunRecord | None = None, renew: Callable[[], Callable[..., Any]] | None = None
    ) -> Oracle:
        """Return an oracle about the call after `earlier` equal ones.

        Args:
            earlier: how many calls come before it.
            eager: what that call gives in eager mode, where that is known.
            renew: compiles the module anew.
        """
        other = Oracle(
            self._module,
            self._args,
            self._kwargs,
            self._context,
            seed=self._seed,
            train=self._train,
            tolerance=self._tolerance,
            snapshot=self.snapshot,
            earlier=earlier,
            renew=renew,
        )
        other._eager = eager
        return other

    def _run_row(
        self,
        module_callable: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        context: CallContext | None = None,
        snapshot: StateSnapshot | None = None,
        train: Cotangents | Loss | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> RunRecord:
        for number in range(self._earlier + 1):
            record = run_once(
                module_callable,
                args,
                kwargs,
                context or self._context,
                seed=self._seed,
                snapshot=snapshot or self.snapshot,
                restores=number == 0,
                train=train or self._train,
                stopwatch=stopwatch,
            )
        return record

    def judge(self, compiled: RunRecord, module_callable: Callable[..., Any] | None = None) -> Comparison:
        """Compare a compiled run with eager; the module's state is put back afterwards.

        Args:
            compiled: the run to judge.
            module_callable: what ran; with it, values that differ have to do so with another seed too.
        """
        comparison = self._compare(compiled)
        if module_callable is not None and self._tolerance is None and _is_about_values(comparison):
            comparison = self._confirmed(comparison, compiled, module_callable)
        self.snapshot.restore()
        return replace(comparison, notes=[*comparison.notes, *dict.fromkeys(self.notes)])

    def _confirmed(
        self, comparison: Comparison, compiled: RunRecord, module_callable: Callable[..., Any]
    ) -> Comparison:
        """Drop differences that no other seed shows, and those that other random numbers explain."""
        for number in range(1, FURTHER_SEEDS + 1):
            other = self._with_seed(self._seed + number)
            again = attempt(other._shows_nothing, module_callable)
            if again.error is not None:
                return comparison  # whatever fails with another seed, the first one told enough
            if not again.value:
                break
        else:
            return _without_differences(comparison, f"{WITHDRAWN} {FURTHER_SEEDS} other seeds do not show it")
        if compiled.draws_end == self.eager().draws_end or not self._are_other_draws(comparison, module_callable):
            return comparison
        why = f"it draws other random numbers than eager does; over {SEEDS} seeds, mean and spread are the same"
        return _without_differences(comparison, f"{WITHDRAWN} {why}")

    def _are_other_draws(self, comparison: Comparison, module_callable: Callable[..., Any]) -> bool:
        """Say whether results differ by chance alone."""
        paths = frozenset(difference.path for difference in comparison.differences)
        batches: list[dict[str, DrawFigures]] = []
        for first in (FURTHER_SEEDS + 1, FURTHER_SEEDS + 1 + SEEDS):
            batch = attempt(self._draws, paths, module_callable, first)
            if batch.error is not None:
                return False  # whatever fails with another seed, the first one told enough
            batches.append(batch.value)
            against = [path for path in paths if speaks_against(*(batch[path] for batch in batches))]
            if not against:
                return True
        return False

    def _draws(self, paths: frozenset[str], module_callable: Callable[..., Any], first: int) -> dict[str, DrawFigures]:
        statistics = DrawStatistics(paths)
        for number in range(first, first + SEEDS):
            other = self._with_seed(self._seed + number)
            statistics.add(other.run(self._module), other.run(module_callable))
        return statistics.figures()

    def _shows_nothing(self, module_callable: Callable[..., Any]) -> bool:
        return self._compare(self.run(module_callable)).is_equal

    def _with_seed(self, seed: int) -> Oracle:
        return Oracle(
            self._module,
            self._args,
            self._kwargs,
            self._context,
            seed=seed,
            train=self._train,
            snapshot=self.snapshot,
            earlier=self._earlier,
            renew=self._renew,
        )

    def _compare(self, compiled: RunRecord) -> Comparison:
        eager = self.eager()
        return compare_runs(
            eager,
            compiled,
            repeat=lambda: self._witness("repeated", lambda: self.run(self._module)),
            nudged=self.nudged,
            reference=self.reference,
            tolerance=self._tolerance,
        )

    def check(self, module_callable: Callable[..., Any]) -> Comparison:
        """Run what was compiled and compare it with eager."""
        self.eager()
        return self.judge(self.run(module_callable), module_callable)

    def nudged(self, number: int) -> RunRecord | None:
        """Run eager on inputs one ulp away; None where that fails."""
        return self._witness("nudged", lambda: self._run_nudged(number))

    def _run_nudged(self, number: int) -> RunRecord:
        if can_nudge(self._args, self._kwargs):
            args, kwargs = nudged_inputs(self._args, self._kwargs, number=number, seed=self._seed)
            return self._run_row(self._module, args, kwargs)
        self.snapshot.restore()
        with nudged_parameters(self._module, number=number, seed=self._seed):
            for _ in range(self._earlier + 1):
                record = run_once(
                    self._module,
                    self._args,
                    self._kwargs,
                    self._context,
                    seed=self._seed,
                    module=self._module,
                    train=self._train,
                )
            return record

    def reference(self) -> RunRecord | None:
        """Run eager in float64; None where that is not possible."""
        self.snapshot.restore()
        twin = to_float64(self._module)
        if twin.module is None:
            self.notes.append(f"no float64 reference: {twin.reason}")
            return None
        wide_module = twin.module
        train = self._train
        if train is not None and not callable(train):
            train = {path: cotangent.to(torch.float64) for path, cotangent in train.items()}

        def call(*args: Any, **kwargs: Any) -> Any:
            # Only the module itself may run widened: what looks at its tensors around the call would copy them all.
            with twin.running():
                return wide_module(*args, **kwargs)

        def run() -> RunRecord:
            args, kwargs = inputs_to_float64(self._args, self._kwargs)
            context = CallContext(self._context.grad_mode, (), self._context.training)
            return self._run_row(call, args, kwargs, context=context, snapshot=StateSnapshot(wide_module), train=train)

        return self._witness("float64", run)

    def _witness(self, name: str, run: Callable[[], RunRecord]) -> RunRecord | None:
        """A witness that fails is no fault of the compiled code; why it failed becomes a note."""
        ran = attempt(run)
        if ran.error is not None:  # user code on inputs it was not made for
            self.notes.append(f"no {name} run: {error_line(ran.error)}")
            return None
        return ran.value


def _without_differences(comparison: Comparison, why: str) -> Comparison:
    text = f"{why}: {comparison.differences[0].text}"
    return replace(comparison, differences=[], notes=[*comparison.notes, text], has_excused=True)


def _is_about_values(comparison: Comparison) -> bool:
    """Say whether something differs, and nothing but values that were measured."""
    return bool(comparison.differences) and all(item.verdict is not None for item in comparison.differences)
