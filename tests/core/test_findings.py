from __future__ import annotations

import pytest

from compilebisect.core.findings import Verdicts, summary_of
from compilebisect.core.outcome import Fault, Kind, Rung
from tests.core.scripted_model import Planted, ScriptedModel

NESTED = {"": ["a", "b"], "a": ["a.x"], "b": ["b.x"]}


def verdicts(model, **options):
    return Verdicts(model.walk(**options), "/project")


def statuses(found):
    return {entry.path: (entry.status, entry.origin) for entry in found.modules()}


def test_introduced_and_inherited_are_told_apart_in_every_module():
    found = verdicts(ScriptedModel(NESTED, [Planted(Kind.GRAPH_BREAK, "a.x")]))
    assert statuses(found) == {
        "": ("graph_break", "inherited"),
        "a": ("graph_break", "inherited"),
        "a.x": ("graph_break", "introduced"),
        "b": ("ok", None),
        "b.x": ("ok", None),
    }
    (finding,) = found.findings
    assert (finding.id, finding.module, finding.location.code) == ("F1", "a.x", "line of a.x")


def test_equal_modules_share_one_finding():
    children = {"": [f"layers.{n}" for n in range(4)]}
    classes = {f"layers.{n}": "Layer" for n in range(4)}
    model = ScriptedModel(children, [Planted(Kind.ERROR, f"layers.{n}") for n in range(4)], classes=classes)
    found = verdicts(model)
    (finding,) = found.findings
    assert (finding.module, finding.also_in) == ("layers.0", ("layers.1", "layers.2", "layers.3"))
    assert {entry.same_as for entry in found.modules() if entry.path.startswith("layers")} == {None, "layers.0"}
    assert statuses(found)["layers.3"] == ("error", "introduced")


def test_the_worst_of_several_kinds_is_the_status():
    planted = [Planted(Kind.GRAPH_BREAK, "a.x"), Planted(Kind.DIVERGENCE, "a.x")]
    found = verdicts(ScriptedModel(NESTED, planted))
    assert statuses(found)["a.x"] == ("divergence", "introduced")
    assert [finding.kind for finding in found.findings] == [Kind.DIVERGENCE, Kind.GRAPH_BREAK]


def test_the_region_of_an_interplay_is_in_the_evidence():
    planted = Planted(Kind.DIVERGENCE, together=["", "a", "b"], lowest_rung=Rung.INDUCTOR)
    (finding,) = verdicts(ScriptedModel({"": ["a", "b", "c"]}, [planted])).findings
    assert (finding.module, finding.evidence["region"]) == ("", ["a", "b"])


def test_what_was_not_looked_at_is_called_skipped_and_never_healthy():
    found = verdicts(ScriptedModel(NESTED), skip=["b*"])
    assert statuses(found)["b.x"] == ("skipped", None)
    assert "--skip" in next(entry for entry in found.modules() if entry.path == "b.x").notes[0]


def test_modules_that_never_ran_are_called_so():
    found = verdicts(ScriptedModel(NESTED, uncalled=["b.x"]))
    assert statuses(found)["b.x"] == ("not_called", None)


def test_files_are_named_relative_to_the_target_or_to_the_installed_packages():
    from compilebisect.core.outcome import Frame

    found = verdicts(ScriptedModel({"": []}))
    assert found.file_name(Frame("/project/pkg/model.py", 1, "f")) == "pkg/model.py"
    assert found.file_name(Frame("/venv/lib/python3.11/site-packages/lib/ops.py", 1, "f")) == "lib/ops.py"
    assert found.file_name(Frame("/home/somebody/secret/model.py", 1, "f")) == "model.py"


@pytest.mark.parametrize(
    ("events", "count", "text"),
    [
        ([("2", "3")], 1, "N is compiled again: value of k changes from 2 to 3"),
        ([("'a'", "'b'")], 4, "N is compiled again: value of k changes from 'a' to 'b', and 3 times more"),
        ([("6 <= x.size()[0]", "3")], 1, "N is compiled again: value of k changes"),
        ([], 1, "N is compiled again: value of k changes"),
    ],
)
def test_a_recompile_says_from_what_to_what(events: list[tuple[str, str]], count: int, text: str):
    recompiles = [{"before": before, "after": after} for before, after in events]
    fault = Fault(kind=Kind.RECOMPILE, type="value of k", evidence={"recompiles": recompiles, "count": count})
    assert summary_of(fault, "N") == text
