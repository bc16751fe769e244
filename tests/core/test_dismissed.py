"""What becomes of faults that are no findings of their own: hidden ones without a proof, and what merely follows."""

from __future__ import annotations

import msgspec

from compilebisect.core.dismissed import NOT_PROVED, SEEN_ONCE
from compilebisect.core.findings import Verdicts
from compilebisect.core.fingerprint import fault_key
from compilebisect.core.outcome import Fault, Kind
from tests.core.scripted_model import Planted, ScriptedModel
from tests.core.test_hidden_breaks import WithHidden, model_with_one_break


def verdicts_of(model: ScriptedModel) -> Verdicts:
    return Verdicts(model.walk(), "/project")


def notes_at(found: Verdicts, path: str) -> list[str]:
    return [note for entry in found.modules() if entry.path == path for note in entry.notes]


def with_two_hidden() -> tuple[WithHidden, Fault, Fault]:
    model, known = model_with_one_break()
    second = model.break_in("a.x", "second", line=5, behind=known)
    third = model.break_in("a.x", "third", line=6, behind=second)
    model.hidden["a.x"] = [second, third]
    return model, second, third


def test_a_hidden_break_that_no_script_shows_is_a_note_at_the_one_that_hides_it() -> None:
    model, _, _ = with_two_hidden()
    found = verdicts_of(model)
    assert found.hidden() == ["F2", "F3"]
    found.dismiss({"F2": NOT_PROVED, "F3": NOT_PROVED})
    (left,) = found.findings
    assert (left.id, left.module) == ("F1", "a.x")
    assert left.evidence["not_proved"] == [
        "graph break at model.py:26 (second) (no script shows it)",
        "graph break at model.py:27 (third) (no script shows it)",
    ]
    assert notes_at(found, "a.x")[-1] == (
        "graph break at model.py:27 (third): no finding, for it shows only once F1 is out of the way, "
        "and no script shows it"
    )


def test_a_proved_break_behind_one_without_a_proof_stays_and_the_numbers_close_up() -> None:
    model, _, _ = with_two_hidden()
    found = verdicts_of(model)
    third = found.faults["F3"]
    found.dismiss({"F2": NOT_PROVED})
    assert [finding.id for finding in found.findings] == ["F1", "F2"]
    assert found.faults["F2"] is third and found.hidden() == ["F2"]
    assert found.findings[1].evidence["hidden_behind"] == "model.py:26"


def test_a_module_whose_only_break_is_taken_back_has_what_it_inherits() -> None:
    model, known = model_with_one_break(skips="a")
    model.hidden["a"] = [model.break_in("a", "own", line=5, behind=known)]
    found = verdicts_of(model)
    found.dismiss({"F2": NOT_PROVED})
    entries = {entry.path: entry for entry in found.modules()}
    assert (entries["a"].status, entries["a"].origin, entries["a"].findings) == ("graph_break", "inherited", ())
    assert (entries["a.x"].origin, entries["a.x"].findings) == ("introduced", ("F1",))
    assert "not_proved" in found.findings[0].evidence


def test_a_break_that_some_run_of_the_model_shows_as_it_is_is_not_hidden() -> None:
    model, second, _ = with_two_hidden()
    walk = model.walk()
    root = walk.results[walk.unit_of[""].id]
    assert root.observation is not None
    root.observation = msgspec.structs.replace(root.observation, faults=(*root.observation.faults, second))
    assert len(Verdicts(walk, "/project").hidden()) == 1


def test_what_follows_from_a_finding_is_told_there_and_is_none_itself() -> None:
    model = WithHidden({}, [Planted(Kind.GRAPH_BREAK, "a.x")])
    known = model._fault(model.planted[0], "a.x")
    found = verdicts_of(model)
    unit = found.walk.results[found.walk.unit_of["a.x"].id]
    (item,) = unit.introduced
    evidence = {"follows_from": list(fault_key(known))}
    follower = msgspec.structs.replace(model.break_in("a.x", "later", line=6), evidence=evidence)
    unit.introduced.append(msgspec.structs.replace(item, fault=follower))
    (left,) = Verdicts(found.walk, "/project").findings
    assert left.evidence["follows"] == ["graph break at model.py:27 (later)"]
    assert "follows_from" not in left.evidence
    # without the one that it follows from it counts again
    unit.introduced.remove(item)
    assert [f.location.line for f in Verdicts(found.walk, "/project").findings if f.location] == [27]


def test_breaks_that_are_said_to_follow_from_each_other_are_both_kept() -> None:
    model = WithHidden({}, [Planted(Kind.GRAPH_BREAK, "a.x")])
    found = verdicts_of(model)
    unit = found.walk.results[found.walk.unit_of["a.x"].id]
    (item,) = unit.introduced
    one, other = (model.break_in("a.x", name, line=line) for name, line in (("one", 5), ("other", 6)))
    unit.introduced = [
        msgspec.structs.replace(
            item, fault=msgspec.structs.replace(fault, evidence={"follows_from": list(fault_key(cause))})
        )
        for fault, cause in ((one, other), (other, one))
    ]
    assert len(Verdicts(found.walk, "/project").findings) == 2


def test_a_fault_is_shown_above_only_where_no_other_finding_explains_that() -> None:
    children = {"": ["a", "b"], "a": [], "b": []}
    one = verdicts_of(ScriptedModel(children, [Planted(Kind.DIVERGENCE, "a")]))
    assert one.shows_above("F1")
    two = verdicts_of(ScriptedModel(children, [Planted(Kind.DIVERGENCE, "a"), Planted(Kind.DIVERGENCE, "b")]))
    assert not two.shows_above("F1") and not two.shows_above("F2")
    root = verdicts_of(ScriptedModel(children, [Planted(Kind.DIVERGENCE, "")]))
    assert not root.shows_above("F1")


def test_a_fault_that_was_seen_once_leaves_a_note_and_a_healthy_status() -> None:
    found = verdicts_of(ScriptedModel({"": ["a"], "a": []}, [Planted(Kind.DIVERGENCE, "")]))
    found.dismiss({"F1": SEEN_ONCE})
    assert not found.findings
    assert notes_at(found, "") == [f"divergence (planted): no finding, for {SEEN_ONCE}"]
    assert {entry.status for entry in found.modules()} == {"ok"}
