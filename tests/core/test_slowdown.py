"""Who is blamed for a slowdown, told from scripted seconds."""

from __future__ import annotations

import random

import pytest

from compilebisect.core.findings import Verdicts
from compilebisect.core.outcome import Kind, Rung, Stage
from compilebisect.core.slowdown import SlowdownSearch, TimingProbe
from compilebisect.core.timing import CallTiming, Loss, UnitTiming, is_beyond_noise, median_interval
from tests.core.scripted_model import Planted, ScriptedModel, introduced

ENTERING_S = 200e-6
NESTED = {"": ["enc", "head"], "enc": ["enc.a", "enc.b"], "enc.a": [], "enc.b": [], "head": []}


def timing(eager_s: float, compiled_s: float | None, *, graphs: int = 1, noise: float = 0.02) -> UnitTiming:
    draw = random.Random(0)

    def around(middle: float) -> tuple[float, ...]:
        return tuple(middle * (1 + noise * draw.uniform(-1, 1)) for _ in range(15))

    call = CallTiming(
        index=0, count=1, eager=around(eager_s), compiled=() if compiled_s is None else around(compiled_s)
    )
    return UnitTiming(calls=(call,), graphs=graphs, entering_s=ENTERING_S)


class Timed(ScriptedModel):
    """A model of which each module takes 1 ms in eager mode for itself; `kernels` says what compiled kernels lose.

    `breaks` says how often a module's own code breaks the graph; each piece is entered at a price. A module with breaks
    inside, and each call of one that stays eager, splits those above as well.
    """

    def __init__(self, *, kernels: dict[str, float] | None = None, breaks: dict[str, int] | None = None) -> None:
        super().__init__(NESTED, [Planted(Kind.GRAPH_BREAK, path) for path in breaks or {}])
        self.kernels, self.breaks = kernels or {}, breaks or {}
        self.timed: list[TimingProbe] = []

    def time(self, probe: TimingProbe) -> UnitTiming:
        self.timed.append(probe)
        inside = self._compiled_paths(probe.path, set(probe.fenced))
        eager_s = 1e-3 * len(self._paths(probe.path))
        if not probe.compiles:
            return timing(eager_s, None)
        broken = [path for path in inside if self.breaks.get(path)]
        # What breaks the graph, or is kept out of it, splits each module above it up to the one that is compiled.
        inner = [path for path in (*broken, *probe.fenced) if path in self._paths(probe.path)]
        splits = {above for above in inside for path in inner if path != above and path in self._paths(above)}
        graphs = 1 + len(splits) + sum(self.breaks[path] for path in broken)
        loss = 0.9 * ENTERING_S * graphs
        if probe.rung is None:
            loss += sum(self.kernels.get(path, 0.0) for path in inside)
        return timing(eager_s, eager_s + loss, graphs=graphs, noise=0.0)

    def search(self, **options: object):
        walk = self.walk(**options)
        steps = SlowdownSearch(walk.tree, walk.units, walk.results, backend="inductor").run()
        try:
            probe = next(steps)
            while True:
                probe = steps.send(self.time(probe))
        except StopIteration:
            return walk


def slow(walk) -> list[str]:
    return [path for path, kind in introduced(walk) if kind == "slowdown"]


def test_a_container_that_is_slow_for_its_child_alone_inherits():
    walk = Timed(breaks={"enc.a": 12}).search()
    assert slow(walk) == ["enc.a"]
    found = Verdicts(walk, "", (Kind.SLOWDOWN,))
    assert [finding.kind for finding in found.findings] == [Kind.SLOWDOWN]
    entries = {entry.path: (entry.status, entry.origin) for entry in found.modules()}
    assert entries["enc.a"] == ("slowdown", "introduced")
    assert entries["enc"] == entries[""] == ("slowdown", "inherited")
    assert entries["enc.b"] == entries["head"] == ("ok", None)


def test_a_container_that_breaks_the_graph_too_is_blamed_as_well():
    assert slow(Timed(breaks={"enc.a": 12, "enc": 9}).search()) == ["enc", "enc.a"]


def test_what_entering_compiled_code_costs_is_a_note_and_no_finding():
    walk = Timed().search()
    assert slow(walk) == []
    notes = {entry.path: entry.notes for entry in Verdicts(walk, "").modules()}
    assert "no finding" in notes["enc.a"][0]


def test_losses_by_breaks_that_are_small_each_are_laid_to_those_together():
    # one break in each of two modules: neither is slow by itself
    walk = Timed(breaks={"enc.a": 1, "head": 1}).search()
    assert slow(walk) == [""]
    (finding,) = Verdicts(walk, "", (Kind.SLOWDOWN,)).findings
    assert finding.evidence["region"] == ["enc.a", "head"]


