"""When a run that found nothing may be called healthy."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from compilebisect.core.coverage import uncovered_parts
from compilebisect.core.findings import Verdicts
from compilebisect.core.outcome import Fault, Kind, Observation
from compilebisect.core.unit_result import Probe
from compilebisect.core.walk import Walk
from tests.core.scripted_model import Planted, ScriptedModel, introduced

TREE = {"": ["enc", "head"], "enc": ["enc.a", "enc.b"], "enc.a": [], "enc.b": [], "head": []}
WHY = "its check fell over"


class Stumbling(ScriptedModel):
    """The probes of some modules end in a way of their own, those of `purposes` alone."""

    def __init__(self, *paths: str, purposes: Collection[str] = ("check",), **options: object) -> None:
        super().__init__(TREE, **options)  # type: ignore[arg-type]
        self.paths, self.purposes = paths, purposes

    def observe(self, probe: Probe) -> Observation:
        if probe.path in self.paths and probe.purpose in self.purposes:
            self.probes.append(probe)
            return Observation(untested=WHY)
        return super().observe(probe)


def uncovered(walk: Walk) -> list[str]:
    return [part.path for part in uncovered_parts(walk)]


def statuses(walk: Walk) -> dict[str, str]:
    return {entry.path: entry.status for entry in Verdicts(walk, "").modules()}


def test_a_model_that_was_compiled_as_a_whole_has_nothing_uncovered():
    assert uncovered(ScriptedModel(TREE).walk()) == []


@pytest.mark.parametrize("path", ["enc.a", "enc", "head"])
def test_a_module_without_a_verdict_is_covered_by_a_healthy_one_above_it(path: str):
    walk = Stumbling(path).walk(all_modules=True)
    assert (uncovered(walk), statuses(walk)[path]) == ([], "untested")


def test_the_root_is_not_covered_by_healthy_modules_below_it():
    walk = Stumbling("").walk()
    (part,) = uncovered_parts(walk)
    assert (part.path, part.reason) == ("", WHY)
    assert statuses(walk) == {"": "untested", "enc": "ok", "enc.a": "ok", "enc.b": "ok", "head": "ok"}


def test_a_healthy_module_covers_what_is_below_it_and_nothing_beside_it():
    assert uncovered(Stumbling("", "enc.a", "head").walk()) == ["", "head"]


def test_a_module_above_that_could_only_be_looked_at_without_it_does_not_cover_it():
    walk = Stumbling("enc.a", planted=[Planted(Kind.CRASH, "enc")]).walk(all_modules=True)
    assert introduced(walk) == [("enc", "crash")]
    assert uncovered(walk) == ["enc.a"]


def test_what_was_looked_at_without_a_sick_module_covers_the_rest():
    walk = Stumbling("head", planted=[Planted(Kind.ERROR, "enc")]).walk(all_modules=True)
    assert introduced(walk) == [("enc", "error")]
    assert uncovered(walk) == []


def test_a_further_look_that_stumbles_leaves_the_module_untested():
    model = Stumbling("", purposes=("fence",), planted=[Planted(Kind.ERROR, "enc")])
    assert uncovered(model.walk()) == [""]


def test_a_model_whose_further_inputs_could_not_be_looked_at_is_untested():
    assert uncovered(Stumbling("", purposes=("variants",)).walk(variants=2)) == [""]


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.TIMEOUT])
def test_a_model_that_does_not_get_through_its_further_inputs_is_untested(kind: Kind):
    class Ends(ScriptedModel):
        def observe(self, probe: Probe) -> Observation:
            if probe.variants:
                return Observation(faults=(Fault(kind=kind, type="planted", message="it ended"),), completed=False)
            return super().observe(probe)

    (part,) = uncovered_parts(Ends(TREE).walk(variants=2))
    assert (part.path, part.reason) == ("", "the further variants of the inputs were not all run: it ended")


def test_a_look_in_place_that_stumbles_is_noted_at_a_module_with_a_verdict_of_its_own():
    walk = Stumbling("head", purposes=("in place",)).walk(context=True, all_modules=True)
    assert uncovered(walk) == []
    assert walk.results[walk.unit_of["head"].id].notes == [f"not judged in place: {WHY}"]


def test_what_is_left_out_on_purpose_is_no_loss_and_covers_nothing():
    walk = Stumbling("enc.a").walk(skip=["", "enc"])
    assert uncovered(walk) == ["enc.a"]
    assert uncovered(ScriptedModel(TREE).walk(only=["head"])) == []


def test_a_check_that_ends_with_a_kind_that_is_not_looked_for_gives_no_verdict():
    walk = ScriptedModel(TREE, [Planted(Kind.ERROR, "enc.a")]).walk(kinds=[Kind.GRAPH_BREAK])
    assert introduced(walk) == []
    assert uncovered(walk) == ["", "enc", "enc.a"]
    (why,) = {part.reason for part in uncovered_parts(walk)}
    assert "error" in why and "--check" in why


def test_a_fault_of_what_was_left_out_that_hides_the_rest_leaves_the_module_untested():
    class StillFails(ScriptedModel):
        def observe(self, probe: Probe) -> Observation:
            if probe.purpose == "left out":
                other = Fault(kind=Kind.ERROR, type="another")
                return Observation(faults=(other,), completed=False)
            return super().observe(probe)

    walk = StillFails(TREE, [Planted(Kind.ERROR, "enc")]).walk(skip=["enc*"])
    assert uncovered(walk) == [""]
    assert uncovered(ScriptedModel(TREE, [Planted(Kind.ERROR, "enc")]).walk(skip=["enc*"])) == []


class ErrorWithStack(ScriptedModel):
    """Errors name the line that brings them, as those of tracing do."""

    def _fault(self, planted: Planted, probed: str) -> Fault:
        fault = super()._fault(planted, probed)
        if planted.kind is not Kind.ERROR:
            return fault
        frames = self.frames(probed, planted.path)
        return msgspec.structs.replace(fault, frames=frames, location=frames[-1])


def test_behind_an_error_of_what_was_left_out_the_rest_is_looked_at():
    planted = [Planted(Kind.ERROR, "enc.a")]
    walk = ErrorWithStack(TREE, planted).walk(skip=["enc.a"])
    assert (introduced(walk), uncovered(walk)) == ([], [])
    assert statuses(walk)[""] == "error"
    for kind in (Kind.DIVERGENCE, Kind.GRAPH_BREAK):
        walk = ErrorWithStack(TREE, [*planted, Planted(kind, "enc")]).walk(skip=["enc.a"])
        assert introduced(walk) == [("enc", kind.value)]


def test_behind_a_crash_of_what_was_left_out_the_rest_is_looked_at():
    walk = ScriptedModel(TREE, [Planted(Kind.CRASH, "enc.a"), Planted(Kind.DIVERGENCE, "enc")]).walk(skip=["enc.a"])
    assert introduced(walk) == [("enc", "divergence")]


def test_a_module_of_which_nothing_is_compiled_for_breaks_of_what_was_left_out_is_untested():
    class AllEager(ScriptedModel):
        def observe(self, probe: Probe) -> Observation:
            seen = super().observe(probe)
            if probe.path:
                return seen
            return msgspec.structs.replace(seen, is_all_eager=not probe.fenced, graphs=0, frames_compiled=0)

    assert uncovered(AllEager(TREE, [Planted(Kind.GRAPH_BREAK, "enc.a")]).walk(skip=["enc*"])) == [""]


class OneInstance(ScriptedModel):
    """Three equal leaves, of which the check of one gives no verdict; the root is never told of."""

    def __init__(self, ends: Observation) -> None:
        super().__init__({"": ["a", "b", "c"]}, classes=dict.fromkeys("abc", "Leaf"))
        self.ends = ends

    def observe(self, probe: Probe) -> Observation:
        if probe.path == "":
            return Observation(untested=WHY)
        if probe.path == "a":
            return self.ends
        return super().observe(probe)


def test_an_instance_without_a_verdict_says_nothing_of_the_others():
    seen = Observation(graphs=1, untested_instances={"b": WHY})
    walk = OneInstance(seen).walk()
    assert uncovered(walk) == ["", "b"]
    assert statuses(walk) == {"": "untested", "a": "ok", "b": "untested", "c": "ok"}


def test_instances_behind_one_that_hangs_are_untested():
    fault = Fault(kind=Kind.TIMEOUT, type="timeout", evidence={"instance": "b"})
    seen = Observation(faults=(fault,), completed=False, faults_by_instance={"b": (fault,)})
    assert uncovered(OneInstance(seen).walk()) == ["", "c"]


def test_an_instance_whose_own_probe_stumbles_is_untested_and_the_next_one_is_looked_at():
    class Stumbles(OneInstance):
        def observe(self, probe: Probe) -> Observation:
            if probe.path == "b":
                return Observation(untested=WHY)
            return super().observe(probe)

    fault = Fault(kind=Kind.ERROR, type="planted")
    walk = Stumbles(Observation(faults=(fault,), completed=False)).walk()
    assert uncovered(walk) == ["", "b"]
    assert introduced(walk) == [("a", "error")]


def test_a_module_that_was_never_looked_at_is_never_healthy():
    walk = ScriptedModel(TREE).walk()
    walk.results[walk.unit_of["head"].id].observation = None
    walk.results[walk.unit_of[""].id].kept_out.clear()
    assert uncovered(walk) == ["head"]


def test_an_interrupted_walk_says_skipped_of_what_it_did_not_reach():
    model = ScriptedModel(TREE)
    walk = model.walk()
    for result in walk.results.values():
        result.is_done, result.observation = False, None
    assert set(statuses(walk).values()) == {"skipped"}
    assert uncovered_parts(walk) == ()


def test_a_check_that_neither_ran_to_its_end_nor_found_anything_gives_no_verdict():
    walk = ScriptedModel(TREE).walk()
    root = walk.results[walk.unit_of[""].id]
    root.observation = Observation(completed=False)
    assert uncovered(walk) == [""]


class AllEager(ScriptedModel):
    """Nothing of the root is captured, since graphs break in it; `head` has no verdict of its own."""

    def observe(self, probe: Probe) -> Observation:
        if probe.path == "head":
            return Observation(untested=WHY)
        seen = super().observe(probe)
        return msgspec.structs.replace(seen, is_all_eager=probe.path == "", graphs=int(probe.path != ""))


def test_a_module_that_ran_in_eager_mode_for_its_graph_breaks_has_a_verdict_and_covers_nothing():
    model = AllEager(TREE, [Planted(Kind.GRAPH_BREAK, "")])
    walk = model.walk()
    assert introduced(walk) == [("", "graph_break")]
    assert uncovered(walk) == ["head"]
    # where nobody looks for graph breaks, nothing at all is known of it
    assert uncovered(model.walk(kinds=[Kind.DIVERGENCE])) == ["", "head"]
