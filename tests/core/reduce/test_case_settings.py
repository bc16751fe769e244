from __future__ import annotations

from collections.abc import Callable

from compilebisect.core.call import CallContext
from compilebisect.core.outcome import Fault, Kind
from compilebisect.core.reduce.case_settings import simpler_settings
from compilebisect.core.repro_case import ReproCase

CASE = ReproCase(
    fault=Fault(kind=Kind.DIVERGENCE, type="values"),
    mode="max-autotune",
    dynamic=True,
    train=True,
    config=(("a", "1"), ("b", "2")),
    context=CallContext(grad_mode="grad", autocast=(("cpu", "torch.bfloat16"),)),
)


def simplified(case: ReproCase, shows: Callable[[ReproCase], bool]) -> ReproCase:
    search = simpler_settings(case)
    try:
        candidate = next(search)
        while True:
            candidate = search.send(shows(candidate))
    except StopIteration as stop:
        return stop.value


def test_settings_that_do_not_matter_go():
    plain = simplified(CASE, lambda candidate: True)
    assert (plain.mode, plain.dynamic, plain.train, plain.config) == (None, None, False, ())
    assert plain.context == CallContext(grad_mode="grad")


def test_each_setting_that_matters_stays():
    for name in ("mode", "dynamic", "train", "context"):
        left = simplified(CASE, lambda candidate, name=name: getattr(candidate, name) == getattr(CASE, name))
        assert getattr(left, name) == getattr(CASE, name)
    left = simplified(CASE, lambda candidate: ("b", "2") in candidate.config)
    assert left.config == (("b", "2"),)


def test_a_case_without_settings_costs_no_test():
    assert list(simpler_settings(ReproCase(fault=CASE.fault))) == []
