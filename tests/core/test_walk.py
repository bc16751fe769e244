from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compilebisect.core.findings import Verdicts
from compilebisect.core.outcome import Fault, Kind, Observation, Rung, Stage
from compilebisect.core.unit_result import Probe
from tests.core.scripted_model import Planted, ScriptedModel, introduced

NESTED = {
    "": ["enc", "head"],
    "enc": ["enc.a", "enc.b"],
    "enc.a": ["enc.a.x", "enc.a.y"],
    "enc.b": ["enc.b.x", "enc.b.y"],
    "head": [],
}
ALL_PATHS = ["", "enc", "enc.a", "enc.a.x", "enc.a.y", "enc.b", "enc.b.x", "enc.b.y", "head"]


def test_a_healthy_model_has_no_findings():
    model = ScriptedModel(NESTED)
    walk = model.walk()
    assert introduced(walk) == []
    assert all(not result.inherited for result in walk.results.values())


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize(
    "kind", [Kind.GRAPH_BREAK, Kind.RECOMPILE, Kind.ERROR, Kind.DIVERGENCE, Kind.CRASH, Kind.TIMEOUT]
)
def test_a_single_fault_is_introduced_where_it_was_planted(path: str, kind: Kind):
    model = ScriptedModel(NESTED, [Planted(kind, path)])
    assert introduced(model.walk()) == [(path, kind.value)]


@pytest.mark.parametrize("kind", [Kind.GRAPH_BREAK, Kind.RECOMPILE, Kind.ERROR, Kind.DIVERGENCE, Kind.CRASH])
def test_ancestors_inherit_a_fault_and_siblings_stay_clean(kind: Kind):
    walk = ScriptedModel(NESTED, [Planted(kind, "enc.a.x")]).walk()
    inherits = {unit.path for unit in walk.units if walk.results[unit.id].inherited}
    assert inherits == {"", "enc", "enc.a"}


def test_two_different_faults_on_one_path_are_both_introduced():
    model = ScriptedModel(
        NESTED, [Planted(Kind.ERROR, "enc.a.x", type_name="TypeError"), Planted(Kind.DIVERGENCE, "enc.a")]
    )
    assert introduced(model.walk()) == [("enc.a", "divergence"), ("enc.a.x", "error")]


def test_the_same_fault_in_parent_and_child_is_introduced_by_both():
    model = ScriptedModel(NESTED, [Planted(Kind.DIVERGENCE, "enc.a.x"), Planted(Kind.DIVERGENCE, "enc.a")])
    assert introduced(model.walk()) == [("enc.a", "divergence"), ("enc.a.x", "divergence")]


def test_a_parent_with_another_error_than_its_child_introduces_its_own():
    model = ScriptedModel(
        NESTED, [Planted(Kind.ERROR, "enc.a.x", type_name="A"), Planted(Kind.ERROR, "enc", type_name="B")]
    )
    assert introduced(model.walk()) == [("enc", "error"), ("enc.a.x", "error")]


def test_an_error_that_another_modules_wrong_result_brings_is_inherited():
    class WrongShape(ScriptedModel):
        """What `a` gives makes the code of `b` fail, which is healthy by itself."""

        def observe(self, probe: Probe) -> Observation:
            seen = super().observe(probe)
            if probe.path in ("", "p") and not {"p.a", "p.b"} & set(probe.fenced):
                frames = self.frames(probe.path, "p.b")
                fault = Fault(kind=Kind.ERROR, type="sizes differ", frames=frames, location=frames[-1])
                return msgspec.structs.replace(seen, faults=(*seen.faults, fault))
            return seen

    tree = {"": ["p"], "p": ["p.a", "p.b"], "p.a": [], "p.b": []}
    assert introduced(WrongShape(tree, [Planted(Kind.ERROR, "p.a")]).walk()) == [("p.a", "error")]
    # with nobody to lay it to, it belongs to the code that fails
    assert introduced(WrongShape(tree).walk()) == [("p.b", "error")]


def test_an_interplay_of_children_names_the_smallest_region():
    children = {"": ["a", "b", "c", "d", "e"]}
    model = ScriptedModel(children, [Planted(Kind.DIVERGENCE, together=["", "b", "d"])])
    walk = model.walk()
    assert introduced(walk) == [("", "divergence")]
    assert [item.region for result in walk.results.values() for item in result.introduced] == [("b", "d")]


