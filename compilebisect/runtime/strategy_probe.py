"""Measures one way of compiling the whole model for inputs of several sizes.

One of the places where any exception is caught: a strategy that fails is a result.
"""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from compilebisect.attempt import attempt
from compilebisect.core.buckets import bucket_for, named_dims, padded_sizes, size_numbers
from compilebisect.core.input_spec import InputSpec, parse_spec
from compilebisect.core.messages import StrategyOrder
from compilebisect.core.strategies import Mark, Strategy, StrategyResult, StrategyRun
from compilebisect.core.strategy_lines import code_lines
from compilebisect.error_text import error_line, error_text
from compilebisect.runtime import torch_internals
from compilebisect.runtime.call_clock import CallClock, without_gc
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.padding import Padding
from compilebisect.runtime.rerun import GENERATED
from compilebisect.runtime.session import Session
from compilebisect.runtime.state import StateSnapshot
from compilebisect.runtime.values import flatten, tensors_in

_LEAST_RUNS = 5
_MOST_RUNS = 31
# Seconds for the runs of all variants once they are compiled, the least number of runs aside.
_BUDGET_S = 6.0
_DYNAMIC: dict[Strategy, bool | None] = {Strategy.STATIC: False, Strategy.BUCKETS: False, Strategy.DYNAMIC: True}
_LONGEST_ERROR = 600

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def measure_strategy(session: Session, order: StrategyOrder, on_phase: Callable[[str], None]) -> StrategyResult:
    """Compile the model in one way, feed it all variants in order, and time it; caches of compiled code are off."""
    settings = session.settings
    spec = parse_spec(settings.spec) if settings.inputs is None else InputSpec()
    variants = [session.inputs(number) for number in range(order.variants)]
    marks = _marks(spec, variants)
    result = StrategyResult(
        strategy=order.strategy,
        not_candidate=_not_candidate(order, spec, variants),
        lines=code_lines(
            order.strategy, marks, order.buckets, named_dims(spec), parameters=_parameters(session.model, variants[0])
        ),
    )
    torch_internals.disable_caches()
    _warm_up_compiler(session.device)
    torch.compiler.reset()
    torch_internals.forget_compile_metrics()
    measured = _Measured(session, order, spec, marks, on_phase)
    with torch_internals.watch_compile(on_phase=on_phase) as watcher:
        error = measured.run(variants)
    guards, shape_guards = torch_internals.guard_counts()
    runs = measured.runs()
    return msgspec.structs.replace(
        result,
        compiles=watcher.frames_compiled,
        graphs=watcher.graph_count,
        guards=guards,
        shape_guards=shape_guards,
        compile_s=sum(max(run.first_s - run.run_s, 0.0) for run in runs if run.variant in measured.compiled),
        run_s=sum(run.run_s for run in runs),
        total_s=sum(run.first_s for run in runs),
        runs=runs,
        cuda_graphs=_cuda_graphs(order, variants, spec, session.device) if runs else "",
        error_type="" if error is None else _error_type(error),
        error="" if error is None else _short(error, measured.failed_at),
        notes=measured.notes,
    )


class _Measured:
    """The runs of one strategy: a first call of each variant in order, then further ones in turns."""

    def __init__(
        self,
        session: Session,
        order: StrategyOrder,
        spec: InputSpec,
        marks: Sequence[Mark],
        on_phase: Callable[[str], None],
    ) -> None:
        self._session, self._order, self._spec, self._marks = session, order, spec, marks
        self._on_phase = on_phase
        self._first_s: list[float] = []
        self._later_s: list[list[float]] = []
        self._padded: list[dict[str, int]] = []
        self.compiled: set[int] = set()
        self.failed_at = ""
        self.notes: tuple[str, ...] = ()

    def run(self, variants: Sequence[Arguments]) -> BaseException | None:
        """Carry them out; returns what ended them."""
        session, settings = self._session, self._session.settings
        model = session.model
        dynamic = _DYNAMIC.get(self._order.strategy)
        options: dict[str, Any] = {"backend": settings.backend, "dynamic": dynamic}
        if settings.mode is not None:
            options["mode"] = settings.mode
        snapshot = StateSnapshot(model)
        clocks: list[tuple[CallClock, Callable[..., Any]]] = []

        def run() -> None:
            compiled = torch.compile(model, **options)
            for number, (args, kwargs) in enumerate(variants):
                self.failed_at = f"variant {number + 1}"
                train = GENERATED if settings.train else None
                oracle = Oracle(
                    model, args, kwargs, session.context(), seed=settings.seed, train=train, snapshot=snapshot
                )
                clock = CallClock(model, oracle, train=settings.train)
                function = self._function(compiled, number)
                before = torch_internals.compile_count()
                self._first_s.append(clock.first(function))
                if torch_internals.compile_count() > before:
                    self.compiled.add(number + 1)
                clocks.append((clock, function))
            self._on_phase("running")
            self._time(clocks)

        error = attempt(run).error  # that a strategy fails is what is to be known
        snapshot.restore()
        return error

    def _time(self, clocks: Sequence[tuple[CallClock, Callable[..., Any]]]) -> None:
        for clock, function in clocks:
            clock.warm_up(function, 2)
            clock.measure_row(function)
        before = torch_internals.compile_count()
        self._later_s = [[] for _ in clocks]
        until = time.perf_counter() + _BUDGET_S
        with without_gc():
            for turn in range(_MOST_RUNS):
                if turn >= _LEAST_RUNS and time.perf_counter() > until:
                    break
                for (clock, function), seconds in zip(clocks, self._later_s, strict=True):
                    seconds.append(clock.seconds(function))
        if torch_internals.compile_count() > before:
            self.notes = ("it goes on compiling when the same variants come again",)

    def _function(self, compiled: Callable[..., Any], number: int) -> Callable[..., Any]:
        """Return what a user calls: the compiled model, with what has to be done before each call."""
        sizes = self._spec.dims_of_variant(number)
        self._padded.append({})
        if self._order.strategy is Strategy.MARK_DYNAMIC:

            def marked(*args: Any, **kwargs: Any) -> Any:
                _mark(self._marks, args, kwargs)
                return compiled(*args, **kwargs)

            return marked
        if self._order.strategy is Strategy.BUCKETS:
            self._padded[-1] = padded_sizes(sizes, self._order.buckets)
            targets = {name: bucket_for(sizes[name], lengths) for name, lengths in self._order.buckets.items()}
            padding = Padding(targets, named_dims(self._spec), size_numbers(self._spec))

            def padded(*args: Any, **kwargs: Any) -> Any:
                padded_args, padded_kwargs = padding.apply(args, kwargs)
                return compiled(*padded_args, **padded_kwargs)

            return padded
        return compiled

    def runs(self) -> tuple[StrategyRun, ...]:
        """Return what was measured of each variant; nothing where some of them failed."""
        if not self._later_s or not all(self._later_s):
            return ()
        measured = zip(self._first_s, self._later_s, self._padded, strict=True)
        return tuple(
            StrategyRun(
                variant=number, first_s=round(first, 6), run_s=round(statistics.median(later), 9), padded_to=padded
            )
            for number, (first, later, padded) in enumerate(measured, start=1)
        )


