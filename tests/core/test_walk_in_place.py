"""The walk with `--context`: what shows only in place, and the impact of what shows alone."""

from __future__ import annotations

import pytest

from compilebisect.core.outcome import Kind
from tests.core.scripted_model import Planted, ScriptedModel, introduced

TREE = {"": ["enc", "head"], "enc": ["enc.a", "enc.b", "enc.c"], "head": ["head.proj"]}


def only_in_place(**where):
    return Planted(Kind.DIVERGENCE, only_in_place=True, **where)


def items(walk, path):
    return walk.results[walk.unit_of[path].id].introduced


def test_what_shows_only_in_place_is_introduced_there_and_not_above():
    model = ScriptedModel(TREE, [only_in_place(path="enc.b")])
    walk = model.walk(context=True)
    assert introduced(walk) == [("enc.b", "divergence")]
    assert items(walk, "enc.b")[0].fault.evidence["only_in_place"]
    above = [probe for probe in model.probes if probe.in_place and probe.path == "enc"]
    assert above and all("enc.b" in probe.fenced for probe in above)


def test_without_context_nothing_is_probed_in_place():
    model = ScriptedModel(TREE, [only_in_place(path="enc.b")])
    assert introduced(model.walk()) == []
    assert not any(probe.in_place for probe in model.probes)


def test_an_interplay_that_shows_only_in_place_has_its_region_and_stage_from_probes_in_place():
    model = ScriptedModel(TREE, [only_in_place(together=("enc.a", "enc.c"))])
    walk = model.walk(context=True)
    (item,) = items(walk, "enc")
    assert item.region == ("enc.a", "enc.c") and item.fault.evidence["only_in_place"]
    assert item.fault.stage is not None
    assert introduced(walk) == [("enc", "divergence")]


def test_a_container_that_was_implied_healthy_is_checked_once_something_shows_above_it_in_place():
    tree = {"": ["net", "norm"], "net": ["net.body", "net.end"], "net.body": ["net.body.a", "net.body.b", "net.body.c"]}
    model = ScriptedModel(tree, [only_in_place(path="net.body")])
    walk = model.walk(context=True)
    assert introduced(walk) == [("net.body", "divergence")]
    assert not walk.results[walk.unit_of["net.body"].id].is_implied


def test_one_of_several_instances_may_show_it_alone():
    classes = {"enc.a": "Block", "enc.b": "Block", "enc.c": "Block"}
    model = ScriptedModel(TREE, [only_in_place(path="enc.c")], classes=classes)
    walk = model.walk(context=True)
    (item,) = items(walk, "enc.c")
    assert item.instances == ("enc.c",)
    in_place = [probe for probe in model.probes if probe.in_place and probe.purpose == "in place"]
    assert ("enc.a", ("enc.b", "enc.c")) in [(probe.path, probe.instances) for probe in in_place]


@pytest.mark.parametrize("kind", [Kind.DIVERGENCE, Kind.ERROR])
def test_what_shows_alone_is_not_looked_for_in_place_and_a_divergence_gets_its_impact(kind):
    model = ScriptedModel(TREE, [Planted(kind, "enc.a")])
    walk = model.walk(context=True)
    (item,) = items(walk, "enc.a")
    assert "only_in_place" not in item.fault.evidence
    assert item.fault.evidence.get("impact") == ({"text": "of enc.a"} if kind is Kind.DIVERGENCE else None)
    assert [probe.purpose for probe in model.probes if probe.in_place and probe.path == "enc.a"] == (
        ["impact"] if kind is Kind.DIVERGENCE else []
    )


def test_a_module_that_shows_one_fault_through_a_child_is_still_checked_in_place_for_its_own():
    model = ScriptedModel(TREE, [Planted(Kind.DIVERGENCE, "enc.a"), only_in_place(path="enc")])
    assert introduced(model.walk(context=True)) == [("enc", "divergence"), ("enc.a", "divergence")]


def test_a_whole_model_that_takes_too_long_is_no_hang_of_the_module_that_is_compiled_in_it():
    model = ScriptedModel(TREE, [Planted(Kind.TIMEOUT, "enc.a", only_in_place=True)])
    walk = model.walk(context=True)
    assert introduced(walk) == []
    assert any("within --timeout" in note for note in walk.results[walk.unit_of["enc.a"].id].notes)
