"""What a worker does on request. Each function takes the worker's state and a payload, and returns an `Answer`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from compilebisect.core.messages import (
    Answer,
    CaptureOrder,
    KeepTensorsOrder,
    ProbeOrder,
    ReproOrder,
    StrategyOrder,
    TimingOrder,
    UserErrorText,
)
from compilebisect.core.module_tree import OPTIMIZER_PATH
from compilebisect.errors import CompilebisectError
from compilebisect.runtime.behind_breaks import probe_behind_breaks
from compilebisect.runtime.in_place_probe import probe_in_place
from compilebisect.runtime.optimizer_probe import probe_optimizer
from compilebisect.runtime.probe import probe
from compilebisect.runtime.session import Session
from compilebisect.runtime.timing import time_module
from compilebisect.runtime.variants_probe import probe_variants
from compilebisect.settings import Settings
from compilebisect.workers.worker import report_phase


def load(state: dict[str, Any], payload: bytes) -> bytes:
    """Load the model of these `Settings`."""

    def run() -> Answer:
        state["session"] = Session(msgspec.msgpack.decode(payload, type=Settings))
        return Answer()

    return _answer(run)


def describe(state: dict[str, Any], payload: bytes) -> bytes:
    """Run the model in eager mode and describe its modules."""
    session: Session = state["session"]
    return _answer(lambda: Answer(description=session.describe()))


def capture(state: dict[str, Any], payload: bytes) -> bytes:
    """Keep golden calls in files."""
    session: Session = state["session"]
    order = msgspec.msgpack.decode(payload, type=CaptureOrder)
    return _answer(lambda: Answer(capture_failures=session.capture(order)))


def run_probe(state: dict[str, Any], payload: bytes) -> bytes:
    """Carry out one `ProbeOrder`."""
    session: Session = state["session"]
    order = msgspec.msgpack.decode(payload, type=ProbeOrder)

    def run() -> Answer:
        session.new_operators.take_in()
        if order.path == OPTIMIZER_PATH:
            assert session.optimizer is not None
            observation, is_usable = probe_optimizer(session.optimizer, order, on_phase=report_phase)
        elif order.in_place:
            observation, is_usable = probe_in_place(session, order, on_phase=report_phase)
        else:
            look: Any = probe_variants if order.variants else probe_behind_breaks if order.mends_breaks else probe
            observation, is_usable = look(session.model, order, on_phase=report_phase, root_inputs=session.inputs)
        state["retire"] = not is_usable
        return Answer(observation=observation)

    return _answer(run)


def time_calls(state: dict[str, Any], payload: bytes) -> bytes:
    """Carry out one `TimingOrder`."""
    session: Session = state["session"]
    order = msgspec.msgpack.decode(payload, type=TimingOrder)

    def run() -> Answer:
        session.new_operators.take_in()
        timing, is_usable = time_module(session.model, order, on_phase=report_phase, root_inputs=session.inputs)
        state["retire"] = not is_usable
        return Answer(timing=timing)

    return _answer(run)


def measure_strategy(state: dict[str, Any], payload: bytes) -> bytes:
    """Carry out one `StrategyOrder`; the worker is of no use for anything else afterwards."""
    from compilebisect.runtime import strategy_probe

    session: Session = state["session"]
    order = msgspec.msgpack.decode(payload, type=StrategyOrder)

    def run() -> Answer:
        session.new_operators.take_in()
        state["retire"] = True
        return Answer(strategy=strategy_probe.measure_strategy(session, order, report_phase))

    return _answer(run)


def repro_cases(state: dict[str, Any], payload: bytes) -> bytes:
    """Gather the repro cases of one fault, the most standalone first."""
    from compilebisect.runtime.repro_cases import cases_of

    session: Session = state["session"]
    order = msgspec.msgpack.decode(payload, type=ReproOrder)
    return _answer(lambda: Answer(cases=msgspec.msgpack.encode(cases_of(session, order))))


def keep_tensors(state: dict[str, Any], payload: bytes) -> bytes:
    """Drop what a script does not read from the file of tensors beside it."""
    from compilebisect.runtime import tensor_source

    order = msgspec.msgpack.decode(payload, type=KeepTensorsOrder)

    def run() -> Answer:
        tensor_source.keep_tensors(Path(order.path), order.keys)
        return Answer()

    return _answer(run)


def _answer(run: Callable[[], Answer]) -> bytes:
    try:
        answer = run()
    except CompilebisectError as error:
        answer = Answer(
            error=UserErrorText(
                name=type(error).__name__, what=error.what, where=error.where, fix=error.fix, detail=error.detail
            )
        )
    return msgspec.msgpack.encode(answer)