@pytest.mark.parametrize("path", ["enc.b", "enc.b.x"])
def test_a_divergence_that_a_module_alone_brings_inside_another_one_is_its_own(path: str):
    """By itself it is within its tolerance, and the module above it would be blamed."""
    model = ScriptedModel(NESTED, [Planted(Kind.DIVERGENCE, path, only_inside="enc")])
    walk = model.walk()
    assert introduced(walk) == [(path, "divergence")]
    (item,) = walk.results[walk.unit_of[path].id].introduced
    assert item.seen_in == "enc"


def test_a_divergence_for_which_a_module_needs_compiled_code_around_it_is_an_interplay():
    model = ScriptedModel(NESTED, [Planted(Kind.DIVERGENCE, together=["enc", "enc.b"])])
    walk = model.walk()
    assert introduced(walk) == [("enc", "divergence")]
    assert walk.results[walk.unit_of["enc"].id].introduced[0].region == ("enc.b",)


@pytest.mark.parametrize(
    ("together", "only_inside", "excess", "is_rounding"),
    [
        (["", "head"], None, 1.3, False),  # two modules are no sum of many
        (["", *(f"net.{number}" for number in range(9))], None, 1.3, True),
        (["", *(f"net.{number}" for number in range(9))], None, 2.5, False),
        (["net", *(f"net.{number}" for number in range(9))], "", 1.3, True),  # all of it inside one child
        (["net"], "", 1.3, False),
        (["net.4"], "", 1.3, False),
        ([""], None, 1.3, False),
    ],
)
def test_a_small_divergence_that_takes_many_modules_is_accumulated_rounding(
    together: list[str], only_inside: str | None, excess: float, is_rounding: bool
):
    children = {"": ["net", "head"], "net": [f"net.{number}" for number in range(10)]}
    planted = Planted(Kind.DIVERGENCE, together=together, only_inside=only_inside, evidence={"excess": excess})
    walk = ScriptedModel(children, [planted]).walk()
    notes = [note for result in walk.results.values() for note in result.notes]
    assert len([note for note in notes if "accumulated rounding" in note]) == is_rounding
    assert bool(introduced(walk)) is not is_rounding


@pytest.mark.parametrize(("excess", "is_rounding"), [(1.9, True), (2.1, False)])
def test_what_a_module_above_makes_of_the_last_bits_of_a_right_result_is_rounding(excess: float, is_rounding: bool):
    planted = Planted(Kind.DIVERGENCE, "enc.b.x", only_inside="", is_exact=True, evidence={"excess": excess})
    walk = ScriptedModel(NESTED, [planted]).walk()
    assert introduced(walk) == ([] if is_rounding else [("enc.b.x", "divergence")])


def test_a_divergence_inside_another_module_is_found_in_the_instance_that_brings_it():
    layers = [f"layers.{number}" for number in range(3)]
    children = {"": ["layers"], "layers": layers, **{layer: [f"{layer}.fc", f"{layer}.act"] for layer in layers}}
    classes = dict.fromkeys(layers, "Layer")
    classes |= {f"{layer}.{name}": name for layer in layers for name in ("fc", "act")}
    planted = Planted(Kind.DIVERGENCE, "layers.1.fc", only_inside="layers.1")
    model = ScriptedModel(children, [planted], classes=classes)
    walk = model.walk()
    assert introduced(walk) == [("layers.1.fc", "divergence")]
    (item,) = walk.results[walk.unit_of["layers.1.fc"].id].introduced
    assert item.instances == ("layers.1.fc",)


def test_a_fault_of_the_modules_own_code_has_no_region():
    walk = ScriptedModel(NESTED, [Planted(Kind.ERROR, "enc.a")]).walk()
    assert [item.region for result in walk.results.values() for item in result.introduced] == [()]


def test_an_interplay_deep_inside_is_given_to_the_smallest_common_ancestor():
    model = ScriptedModel(NESTED, [Planted(Kind.ERROR, together=["enc.b.x", "enc.b.y"])])
    assert introduced(model.walk()) == [("enc.b", "error")]


def test_nothing_waits_twice_for_a_crash():
    model = ScriptedModel(NESTED, [Planted(Kind.CRASH, "enc.a.x", lowest_rung=Rung.INDUCTOR)])
    model.walk()
    fatal = [probe for probe in list(model.probes) if any(f.kind is Kind.CRASH for f in model.observe(probe).faults)]
    assert {probe.path for probe in fatal} == {"enc.a.x"}


