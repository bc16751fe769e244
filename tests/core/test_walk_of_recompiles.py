"""Recompiles in the walk: what the model above puts right, instances that differ, further variants of the inputs."""

from __future__ import annotations

import msgspec

from compilebisect.core.findings import Verdicts
from compilebisect.core.outcome import Fault, Kind, Observation, Stage
from compilebisect.core.unit_result import Probe
from tests.core.scripted_model import Planted, ScriptedModel, introduced

NESTED = {"": ["enc", "head"], "enc": ["enc.a", "enc.b"], "enc.a": [], "enc.b": [], "head": []}


def recompile(*owners: str, type_name: str = "value of self.step") -> Fault:
    return Fault(kind=Kind.RECOMPILE, type=type_name, stage=Stage.DYNAMO, owners=owners)


class PutsRight(ScriptedModel):
    """A model in which `enc` puts back what its children change, so that only these alone are compiled again."""

    def observe(self, probe: Probe) -> Observation:
        seen = super().observe(probe)
        if probe.path in ("", "enc"):
            return msgspec.structs.replace(seen, faults=())
        return seen


class Varied(ScriptedModel):
    """A model whose modules are compiled again for other inputs where `specialized` is part of what is compiled."""

    def __init__(self, specialized: list[str]) -> None:
        super().__init__(NESTED)
        self.specialized = specialized

    def observe(self, probe: Probe) -> Observation:
        if not probe.variants:
            return super().observe(probe)
        self.probes.append(probe)
        inside = self._compiled_paths(probe.path, set(probe.fenced))
        # Whoever is compiled is the one whose frame it is; arguments have other names at each level.
        faults = [recompile(type_name=f"size of {probe.path}")] if inside & set(self.specialized) else []
        return Observation(faults=tuple(faults), graphs=1, frames_compiled=1, recompiles=1 + len(faults))


def test_a_recompile_that_the_module_above_does_not_show_is_no_finding():
    walk = PutsRight(NESTED, [Planted(Kind.RECOMPILE, "enc.a")]).walk()
    assert introduced(walk) == []
    entries = {entry.path: entry for entry in Verdicts(walk, "").modules()}
    assert entries["enc.a"].status == "ok" and "not inside 'enc'" in entries["enc.a"].notes[0]


def test_what_the_module_above_puts_right_is_no_finding_though_it_shows_another():
    class PutsOneRight(ScriptedModel):
        def observe(self, probe: Probe) -> Observation:
            seen = super().observe(probe)
            if probe.path in ("", "enc"):
                kept = tuple(fault for fault in seen.faults if fault.type != "reset")
                return msgspec.structs.replace(seen, faults=kept)
            return seen

    planted = [Planted(Kind.RECOMPILE, "enc.a", type_name="reset"), Planted(Kind.RECOMPILE, "enc.b", type_name="kept")]
    assert introduced(PutsOneRight(NESTED, planted).walk()) == [("enc.b", "recompile")]


def test_a_recompile_that_another_one_hides_stays():
    class NamesTheFirst(ScriptedModel):
        def observe(self, probe: Probe) -> Observation:
            seen = super().observe(probe)
            return msgspec.structs.replace(seen, faults=seen.faults[:1])

    paths = ["enc.a", "enc.b", "head"]
    planted = [Planted(Kind.RECOMPILE, path, type_name=f"value of {path}") for path in paths]
    assert introduced(NamesTheFirst(NESTED, planted).walk()) == [(path, "recompile") for path in paths]


def test_another_fault_of_the_same_module_stays():
    model = PutsRight(NESTED, [Planted(Kind.RECOMPILE, "enc.a"), Planted(Kind.GRAPH_BREAK, "enc.a", type_name="print")])
    assert introduced(model.walk()) == [("enc.a", "graph_break")]


def test_a_recompile_below_does_not_hide_one_of_the_module_itself():
    model = ScriptedModel(
        NESTED, [Planted(Kind.RECOMPILE, "enc.a"), Planted(Kind.RECOMPILE, "enc", type_name="length of self.past")]
    )
    assert introduced(model.walk()) == [("enc", "recompile"), ("enc.a", "recompile")]


