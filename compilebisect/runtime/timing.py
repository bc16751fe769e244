"""Times a module on its golden calls: eager mode and compiled code in turns, in one process.

What the machine does meanwhile (heat, other programs) then falls on both alike. Whatever a compiled run raises is a
note here, since the walk has judged it already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from compilebisect.attempt import attempt
from compilebisect.core.call import CallContext
from compilebisect.core.messages import ProbeOrder, TimingOrder
from compilebisect.core.module_tree import GoldenCall
from compilebisect.core.timing import CallTiming, UnitTiming
from compilebisect.error_text import error_line, error_text
from compilebisect.runtime import torch_internals
from compilebisect.runtime.call_clock import CallClock, without_gc
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.probe import RootInputs, compile_options, fences, oracle_for
from compilebisect.runtime.rerun import GENERATED
from compilebisect.runtime.state import StateSnapshot

# The first call compiles, the second may do so again for a size that is now dynamic, the third records a CUDA graph.
_WARM_UPS = 4
# So few still give an interval for the median; more than so many tell no more.
_LEAST_RUNS = 7
_MOST_RUNS = 41
# Seconds for the runs of all calls of a module, the least number of runs aside.
_BUDGET_S = 4.0


def time_module(
    model: nn.Module, order: TimingOrder, *, on_phase: Callable[[str], None], root_inputs: RootInputs | None = None
) -> tuple[UnitTiming, bool]:
    """Time a module and return its seconds, and whether the process can go on with others after it."""
    probe = order.probe
    module = model.get_submodule(probe.path)
    pristine = StateSnapshot(module)
    calls: list[CallTiming] = []
    graphs, entering_s = 0, 0.0
    budget_s = _BUDGET_S / max(len(probe.calls), 1)
    for call in probe.calls:
        torch.compiler.reset()

        def timed(call: GoldenCall = call) -> tuple[CallTiming, int, float]:
            with fences(model, probe.fenced):
                oracle = oracle_for(module, probe, probe.path, call, root_inputs)
                clock = CallClock(module, oracle, train=probe.train)
                if order.compiles:
                    eager, compiled, graph_count = _time_both(clock, probe, budget_s, on_phase)
                else:
                    eager, compiled, graph_count = _time_eager(clock, budget_s / 2), [], 0
            entering = _entering_s(clock.device, call.context, probe) if order.compiles else 0.0
            timing = CallTiming(index=call.index, count=call.count, eager=tuple(eager), compiled=tuple(compiled))
            return timing, graph_count, entering

        ran = attempt(timed)
        if isinstance(ran.error, _Untimely):
            return UnitTiming(note=error_text(ran.error)), True
        if ran.error is not None:  # the walk tells of it, if it is the compiler's
            return UnitTiming(note=error_line(ran.error)), not torch_internals.is_device_failure(ran.error)
        timing, graph_count, entering = ran.value
        graphs, entering_s = max(graphs, graph_count), max(entering_s, entering)
        calls.append(timing)
        pristine.restore()
    torch.compiler.reset()
    return UnitTiming(calls=tuple(calls), graphs=graphs, entering_s=entering_s), True


class _Untimely(Exception):
    """There is nothing that could be timed."""


def _time_both(
    clock: CallClock, order: ProbeOrder, budget_s: float, on_phase: Callable[[str], None]
) -> tuple[list[float], list[float], int]:
    """Return the seconds of eager mode and of compiled code, run by run, and the number of graphs."""
    if clock.oracle.has_nested_inputs():
        raise _Untimely("eager hands it a nested tensor, which torch.compile does not take")
    on_phase("running")
    compiled = torch.compile(clock.module, **compile_options(order))
    # The compiled runs come first: an eager one could set up what the compiler would have to trace.
    with torch_internals.watch_compile(on_phase=on_phase) as cold:
        clock.warm_up(compiled, _WARM_UPS)
    clock.warm_up(clock.module, 1)
    clock.measure_row(clock.module)
    eager: list[float] = []
    ours: list[float] = []
    with torch_internals.watch_compile() as warm, without_gc():
        for number in _turns(budget_s):
            # Who goes first changes, so that neither always finds the caches as the other left them.
            if number % 2:
                eager.append(clock.seconds(clock.module))
            ours.append(clock.seconds(compiled))
            if not number % 2:
                eager.append(clock.seconds(clock.module))
    if warm.graph_count or warm.frames_compiled:
        raise _Untimely("it is compiled again in each call")
    return eager, ours, cold.graph_count


def _time_eager(clock: CallClock, budget_s: float) -> list[float]:
    clock.warm_up(clock.module, 1)
    clock.measure_row(clock.module)
    with without_gc():
        return [clock.seconds(clock.module) for _ in _turns(budget_s)]


class _NextToNothing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def _entering_s(device: torch.device, context: CallContext, order: ProbeOrder) -> float:
    """Return what a call of compiled code costs beside its kernels, in the circumstances of another module's call."""
    module = _NextToNothing().train(context.training)
    x = torch.ones(4, device=device)
    oracle = Oracle(module, (x,), {}, context, train=GENERATED if order.train else None)
    torch.compiler.reset()
    eager, compiled, _ = _time_both(CallClock(module, oracle, train=order.train), order, 0.2, lambda phase: None)
    return max(sorted(compiled)[len(compiled) // 2] - sorted(eager)[len(eager) // 2], 0.0)


def _turns(budget_s: float) -> Iterator[int]:
    """Count turns until the budget is used up."""
    until = time.perf_counter() + budget_s
    for number in range(_MOST_RUNS):
        if number >= _LEAST_RUNS and time.perf_counter() > until:
            return
        yield number