@pytest.mark.parametrize(
    ("rung", "stage"),
    [
        (Rung.EAGER, Stage.DYNAMO),
        (Rung.AOT_EAGER, Stage.AOT_AUTOGRAD),
        (Rung.AOT_EAGER_DECOMP_PARTITION, Stage.AOT_AUTOGRAD),
        (Rung.INDUCTOR, Stage.INDUCTOR),
    ],
)
def test_the_ladder_names_the_stage(rung: Rung, stage: Stage):
    walk = ScriptedModel(NESTED, [Planted(Kind.DIVERGENCE, "enc.b", lowest_rung=rung)]).walk()
    assert [item.fault.stage for result in walk.results.values() for item in result.introduced] == [stage]


@pytest.mark.parametrize(
    ("backend", "rung", "stage", "probes"),
    [
        ("eager", Rung.EAGER, Stage.DYNAMO, 0),
        ("aot_eager", Rung.EAGER, Stage.DYNAMO, 1),
        ("aot_eager", Rung.AOT_EAGER, Stage.AOT_AUTOGRAD, 1),
        ("aot_eager_decomp_partition", Rung.AOT_EAGER_DECOMP_PARTITION, Stage.AOT_AUTOGRAD, 2),
        ("somebodys_own", Rung.EAGER, Stage.DYNAMO, 1),
        ("somebodys_own", Rung.INDUCTOR, None, 1),
    ],
)
@pytest.mark.parametrize("kind", [Kind.DIVERGENCE, Kind.ERROR])
def test_another_backend_has_the_rungs_below_it(backend: str, rung: Rung, stage: Stage | None, probes: int, kind: Kind):
    planted = Planted(kind, "enc.b", lowest_rung=rung, stage=Stage.RUNTIME if kind is Kind.ERROR else None)
    model = ScriptedModel(NESTED, [planted])
    walk = model.walk(backend=backend)
    expected = Stage.RUNTIME if stage is None and kind is Kind.ERROR else stage
    assert [item.fault.stage for result in walk.results.values() for item in result.introduced] == [expected]
    assert sum(probe.purpose == "ladder" for probe in model.probes) == probes


@pytest.mark.parametrize(
    ("rung", "stage"),
    [
        (Rung.EAGER, Stage.DYNAMO),
        (Rung.AOT_EAGER_DECOMP_PARTITION, Stage.AOT_AUTOGRAD),
        (Rung.INDUCTOR, Stage.RUNTIME),
    ],
)
def test_an_error_of_a_compiled_run_is_of_the_first_stage_that_shows_it(rung: Rung, stage: Stage):
    planted = Planted(Kind.ERROR, "enc.b", lowest_rung=rung, stage=Stage.RUNTIME)
    walk = ScriptedModel(NESTED, [planted]).walk()
    assert [item.fault.stage for result in walk.results.values() for item in result.introduced] == [stage]


def test_equal_modules_are_one_unit_and_probed_once():
    children = {"": [f"layers.{n}" for n in range(12)], **{f"layers.{n}": [f"layers.{n}.fc"] for n in range(12)}}
    paths = [path for below in children.values() for path in below]
    classes = {path: "Linear" if path.endswith("fc") else "Layer" for path in paths}
    model = ScriptedModel(children, [Planted(Kind.ERROR, f"layers.{n}.fc") for n in range(12)], classes=classes)
    walk = model.walk()
    assert len(walk.units) == 3
    assert introduced(walk) == [("layers.0.fc", "error")]


def test_a_container_that_is_nearly_its_parent_is_implied_by_a_healthy_parent():
    children = {"": ["model", "head"], "model": ["model.a", "model.b", "model.c"]}
    model = ScriptedModel(children)
    walk = model.walk()
    assert [walk.units[key].path for key, result in walk.results.items() if result.is_implied] == ["model"]
    assert "model" not in {probe.path for probe in model.probes}


def test_all_modules_are_compiled_on_request():
    children = {"": ["model", "head"], "model": ["model.a", "model.b", "model.c"]}
    model = ScriptedModel(children)
    model.walk(all_modules=True)
    assert "model" in {probe.path for probe in model.probes}


