"""Divergences that show only inside another module, in several instances, or that are small."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compilebisect.core.culprit_search import MANY, CulpritSearch
from compilebisect.core.findings import Verdicts
from compilebisect.core.judge import MOST_INSIDE
from compilebisect.core.outcome import Fault, Kind, Observation
from compilebisect.core.unit_result import IntroducedFault
from compilebisect.core.units import units_of
from compilebisect.core.walk import Walk
from tests.core.scripted_model import Planted, ScriptedModel, introduced

LAYERS = [f"layers.{number}" for number in range(3)]
# so many that their rounding may add up
PARTS = [f"fc.{number}" for number in range(MANY)]
CHILDREN = {"": ["layers"], "layers": LAYERS, **{layer: [f"{layer}.fc", f"{layer}.act"] for layer in LAYERS}}
CHILDREN |= {f"{layer}.fc": [f"{layer}.{part}" for part in PARTS] for layer in LAYERS}
CLASSES = dict.fromkeys(LAYERS, "Layer")
CLASSES |= {f"{layer}.{name}": name for layer in LAYERS for name in ("fc", "act", *PARTS)}


def inside(path: str, above: str, **more: object) -> Planted:
    return Planted(Kind.DIVERGENCE, path, only_inside=above, **more)  # type: ignore[arg-type]


def interplay(layer: str, excess: float) -> Planted:
    together = [layer, f"{layer}.fc", f"{layer}.act"]
    return Planted(Kind.DIVERGENCE, together=together, evidence={"excess": excess})


def walk_over_layers(*planted: Planted, **options: object) -> Walk:
    return ScriptedModel(CHILDREN, planted, classes=CLASSES).walk(**options)


def instances_by_module(walk: Walk) -> dict[str, tuple[str, ...]]:
    return {item.path: item.instances for result in walk.results.values() for item in result.introduced}


def named(walk: Walk) -> set[str]:
    return {path for result in walk.results.values() for item in result.introduced for path in item.instances}


def notes_of(walk: Walk, path: str, text: str) -> list[str]:
    return [note for note in walk.results[walk.unit_of[path].id].notes if text in note]


def test_all_modules_that_bring_a_divergence_inside_one_other_are_named():
    model = ScriptedModel({"": ["a", "b", "c"]}, [inside("a", ""), inside("c", "")])
    assert introduced(model.walk()) == [("a", "divergence"), ("c", "divergence")]


def test_what_a_module_brings_beside_one_below_it_is_its_own():
    model = ScriptedModel({"": ["a", "b"]}, [inside("a", ""), Planted(Kind.DIVERGENCE, together=["", "b"])])
    walk = model.walk()
    assert introduced(walk) == [("", "divergence"), ("a", "divergence")]
    assert walk.results[walk.unit_of[""].id].introduced[0].region == ("b",)


def test_only_so_many_modules_are_sought_inside_one_other_and_a_note_says_so():
    names = [f"m{number}" for number in range(MOST_INSIDE + 2)]
    model = ScriptedModel({"": names}, [inside(name, "") for name in names])
    walk = model.walk()
    assert len(introduced(walk)) == MOST_INSIDE
    assert len(notes_of(walk, "", "further")) == 1


def test_an_instance_is_not_blamed_for_what_another_child_brings_there():
    walk = walk_over_layers(inside("layers.0.fc", "layers.0"), inside("layers.1.act", "layers.1"))
    assert instances_by_module(walk) == {"layers.0.fc": ("layers.0.fc",), "layers.1.act": ("layers.1.act",)}


def test_instances_that_a_child_makes_wrong_are_told_from_one_that_is_wrong_itself():
    inner = {f"{layer}.act": [f"{layer}.act.x"] for layer in LAYERS}
    planted = [
        interplay("layers.0", 9.0),
        inside("layers.1.act.x", "layers.1"),
        Planted(Kind.DIVERGENCE, "layers.2", evidence={"excess": 9.0}),
    ]
    classes = CLASSES | {f"{layer}.act.x": "x" for layer in LAYERS}
    walk = ScriptedModel(CHILDREN | inner, planted, classes=classes).walk()
    found = {item.instances: item.region for result in walk.results.values() for item in result.introduced}
    assert found == {
        ("layers.0",): ("layers.0.fc", "layers.0.act"),
        ("layers.1.act.x",): (),
        ("layers.2",): (),
    }


def test_rounding_beside_a_large_divergence_is_not_taken_for_its_cause():
    walk = walk_over_layers(interplay("layers.0", 1.4), inside("layers.2.act", "", evidence={"excess": 9.0}))
    assert named(walk) == {"layers.2.act"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["leaf", "inside", "root", "small", "large"]), min_size=3, max_size=3), st.data())
def test_whatever_is_wrong_in_each_of_some_instances_the_right_modules_are_named(kinds: list[str], data: st.DataObject):
    planted, expected = [], set()
    for layer, kind in zip(LAYERS, kinds, strict=True):
        leaf = data.draw(st.sampled_from([f"{layer}.fc", f"{layer}.act"]))
        if kind in ("small", "large"):
            planted.append(interplay(layer, 1.4 if kind == "small" else 9.0))
            expected |= {layer} if kind == "large" else set()
            continue
        planted.append(inside(leaf, {"leaf": leaf, "inside": layer, "root": ""}[kind]))
        expected.add(leaf)
    assert named(walk_over_layers(*planted)) == expected


@pytest.mark.parametrize(("above", "said"), [("", "the model"), ("p", "p")])
def test_a_finding_says_whose_results_differ(above: str, said: str):
    walk = ScriptedModel({"": ["p"], "p": ["p.a", "p.b"]}, [inside("p.a", above)]).walk()
    (finding,) = Verdicts(walk, "").findings
    assert (finding.module, finding.evidence["only_inside"]) == ("p.a", above)
    assert finding.summary.startswith(f"compiled Class_p.a makes {said} differ from eager")


def test_instances_in_which_one_child_brings_it_are_named_together():
    walk = walk_over_layers(*(inside(f"{layer}.fc", layer) for layer in LAYERS))
    assert instances_by_module(walk) == {"layers.0.fc": tuple(f"{layer}.fc" for layer in LAYERS)}


def test_a_large_divergence_of_one_instance_is_not_taken_for_the_rounding_of_another():
    walk = walk_over_layers(interplay("layers.0", 1.3), interplay("layers.2", 50.0))
    assert instances_by_module(walk) == {"layers.2": ("layers.2",)}
    assert len(notes_of(walk, "layers.0", "accumulated rounding")) == 1


def test_the_region_of_an_error_is_sought_in_the_one_module_that_is_compiled():
    """An error ends the run, so that the instances behind it would not be run."""
    model = ScriptedModel(CHILDREN, classes=CLASSES)
    fault = Fault(kind=Kind.ERROR, type="planted")
    item = IntroducedFault(path="layers.1", fault=fault, instances=("layers.1", "layers.2"))
    steps = CulpritSearch(model.tree, LAYERS, lambda path: False).region(units_of(model.tree)[0], item, ())
    assert next(steps).instances == ()
    differing = {"layers.1": (Fault(kind=Kind.DIVERGENCE, type="planted"),)}
    with pytest.raises(StopIteration) as stop:
        steps.send(Observation(faults=(fault,), faults_by_instance=differing))
    assert stop.value.value == ((), ("layers.1",))


@pytest.mark.parametrize("excesses", [(1.3, 50.0), (50.0, 1.3)])
def test_a_large_divergence_of_one_call_is_not_taken_for_the_rounding_of_another(excesses: tuple[float, float]):
    walk = walk_over_layers(*(interplay("layers.1", excess) for excess in excesses))
    assert introduced(walk) == [("layers.1", "divergence")]
    assert not notes_of(walk, "layers.1", "accumulated rounding")


def test_what_is_left_out_does_not_hide_what_another_module_brings():
    model = ScriptedModel({"": ["a", "b"]}, [inside("a", ""), inside("b", "")])
    assert introduced(model.walk(skip=["a"])) == [("b", "divergence")]
    assert introduced(model.walk(skip=["b"])) == [("a", "divergence")]
    assert introduced(model.walk(skip=["a", "b"])) == []


def test_a_divergence_inside_another_module_has_its_impact_too():
    walk = ScriptedModel({"": ["p"], "p": ["p.a", "p.b"]}, [inside("p.a", "p")]).walk(context=True)
    (item,) = walk.results[walk.unit_of["p.a"].id].introduced
    assert item.fault.evidence["impact"] == {"text": "of p.a"}


def test_modules_whose_rounding_is_enlarged_do_not_use_up_the_number_that_is_sought():
    names = [f"m{number}" for number in range(MOST_INSIDE + 1)]
    exact = [inside(name, "", is_exact=True, evidence={"excess": 1.5}) for name in names]
    sick = inside("sick", "", evidence={"excess": 1.9})
    walk = ScriptedModel({"": [*names, "sick"]}, [*exact, sick]).walk()
    assert introduced(walk) == [("sick", "divergence")]
    assert len(notes_of(walk, "", "enlarged rounding")) == len(names)
    assert not notes_of(walk, "", "further")


@pytest.mark.parametrize(("is_exact", "expected"), [(True, []), (False, [("a.b", "divergence")])])
def test_a_module_whose_health_is_implied_is_as_exact_as_what_vouches_for_it(is_exact: bool, expected: list):
    children = {"": ["a", "h"], "a": ["a.b"], "a.b": [f"a.b.{n}" for n in range(3)], "h": [f"h.{n}" for n in range(12)]}
    planted = Planted(Kind.DIVERGENCE, together=["a.b"], only_inside="", is_exact=is_exact, evidence={"excess": 1.5})
    walk = ScriptedModel(children, [planted]).walk()
    assert introduced(walk) == expected
    assert walk.results[walk.unit_of["a.b"].id].is_implied is is_exact
