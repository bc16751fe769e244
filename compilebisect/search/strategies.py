"""Has each way of compiling for several sizes measured in a worker of its own, one after the other."""

from __future__ import annotations

import msgspec

from compilebisect.core.buckets import buckets_of
from compilebisect.core.input_spec import InputSpec, parse_spec
from compilebisect.core.messages import StrategyOrder
from compilebisect.core.strategies import Strategies, Strategy, StrategyResult, compared
from compilebisect.errors import CannotTestError
from compilebisect.search.bisection import Bisection
from compilebisect.workers.remote_worker import Worker

_MEASURED = (Strategy.STATIC, Strategy.AUTOMATIC, Strategy.MARK_DYNAMIC, Strategy.DYNAMIC, Strategy.BUCKETS)


def compare_strategies(bisection: Bisection) -> Strategies:
    """Measure all strategies that suit the inputs and recommend one.

    Raises:
        CompilebisectError: no worker can be had.
    """
    settings, count = bisection.settings, bisection.description.variants
    spec = parse_spec(settings.spec) if settings.inputs is None else InputSpec()
    if count < 2:
        return Strategies(reason="there is one variant of the inputs alone, so no size varies")
    buckets, why_not = buckets_of(spec) if settings.inputs is None else ({}, "the dims of --inputs have no names")
    notes = [f"no padding to buckets: {why_not}"] if why_not else []
    if buckets:
        notes.append("with buckets the model's output covers padded positions too, and they may change its values")
    results = []
    for strategy in _MEASURED:
        if strategy is not Strategy.BUCKETS or buckets:
            lengths = buckets if strategy is Strategy.BUCKETS else {}
            results.append(_measured(bisection, StrategyOrder(strategy=strategy, variants=count, buckets=lengths)))
    sizes = [spec.dims_of_variant(number) for number in range(count)]
    least = {name: options.min for name, options in spec.dim_options.items() if options.min is not None}
    return compared(sizes, results, least=least, notes=notes)


def _measured(bisection: Bisection, order: StrategyOrder) -> StrategyResult:
    """Measure one; the end of its worker, or of its time, is an error of the strategy."""
    phase = f"measuring the whole model compiled so: {order.strategy.value}"
    started: list[Worker] = []

    def start() -> Worker:
        started.append(bisection.loaded_worker(phase))
        return started[-1]

    payload = msgspec.msgpack.encode(order)
    doing = f"compiling for {order.variants} variants"
    try:
        _, answer = bisection.ask_one(start, "measure_strategy", payload, bisection.settings.timeout_s, doing)
    except CannotTestError as error:
        return StrategyResult(strategy=order.strategy, error_type="stopped", error=error.what)
    finally:
        for worker in started:
            worker.stop()
    assert answer.strategy is not None
    return answer.strategy