def test_a_parent_whose_output_is_constant_vouches_for_nothing():
    children = {"": ["model", "head"], "model": ["model.a", "model.b", "model.c"]}
    model = ScriptedModel(children, blind=[""])
    model.walk()
    assert "model" in {probe.path for probe in model.probes}


def test_a_deferred_container_is_checked_before_its_sick_parent_is_blamed():
    children = {"": ["model", "head"], "model": ["model.a", "model.b", "model.c"]}
    model = ScriptedModel(children, [Planted(Kind.DIVERGENCE, together=["model.a", "model.b"])])
    assert introduced(model.walk()) == [("model", "divergence")]


def test_modules_that_are_left_out_are_not_probed():
    model = ScriptedModel(NESTED, [Planted(Kind.ERROR, "enc.a.x")])
    walk = model.walk(skip=["enc.a*"])
    assert not {probe.path for probe in model.probes if probe.purpose == "check"} & {"enc.a", "enc.a.x", "enc.a.y"}
    assert walk.results[walk.unit_of["enc.a"].id].is_left_out


def test_kinds_that_are_not_wanted_are_no_findings():
    model = ScriptedModel(NESTED, [Planted(Kind.GRAPH_BREAK, "enc.a.x"), Planted(Kind.DIVERGENCE, "enc.b.x")])
    assert introduced(model.walk(kinds=[Kind.DIVERGENCE])) == [("enc.b.x", "divergence")]


def test_several_probes_can_be_under_way_at_once():
    model = ScriptedModel(NESTED)
    from compilebisect.core.units import units_of
    from compilebisect.core.walk import Walk

    walk = Walk(model.tree, units_of(model.tree))
    first, second = walk.next_probe(), walk.next_probe()
    assert first is not None and second is not None and first.path != second.path
    walk.record(second, model.observe(second))
    walk.record(first, model.observe(first))
    assert walk.remaining() == len(walk.units) - 2


@st.composite
def trees(draw: st.DrawFn) -> dict[str, list[str]]:
    size = draw(st.integers(1, 14))
    parents = [draw(st.integers(0, number)) for number in range(size)]
    paths = [""]
    children: dict[str, list[str]] = {"": []}
    for number, parent in enumerate(parents):
        path = f"{paths[parent]}.m{number}".lstrip(".")
        children[paths[parent]].append(path)
        children[path] = []
        paths.append(path)
    return children


@given(trees(), st.data())
@settings(max_examples=150, deadline=None)
def test_any_single_fault_in_any_tree_is_found_at_its_module(children: dict[str, list[str]], data: st.DataObject):
    kind = data.draw(st.sampled_from([Kind.GRAPH_BREAK, Kind.ERROR, Kind.DIVERGENCE, Kind.CRASH]))
    path = data.draw(st.sampled_from(sorted(children)))
    assert introduced(ScriptedModel(children, [Planted(kind, path)]).walk()) == [(path, kind.value)]


@given(trees(), st.data())
@settings(max_examples=150, deadline=None)
def test_two_faults_are_never_blamed_on_a_healthy_module(children: dict[str, list[str]], data: st.DataObject):
    kinds = st.sampled_from([Kind.GRAPH_BREAK, Kind.ERROR, Kind.DIVERGENCE, Kind.CRASH])
    paths = data.draw(st.lists(st.sampled_from(sorted(children)), min_size=2, max_size=2, unique=True))
    planted = [Planted(data.draw(kinds), path, type_name=f"type {number}") for number, path in enumerate(paths)]
    found = introduced(ScriptedModel(children, planted).walk())
    assert found == sorted((item.path, item.kind.value) for item in planted)


def test_the_instance_that_shows_a_divergence_is_the_one_that_is_searched():
    children = {"": ["a", "b"], "a": ["a.x"], "b": ["b.x"]}
    classes = {"a": "Block", "b": "Block", "a.x": "Leaf", "b.x": "Leaf"}

    class OnlySecond(ScriptedModel):
        def observe(self, probe):
            self.probes.append(probe)
            shows = probe.path == "b" or (probe.path == "a" and probe.purpose == "check")
            if not shows:
                return Observation(graphs=1, frames_compiled=1)
            fault = Fault(kind=Kind.DIVERGENCE, type="values", evidence={"instance": "b"})
            return Observation(faults=(fault,), graphs=1, faults_by_instance={"b": (fault,)})

    model = OnlySecond(children, classes=classes)
    model.walk()
    assert {probe.path for probe in model.probes if probe.purpose in ("region", "ladder")} == {"b"}


