"""What shows only in later calls of a module, or with further variants of its inputs, in the walk."""

from __future__ import annotations

import msgspec
import pytest

from compilebisect.core.findings import Verdicts
from compilebisect.core.outcome import Fault, Kind, Observation, Rung, Stage
from compilebisect.core.unit_result import Probe
from tests.core.scripted_model import Planted, ScriptedModel, introduced

NESTED = {"": ["enc", "head"], "enc": ["enc.a", "enc.b"], "enc.a": [], "enc.b": [], "head": []}
ABOUT_ONE_FAULT = ("ladder", "region", "alone inside", "rest", "left out")


class CalledOften(ScriptedModel):
    """A model whose divergences show in the third call alone, and belong to code rather than to an instance."""

    def observe(self, probe: Probe) -> Observation:
        seen = super().observe(probe)
        has_row = probe.in_row or probe.purpose not in ABOUT_ONE_FAULT
        return msgspec.structs.replace(seen, faults=seen.faults if has_row else (), faults_by_instance={})


def in_third_call(path: str = "", **options: object) -> Planted:
    return Planted(Kind.DIVERGENCE, path, evidence={"call_in_row": 3}, **options)  # type: ignore[arg-type]


class Varied(ScriptedModel):
    """A model whose modules in `wrong` go wrong with the third variant of the inputs."""

    def __init__(self, kind: Kind, wrong: list[str], planted: list[Planted] | None = None, lowest: Rung = Rung.EAGER):
        super().__init__(NESTED, planted or [])
        self.kind, self.wrong, self.lowest = kind, wrong, lowest

    def observe(self, probe: Probe) -> Observation:
        if not probe.variants:
            return super().observe(probe)
        self.probes.append(probe)
        is_low = probe.rung is not None and list(Rung).index(probe.rung) < list(Rung).index(self.lowest)
        inside = self._compiled_paths(probe.path, set(probe.fenced)) & {*self.wrong, *(p.path for p in self.planted)}
        evidence = {"in_variants": True, "variant": 3}
        faults = (Fault(kind=self.kind, type="planted", evidence=evidence),) if inside and not is_low else ()
        return Observation(faults=faults, graphs=1, frames_compiled=1)


@pytest.mark.parametrize(("rung", "stage"), [(Rung.EAGER, Stage.DYNAMO), (Rung.INDUCTOR, Stage.INDUCTOR)])
def test_a_later_call_is_looked_at_in_all_probes_about_it(rung: Rung, stage: Stage):
    walk = CalledOften(NESTED, [in_third_call("enc.b", lowest_rung=rung)]).walk()
    assert introduced(walk) == [("enc.b", "divergence")]
    assert [item.fault.stage for result in walk.results.values() for item in result.introduced] == [stage]


def test_an_interplay_in_a_later_call_has_its_region():
    walk = CalledOften(NESTED, [in_third_call(together=["enc.a", "enc.b"])]).walk()
    (item,) = (item for result in walk.results.values() for item in result.introduced)
    assert (item.path, item.region) == ("enc", ("enc.a", "enc.b"))


def test_what_the_module_above_puts_right_before_each_call_is_no_finding():
    class PutsRight(CalledOften):
        def observe(self, probe: Probe) -> Observation:
            seen = super().observe(probe)
            return msgspec.structs.replace(seen, faults=(), has_right_rows=True) if probe.path in ("", "enc") else seen

    walk = PutsRight(NESTED, [in_third_call("enc.a"), Planted(Kind.GRAPH_BREAK, "enc.b")]).walk()
    assert introduced(walk) == [("enc.b", "graph_break")]
    entries = {entry.path: entry for entry in Verdicts(walk, "").modules()}
    assert entries["enc.a"].status == "ok" and "not inside 'enc'" in entries["enc.a"].notes[0]


@pytest.mark.parametrize("rows", [{}, {"has_right_rows": True, "is_blind": True}])
def test_what_the_calls_of_the_module_above_tell_nothing_of_stays_a_finding(rows: dict[str, bool]):
    class TellsNothing(CalledOften):
        def observe(self, probe: Probe) -> Observation:
            seen = super().observe(probe)
            return msgspec.structs.replace(seen, faults=(), **rows) if probe.path in ("", "enc") else seen

    assert introduced(TellsNothing(NESTED, [in_third_call("enc.a")]).walk()) == [("enc.a", "divergence")]


def test_what_is_kept_out_of_the_module_above_stays_a_finding():
    class WithoutCrash(CalledOften):
        def observe(self, probe: Probe) -> Observation:
            return msgspec.structs.replace(super().observe(probe), has_right_rows=True)

    walk = WithoutCrash(NESTED, [in_third_call("enc.a"), Planted(Kind.CRASH, "enc")]).walk()
    assert introduced(walk) == [("enc", "crash"), ("enc.a", "divergence")]


@pytest.mark.parametrize("kind", [Kind.DIVERGENCE, Kind.ERROR])
def test_the_lowest_module_that_goes_wrong_with_other_inputs_introduces_it(kind: Kind):
    walk = Varied(kind, ["enc.b"], lowest=Rung.AOT_EAGER).walk(variants=3)
    assert introduced(walk) == [("enc.b", kind.value)]
    assert [i.fault.stage for result in walk.results.values() for i in result.introduced] == [Stage.AOT_AUTOGRAD]
    assert {unit.path for unit in walk.units if walk.results[unit.id].inherited} == {"", "enc"}


def test_modules_that_go_wrong_with_other_inputs_do_not_hide_each_other():
    walk = Varied(Kind.DIVERGENCE, ["enc", "enc.b", "head"]).walk(variants=3)
    assert introduced(walk) == [("enc", "divergence"), ("enc.b", "divergence"), ("head", "divergence")]


def test_what_the_first_variant_shows_is_told_once():
    planted = [Planted(Kind.DIVERGENCE, "enc.a")]
    assert introduced(Varied(Kind.DIVERGENCE, [], planted).walk(variants=3)) == [("enc.a", "divergence")]
    both = Varied(Kind.DIVERGENCE, ["head"], planted).walk(variants=3)
    assert introduced(both) == [("enc.a", "divergence"), ("head", "divergence")]


def test_nobody_looks_at_variants_for_what_they_do_not_show():
    model = Varied(Kind.DIVERGENCE, ["enc.b"])
    model.walk(variants=3, kinds=(Kind.GRAPH_BREAK,))
    assert not any(probe.variants for probe in model.probes)
