"""Which units are looked behind, and what becomes of what is seen there."""

from __future__ import annotations

import msgspec
import pytest

from compilebisect.core.findings import Verdicts
from compilebisect.core.fingerprint import fault_key
from compilebisect.core.outcome import Fault, Frame, Kind, Observation
from compilebisect.core.unit_result import Probe
from tests.core.scripted_model import Planted, ScriptedModel

NESTED = {"": ["a", "b"], "a": ["a.x"], "b": []}


class WithHidden(ScriptedModel):
    """`hidden` maps modules to breaks that show there once others are mended; all others skip the frame `skips`."""

    def __init__(self, hidden: dict[str, list[Fault]], planted: list[Planted], skips: str = "a.x") -> None:
        super().__init__(NESTED, planted)
        self.hidden = hidden
        self.skips = skips
        self.end: Observation | None = None

    def observe(self, probe: Probe) -> Observation:
        seen = super().observe(probe)
        if probe.mends_breaks:
            return self.end or Observation(faults=tuple(self.hidden.get(probe.path, ())), notes=("looked",))
        frame = {"file": "model.py", "line": self._first_line(self.skips), "function": "forward"}
        faults = tuple(
            msgspec.structs.replace(fault, evidence={"effect": "frame skipped", "skipped_frames": [frame]})
            if fault.kind is Kind.GRAPH_BREAK
            else fault
            for fault in seen.faults
        )
        return msgspec.structs.replace(seen, faults=faults)

    def break_in(self, path: str, code: str, *, line: int, behind: Fault | None = None) -> Fault:
        first = self._first_line(path)
        frame = Frame("model.py", first + line, "forward", code)
        evidence = {"hidden_behind": list(fault_key(behind))} if behind else {"graphs": {"with": 2, "without": 1}}
        return Fault(kind=Kind.GRAPH_BREAK, type=code, frames=(frame,), location=frame, evidence=evidence)

    def looks(self) -> list[str]:
        return [probe.path for probe in self.probes if probe.mends_breaks]


def model_with_one_break(**options: str) -> tuple[WithHidden, Fault]:
    model = WithHidden({}, [Planted(Kind.GRAPH_BREAK, "a.x")], **options)
    return model, model._fault(model.planted[0], "a.x")


def test_only_the_module_that_breaks_is_looked_behind_where_no_other_is_skipped() -> None:
    model, _ = model_with_one_break()
    model.walk()
    assert model.looks() == ["a.x"]


def test_a_module_whose_code_is_skipped_for_a_break_below_is_looked_behind_too() -> None:
    model, known = model_with_one_break(skips="a")
    own = model.break_in("a", "own", line=5, behind=known)
    model.hidden["a"] = [own]
    found = Verdicts(model.walk(), "/project")
    assert model.looks() == ["a.x", "a"]
    assert [(f.id, f.module, f.evidence.get("hidden_behind")) for f in found.findings] == [
        ("F1", "a.x", None),
        ("F2", "a", "F1"),
    ]
    assert (look := next(probe for probe in model.probes if probe.mends_breaks and probe.path == "a"))
    assert look.breaks_below == (fault_key(known),)


def test_a_hidden_break_is_a_finding_of_its_own_and_the_others_learn_what_they_cost() -> None:
    model, known = model_with_one_break()
    hidden = model.break_in("a.x", "behind", line=6, behind=known)
    model.hidden["a.x"] = [msgspec.structs.replace(known, evidence={"graphs": {"with": 0, "without": 1}}), hidden]
    found = Verdicts(model.walk(), "/project")
    first, second = found.findings
    assert (first.module, second.module, second.evidence["hidden_behind"]) == ("a.x", "a.x", "F1")
    assert first.evidence["consequence"] == ("all of Class_a.x.forward runs in eager mode; 0 graphs instead of 1")
    assert "hidden" in second.summary


@pytest.mark.parametrize(
    ("effect", "how_much"), [("frame skipped", "all"), ("rest of the function skipped", "the rest")]
)
def test_a_break_tells_which_functions_of_modules_above_run_eager_for_it(effect: str, how_much: str) -> None:
    class CalledInLoop(WithHidden):
        def observe(self, probe: Probe) -> Observation:
            seen = ScriptedModel.observe(self, probe)
            if probe.path != "" or probe.mends_breaks:
                return seen
            frame = {"file": "model.py", "line": 1, "function": "forward", "block": "`for` loop", "block_line": 3}
            fault = msgspec.structs.replace(seen.faults[0], evidence={"effect": effect, "skipped_frames": [frame]})
            return msgspec.structs.replace(seen, faults=(fault,))

    (finding,) = Verdicts(CalledInLoop({}, [Planted(Kind.GRAPH_BREAK, "a.x")]).walk(), "/project").findings
    assert finding.evidence["consequence"] == (
        f"{how_much} of Class_root.forward above it runs in eager mode, since the call is in a `for` loop at model.py:3"
    )
    assert finding.evidence["skipped_above"] == ["model.py:1 in Class_root.forward"]


def test_what_a_mended_module_shows_besides_hidden_breaks_is_no_finding() -> None:
    model, _ = model_with_one_break()
    model.hidden["a.x"] = [
        Fault(kind=Kind.DIVERGENCE, type="values"),
        Fault(kind=Kind.ERROR, type="TypeError"),
        model.break_in("a.x", "not hidden by any", line=7),
    ]
    assert len(Verdicts(model.walk(), "/project").findings) == 1


def test_a_look_that_ends_the_process_is_a_note_and_no_fault() -> None:
    model, _ = model_with_one_break()
    model.end = Observation(faults=(Fault(kind=Kind.TIMEOUT, type="dynamo"),), completed=False)
    found = Verdicts(model.walk(), "/project")
    assert [finding.kind for finding in found.findings] == [Kind.GRAPH_BREAK]
    assert any("did not come to an end" in note for entry in found.modules() for note in entry.notes)


def test_no_look_where_graph_breaks_are_not_wanted() -> None:
    model, _ = model_with_one_break()
    model.walk(kinds=(Kind.ERROR,))
    assert not model.looks()