def test_what_was_left_out_gets_no_finding_from_its_parents():
    model = ScriptedModel(NESTED, [Planted(Kind.GRAPH_BREAK, "enc.a.x")])
    assert introduced(model.walk(skip=["enc.a.x"])) == []


def repeated(layers: int, below: tuple[str, ...] = ("fc", "act")) -> tuple[dict[str, list[str]], dict[str, str]]:
    """A model of equal layers, each with the same modules below, and the classes of its modules."""
    names = [f"layers.{number}" for number in range(layers)]
    children = {"": names, **{name: [f"{name}.{part}" for part in below] for name in names}}
    classes = {f"{name}.{part}": part for name in names for part in below}
    classes.update(dict.fromkeys(names, "Layer"))
    return children, {"": "Net", **classes}


def test_every_instance_of_a_repeated_module_is_run_and_one_is_compiled():
    children, classes = repeated(12)
    model = ScriptedModel(children, classes=classes)
    model.walk()
    assert {probe.path: len(probe.instances) for probe in model.probes} == {
        "layers.0.fc": 11,
        "layers.0.act": 11,
        "layers.0": 11,
        "": 0,
    }


def test_values_are_run_only_where_they_are_compared():
    children, classes = repeated(12)
    model = ScriptedModel(children, classes=classes)
    model.walk(kinds=[Kind.GRAPH_BREAK])
    assert not any(probe.instances for probe in model.probes)


def test_a_skipped_instance_is_left_out_and_its_siblings_are_not():
    children, classes = repeated(4)
    planted = [Planted(Kind.GRAPH_BREAK, f"layers.{number}.fc") for number in range(4)]
    walk = ScriptedModel(children, planted, classes=classes).walk(only=["layers.2.fc"])
    (finding,) = Verdicts(walk, "").findings
    assert (finding.module, finding.also_in) == ("layers.2.fc", ())


class FailsAt(ScriptedModel):
    """Three equal leaves, of which some end the run of whoever compiles or runs them."""

    def __init__(self, kinds: dict[str, Kind], diverges: str | None = None) -> None:
        super().__init__({"": ["a", "b", "c"]}, classes={"a": "Leaf", "b": "Leaf", "c": "Leaf"})
        self.kinds, self.diverges = kinds, diverges

    def observe(self, probe: Probe) -> Observation:
        self.probes.append(probe)
        by_instance = {}
        for path in (probe.path, *probe.instances):
            evidence = {} if path == probe.path else {"instance": path}
            if path in self.kinds:
                fault = Fault(kind=self.kinds[path], type="planted", evidence=evidence)
                if evidence:
                    by_instance[path] = (fault,)
                return Observation(faults=(fault,), completed=False, faults_by_instance=by_instance, graphs=1)
            if path == self.diverges:
                fault = Fault(kind=Kind.DIVERGENCE, type="values", evidence={"instance": path})
                by_instance[path] = (fault,)
        faults = tuple(fault for found in by_instance.values() for fault in found)
        return Observation(faults=faults, faults_by_instance=by_instance, graphs=1)


@pytest.mark.parametrize("kind", [Kind.ERROR, Kind.CRASH])
@pytest.mark.parametrize("path", ["a", "b", "c"])
def test_an_instance_that_ends_the_run_is_named_and_the_others_are_run_without_it(kind: Kind, path: str):
    other = "c" if path != "c" else "a"
    model = FailsAt({path: kind}, diverges=other)
    found = {(finding.module, finding.also_in, finding.kind) for finding in Verdicts(model.walk(), "").findings}
    assert found == {(path, (), kind), (other, (), Kind.DIVERGENCE)}


@pytest.mark.parametrize("kind", [Kind.ERROR, Kind.CRASH, Kind.TIMEOUT])
def test_a_fault_of_the_code_is_one_of_all_instances(kind: Kind):
    model = FailsAt(dict.fromkeys("abc", kind))
    (finding,) = Verdicts(model.walk(), "").findings
    assert (finding.module, finding.also_in) == ("a", ("b", "c"))
    assert sum(probe.purpose == "instances" for probe in model.probes) == (kind is not Kind.TIMEOUT)


