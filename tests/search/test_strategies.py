"""Each strategy has a worker of its own, and the end of that worker is a result."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from compilebisect import api
from compilebisect.core.messages import Answer, StrategyOrder
from compilebisect.core.strategies import Strategy, StrategyResult, StrategyRun
from compilebisect.errors import CannotTestError, UsageError
from compilebisect.search.strategies import compare_strategies
from compilebisect.settings import Settings

SPEC = {"args": [[2, "seq"]], "dims": {"seq": [8, 16, 24]}}


class FakeBisection:
    """Measures by the number of the worker, and loses the one that compiles with `dynamic=True`."""

    def __init__(self, spec: Any = None, variants: int = 3, **settings: Any) -> None:
        self.settings = Settings(target="m.py:Net", spec=spec, timeout_s=7.0, **settings)
        self.description = SimpleNamespace(variants=variants)
        self.orders: list[StrategyOrder] = []
        self.stopped = 0

    def loaded_worker(self, phase: str) -> Any:
        return SimpleNamespace(stop=self._stop)

    def _stop(self) -> None:
        self.stopped += 1

    def ask_one(
        self, start: Callable[[], Any], function: str, payload: bytes, timeout_s: float, doing: str
    ) -> tuple[Any, Answer]:
        return start(), self._answer(payload, timeout_s, doing)

    def _answer(self, payload: bytes, timeout_s: float, doing: str) -> Answer:
        order = msgspec.msgpack.decode(payload, type=StrategyOrder)
        self.orders.append(order)
        assert timeout_s == 7.0
        if order.strategy is Strategy.DYNAMIC:
            raise CannotTestError(f"{doing} did not finish within 7 s")
        seconds = float(len(self.orders))
        runs = (StrategyRun(variant=1, first_s=seconds, run_s=1.0),)
        return Answer(strategy=StrategyResult(strategy=order.strategy, total_s=seconds, run_s=1.0, runs=runs))


def test_every_strategy_is_measured_in_a_worker_of_its_own():
    bisection = FakeBisection(SPEC)
    seen = compare_strategies(bisection)  # type: ignore[arg-type]
    assert [order.strategy for order in bisection.orders] == [one.strategy for one in seen.results]
    assert {one.strategy for one in seen.results} == set(Strategy)
    assert bisection.stopped == 5
    lost = next(one for one in seen.results if one.strategy is Strategy.DYNAMIC)
    assert "did not finish within 7 s" in lost.error
    assert seen.recommended is Strategy.STATIC
    assert bisection.orders[-1].buckets == {"seq": (8, 24)}
    assert "padded positions" in " ".join(seen.notes)


def test_sizes_without_names_are_not_padded():
    seen = compare_strategies(FakeBisection(inputs="m.py:make"))  # type: ignore[arg-type]
    assert Strategy.BUCKETS not in {one.strategy for one in seen.results}
    assert "--inputs have no names" in seen.notes[0]


def test_one_variant_leaves_nothing_to_compare():
    seen = compare_strategies(FakeBisection(inputs="m.py:make", variants=1))  # type: ignore[arg-type]
    assert not seen.results and seen.recommended is None and "one variant" in seen.reason
    with pytest.raises(UsageError, match="no dim of the spec has several values"):
        api.run(Settings(target="m.py:Net", spec={"x": [2]}, strategies=True))