def _mark(marks: Sequence[Mark], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tensors = dict([*tensors_in(args, "args"), *tensors_in(kwargs, "kwargs")])
    for mark in marks:
        if mark.path in tensors:
            torch_internals.mark_dynamic(tensors[mark.path], mark.dim, low=mark.min, high=mark.max)


def _marks(spec: InputSpec, variants: Sequence[Arguments]) -> list[Mark]:
    """List the dims of input tensors that vary, or of which the spec says that they are dynamic."""
    names = named_dims(spec)
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for args, kwargs in variants:
        for path, leaf in [*flatten(args, "args"), *flatten(kwargs, "kwargs")]:
            if isinstance(leaf, torch.Tensor):
                shapes.setdefault(path, []).append(tuple(leaf.shape))
    marks = []
    for path, seen in shapes.items():
        if len({len(shape) for shape in seen}) > 1:
            continue
        for dim, sizes in enumerate(zip(*seen, strict=True)):
            name = names.get(path, {}).get(dim, "")
            options = spec.dim_options.get(name)
            wanted = None if options is None else options.dynamic
            if wanted or (wanted is None and len(set(sizes)) > 1):
                low, high = (None, None) if options is None else (options.min, options.max)
                marks.append(Mark(path=path, dim=dim, name=name, sizes=tuple(sizes), min=low, max=high))
    return marks


def _parameters(model: nn.Module, example: Arguments) -> dict[str, str]:
    """Return what the user calls the arguments, by the beginning of their paths."""
    args, kwargs = example
    named = {f"kwargs[{name!r}]": name for name in kwargs}
    try:
        bound = inspect.signature(model.forward).bind_partial(*args)
    except (TypeError, ValueError):
        return named
    positional = [name for name, value in bound.arguments.items() if any(value is arg for arg in args)]
    return {**named, **{f"args[{index}]": name for index, name in enumerate(positional)}}


def _not_candidate(order: StrategyOrder, spec: InputSpec, variants: Sequence[Arguments]) -> str:
    if order.strategy is not Strategy.STATIC:
        return ""
    dynamic = [name for name, options in spec.dim_options.items() if options.dynamic]
    if dynamic:
        return f"the spec says that {', '.join(dynamic)} takes other sizes too"
    limit = torch_internals.user_recompile_limit()
    if len(variants) > limit:
        return f"{len(variants)} sizes are more than Dynamo compiles (recompile_limit is {limit})"
    return ""


def _cuda_graphs(order: StrategyOrder, variants: Sequence[Arguments], spec: InputSpec, device: torch.device) -> str:
    """Say what CUDA graphs, which replay fixed sizes, can do with it."""
    skips = torch_internals.cuda_graph_skips() if device.type == "cuda" else 0
    if skips:
        return f"no: torch skipped them {skips} times"
    if order.strategy is Strategy.STATIC:
        return f"yes, one for each of {len(variants)} sizes"
    if order.strategy is Strategy.BUCKETS:
        met = {
            tuple(bucket_for(spec.dims_of_variant(number)[name], lengths) for name, lengths in order.buckets.items())
            for number in range(len(variants))
        }
        return f"yes, one for each of {len(met)} buckets"
    return "recorded anew for each size that comes"


def _error_type(error: BaseException) -> str:
    """Return the name by which a user knows an error, looking through wrappers."""
    names: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(names) < 10:
        names.append(type(seen).__name__)
        seen = seen.__cause__ or seen.__context__
    text = error_text(error)
    if "ConstraintViolationError" in names or "Constraints violated" in text:
        return "ConstraintViolationError"
    if any("DataDependent" in name for name in names) or "data-dependent" in text.lower():
        return "data-dependent"
    return names[0]


def _short(error: BaseException, where: str) -> str:
    lines = [line.strip() for line in error_text(error).splitlines() if line.strip()]
    text = " ".join(lines) if lines else error_line(error)
    return f"{where}: {text[:_LONGEST_ERROR]}{'...' if len(text) > _LONGEST_ERROR else ''}"


def _warm_up_compiler(device: torch.device) -> None:
    """Have what only the first compile of a process costs (headers, a look at the processor) not fall on a strategy."""

    def next_to_nothing(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with torch.no_grad():
        torch.compile(next_to_nothing)(torch.ones(8, device=device))