@pytest.mark.parametrize("path", ["layers.7.fc", "layers.7"])
def test_a_divergence_of_a_later_instance_is_found_in_it(path: str):
    children, classes = repeated(12)
    walk = ScriptedModel(children, [Planted(Kind.DIVERGENCE, path)], classes=classes).walk()
    assert introduced(walk) == [(path, "divergence")]
    statuses = {entry.path: (entry.status, entry.origin) for entry in Verdicts(walk, "").modules()}
    assert statuses[path] == ("divergence", "introduced")
    assert {path for path, status in statuses.items() if status == ("divergence", "inherited")} == (
        {""} if path == "layers.7" else {"", "layers.7"}
    )


def test_two_instances_with_different_culprits_are_told_apart():
    children, classes = repeated(6)
    planted = [Planted(Kind.DIVERGENCE, "layers.2.fc"), Planted(Kind.DIVERGENCE, "layers.4")]
    walk = ScriptedModel(children, planted, classes=classes).walk()
    found = {(finding.module, finding.also_in) for finding in Verdicts(walk, "").findings}
    assert found == {("layers.2.fc", ()), ("layers.4", ())}


def test_an_interplay_inside_a_later_instance_names_its_region():
    children, classes = repeated(6)
    walk = ScriptedModel(
        children, [Planted(Kind.DIVERGENCE, together=["layers.4.fc", "layers.4.act"])], classes=classes
    ).walk()
    (item,) = [item for result in walk.results.values() for item in result.introduced]
    assert (item.path, item.region) == ("layers.4", ("layers.4.fc", "layers.4.act"))


def test_layers_that_do_not_compile_leave_their_parts_to_be_run_one_by_one():
    children, classes = repeated(4)
    planted = [Planted(Kind.ERROR, f"layers.{number}") for number in range(4)]
    walk = ScriptedModel(children, [*planted, Planted(Kind.DIVERGENCE, "layers.3.fc")], classes=classes).walk()
    assert ("layers.3.fc", "divergence") in introduced(walk)


def test_the_same_divergence_in_all_instances_is_one_finding_and_searched_once():
    children, classes = repeated(12)
    model = ScriptedModel(
        children, [Planted(Kind.DIVERGENCE, f"layers.{number}.act") for number in range(12)], classes=classes
    )
    (finding,) = Verdicts(model.walk(), "").findings
    assert (finding.module, len(finding.also_in)) == ("layers.0.act", 11)
    assert sum(probe.purpose == "ladder" for probe in model.probes) <= 3


@given(trees(), st.integers(2, 4), st.data())
@settings(max_examples=150, deadline=None)
def test_any_divergence_in_any_instance_is_found_at_its_module(
    block: dict[str, list[str]], count: int, data: st.DataObject
):
    names = [f"b{number}" for number in range(count)]
    children = {"": list(names)}
    classes = {"": "Net"}
    for name in names:
        for path, below in block.items():
            place = f"{name}.{path}".rstrip(".")
            children[place] = [f"{name}.{child}" for child in below]
            classes[place] = f"Block.{path}"
    paths = data.draw(st.lists(st.sampled_from(sorted(children)), min_size=1, max_size=2, unique=True))
    model = ScriptedModel(children, [Planted(Kind.DIVERGENCE, path, type_name=path) for path in paths], classes=classes)
    found = {
        (path, finding.kind.value)
        for finding in Verdicts(model.walk(), "").findings
        for path in (finding.module, *finding.also_in)
    }
    assert found == {(path, "divergence") for path in paths}


def test_a_fault_of_modules_left_out_is_not_given_to_their_parent():
    walk = ScriptedModel(NESTED, [Planted(Kind.DIVERGENCE, "enc.a.x")]).walk(skip=["enc.a.x"])
    assert introduced(walk) == []
    entries = {entry.path: entry for entry in Verdicts(walk, "").modules()}
    assert (entries["enc.a"].status, entries["enc.a"].origin) == ("divergence", "inherited")
    assert any("left out" in note for note in entries["enc.a"].notes)
    assert not entries["enc.b"].notes


def test_a_parent_brings_its_own_fault_also_where_a_child_is_left_out():
    walk = ScriptedModel(NESTED, [Planted(Kind.DIVERGENCE, "enc.a")]).walk(skip=["enc.a.x"])
    assert introduced(walk) == [("enc.a", "divergence")]