def test_a_model_that_is_slow_for_one_break_blames_who_brings_it():
    class Costly(Timed):
        def time(self, probe: TimingProbe) -> UnitTiming:
            seen = super().time(probe)
            return timing(5e-3, 6e-3, graphs=3, noise=0.0) if probe.path == "" else seen

    walk = Costly(breaks={"enc.a": 1}).search()
    assert slow(walk) == ["enc.a"]
    found = Verdicts(walk, "", (Kind.SLOWDOWN,))
    assert found.findings[0].evidence["only_inside"] == ""
    assert "measured on the whole model, whose graph it breaks" in found.findings[0].summary
    assert not any("no finding" in note for note in walk.results[walk.unit_of["enc.a"].id].notes)
    assert found.modules()[0].origin == "inherited"


def test_what_a_second_measurement_does_not_show_is_a_note_and_no_finding():
    class Once(Timed):
        def time(self, probe: TimingProbe) -> UnitTiming:
            is_again = probe in self.timed
            seen = super().time(probe)
            return timing(1e-3, 1e-3, noise=0.0) if is_again else seen

    walk = Once(kernels={"enc.b": 2e-3}).search(all_modules=True)
    assert slow(walk) == []
    notes = walk.results[walk.unit_of["enc.b"].id].notes
    assert notes == ["slower than eager in one measurement and not in the next: no finding"]


def test_kernels_that_are_slow_are_laid_to_the_backend():
    walk = Timed(kernels={"enc.b": 2e-3}).search(all_modules=True)
    assert slow(walk) == ["enc.b"]
    (finding,) = Verdicts(walk, "").findings
    assert finding.stage is Stage.INDUCTOR
    assert finding.evidence["inside"] == "enc"
    assert finding.evidence["ratio"] == pytest.approx(3.18, abs=0.001)
    assert finding.repro is None and "3.18 times as long" in finding.summary


def test_kernels_that_are_slow_alone_but_not_within_the_parent_are_no_finding():
    class Fuses(Timed):
        def time(self, probe: TimingProbe) -> UnitTiming:
            self.kernels = {"enc.b": 2e-3} if probe.path == "enc.b" else {}
            return super().time(probe)

    walk = Fuses().search(all_modules=True)
    assert slow(walk) == []
    (note,) = next(entry.notes for entry in Verdicts(walk, "").modules() if entry.path == "enc.b")
    assert "not as part of 'enc'" in note


def test_what_is_implied_healthy_is_compiled_only_where_something_below_it_is_slow():
    model = Timed()
    walk = model.search()
    implied = {walk.units[unit].path for unit, result in walk.results.items() if result.is_implied}
    assert implied == {"enc"}
    assert [probe.compiles for probe in model.timed if probe.path == "enc"] == [False]
    slowed = Timed(breaks={"enc.a": 12})
    slowed.search()
    assert any(probe.compiles for probe in slowed.timed if probe.path == "enc")


def test_a_module_that_cannot_be_timed_says_why():
    class Fails(Timed):
        def time(self, probe: TimingProbe) -> UnitTiming:
            return UnitTiming(note="it is compiled again in each call") if probe.path == "head" else super().time(probe)

    entries = {entry.path: entry for entry in Verdicts(Fails().search(), "").modules()}
    assert entries["head"].notes == ("not timed: it is compiled again in each call",)
    assert entries["head"].eager_s is None
    assert entries["enc.a"].time_share == pytest.approx(0.2, abs=0.01)


def test_the_stage_is_asked_for_only_where_something_is_slow():
    model = Timed()
    model.search()
    assert not [probe for probe in model.timed if probe.rung is Rung.EAGER]


def test_a_loss_within_the_spread_is_none():
    noisy = timing(1e-3, 1.1e-3, noise=0.5)
    assert not is_beyond_noise(noisy.loss, noisy)
    quiet = timing(10e-3, 12e-3)
    assert is_beyond_noise(quiet.loss, quiet)


def test_a_small_share_of_a_long_time_is_none():
    long = timing(1.0, 1.02, noise=0.0)
    assert long.loss.low_s > long.floor_s and not is_beyond_noise(long.loss, long)


def test_seconds_count_for_each_call_of_one_run_of_the_model():
    call = CallTiming(index=0, count=10, eager=(1.0,) * 7, compiled=(1.5,) * 7)
    several = UnitTiming(calls=(call,), entering_s=0.1)
    assert (several.eager_s, several.compiled_s, several.floor_s) == (10.0, 15.0, 2.0)
    assert several.loss == Loss(5.0, 5.0, 5.0)


@pytest.mark.parametrize(("count", "rank"), [(1, 0), (6, 0), (7, 0), (10, 0), (11, 1), (41, 12)])
def test_interval_of_the_median_by_the_number_of_values(count: int, rank: int):
    assert median_interval(range(count)) == (rank, count - 1 - rank)


def test_interval_holds_the_median_as_often_as_it_says():
    draw = random.Random(1)
    samples = [median_interval([draw.expovariate(1.0) for _ in range(15)]) for _ in range(2000)]
    inside = sum(low <= 0.6931 <= high for low, high in samples)
    assert inside / len(samples) > 0.97
