"""Has modules timed, one after the other, with nothing else under way: the clock would count that too."""

from __future__ import annotations

import msgspec

from compilebisect.core.messages import TimingOrder
from compilebisect.core.slowdown import SlowdownSearch, TimingProbe
from compilebisect.core.timing import UnitTiming
from compilebisect.core.unit_result import Probe
from compilebisect.errors import CannotTestError
from compilebisect.search.bisection import Bisection
from compilebisect.workers.remote_worker import Worker


def search_slowdowns(bisection: Bisection) -> None:
    """Time the modules of a finished walk and enter into its results who is slower compiled than in eager mode.

    Raises:
        CompilebisectError: a worker cannot be had.
    """
    walk = bisection.walk
    search = SlowdownSearch(walk.tree, walk.units, walk.results, backend=bisection.settings.backend).run()
    bisection.progress.phase_started("timing modules, eager against compiled")
    bisection.store.want_again(unit.id for unit in walk.units if not walk.results[unit.id].is_left_out)
    last: int | None = None
    try:
        probe = next(search)
        while True:
            if last is not None and last != probe.unit:
                bisection.store.let_go(last)
            last = probe.unit
            probe = search.send(_timed(bisection, probe))
    except StopIteration:
        return


def _timed(bisection: Bisection, probe: TimingProbe) -> UnitTiming:
    """Carry out one timing; whatever keeps it from being made is in its note."""
    settings = bisection.settings
    done, total = probe.unit, len(bisection.walk.units)
    what = "eager mode" if not probe.compiles else probe.rung.value if probe.rung else settings.backend
    bisection.progress.probe_started(probe.path, bisection.walk.tree[probe.path].class_name, what, done, total)
    plain = Probe(unit=probe.unit, path=probe.path, rung=probe.rung, fenced=probe.fenced, purpose="time")
    if reason := bisection.store.prepare(plain):
        return UnitTiming(note=reason)
    order = TimingOrder(probe=bisection.order_for(plain), compiles=probe.compiles)
    payload = msgspec.msgpack.encode(order)
    started: list[Worker] = []

    def start() -> Worker:
        started[:] = [bisection.idle_worker()]
        return started[0]

    try:
        worker, answer = bisection.ask_one(start, "time_calls", payload, settings.timeout_s, "timing a module")
    except CannotTestError as error:
        for worker in started:
            worker.stop()
        return UnitTiming(note=error.what)
    bisection.give_back(worker)
    bisection.progress.probe_finished(probe.path, "ok", done, total)
    assert answer.timing is not None
    return answer.timing