def test_differing_instances_are_named_where_their_function_is_compiled_again():
    class Differing(ScriptedModel):
        def observe(self, probe: Probe) -> Observation:
            faults = (
                (recompile("enc.a", "enc.b", type_name="differs"),)
                if probe.path in ("", "enc") and not probe.fenced
                else ()
            )
            return Observation(faults=faults, graphs=1, frames_compiled=1)

    walk = Differing(NESTED).walk()
    ((item,),) = [result.introduced for result in walk.results.values() if result.introduced]
    assert (item.path, item.instances, item.seen_in) == ("enc.a", ("enc.a", "enc.b"), "enc")
    entries = {entry.path: (entry.status, entry.origin) for entry in Verdicts(walk, "").modules()}
    assert entries["enc.b"] == ("recompile", "introduced") and entries["enc"] == ("recompile", "inherited")


def test_one_variant_costs_no_further_probe():
    model = ScriptedModel(NESTED)
    model.walk(variants=1)
    assert not any(probe.variants for probe in model.probes)


def test_with_more_variants_a_healthy_model_costs_one_probe_more():
    model = Varied([])
    walk = model.walk(variants=3)
    assert introduced(walk) == []
    assert [(probe.path, probe.variants) for probe in model.probes if probe.variants] == [("", 3)]
    assert {entry.path: entry.recompiles for entry in Verdicts(walk, "").modules()}[""] == 1


def test_the_lowest_module_that_is_compiled_again_for_other_inputs_introduces_it():
    walk = Varied(["enc.b"]).walk(variants=3)
    assert introduced(walk) == [("enc.b", "recompile")]
    inherits = {unit.path for unit in walk.units if walk.results[unit.id].inherited}
    assert inherits == {"", "enc"}


def test_modules_that_are_compiled_again_for_other_inputs_do_not_hide_each_other():
    assert introduced(Varied(["enc", "enc.b", "head"]).walk(variants=3)) == [
        ("enc", "recompile"),
        ("enc.b", "recompile"),
        ("head", "recompile"),
    ]


def test_a_size_of_one_belongs_to_where_the_inputs_come_in():
    class OfOne(ScriptedModel):
        def observe(self, probe: Probe) -> Observation:
            if not probe.variants:
                return super().observe(probe)
            fault = recompile(type_name=f"size of {probe.path}")
            fault = msgspec.structs.replace(fault, evidence={"is_of_size_one": True})
            return Observation(faults=(fault,), graphs=1, frames_compiled=1, recompiles=1)

    assert introduced(OfOne(NESTED).walk(variants=3)) == [("", "recompile")]


def test_a_size_of_one_stays_there_beside_a_module_that_is_compiled_again_for_each_size():
    class OfOneAndMore(Varied):
        def observe(self, probe: Probe) -> Observation:
            seen = super().observe(probe)
            if not probe.variants:
                return seen
            fault = recompile(type_name=f"one in {probe.path}")
            fault = msgspec.structs.replace(fault, evidence={"is_of_size_one": True})
            return msgspec.structs.replace(seen, faults=(*seen.faults, fault))

    assert introduced(OfOneAndMore(["enc.b"]).walk(variants=3)) == [("", "recompile"), ("enc.b", "recompile")]


def test_variants_that_do_not_end_are_said_and_blame_nobody():
    class Endless(ScriptedModel):
        def observe(self, probe: Probe) -> Observation:
            if probe.variants:
                return Observation(faults=(Fault(kind=Kind.TIMEOUT, type="timeout", message="9 s"),), completed=False)
            return super().observe(probe)

    walk = Endless(NESTED).walk(variants=2)
    assert introduced(walk) == []
    entries = {entry.path: entry for entry in Verdicts(walk, "").modules()}
    assert entries[""].status == "untested" and "variants of the inputs were not all run: 9 s" in entries[""].notes[0]


def test_nobody_looks_for_recompiles_that_are_not_asked_for():
    model = Varied(["enc.b"])
    assert introduced(model.walk(variants=3, kinds=(Kind.GRAPH_BREAK,))) == []
    assert not any(probe.variants for probe in model.probes)
