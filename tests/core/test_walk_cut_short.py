"""A walk may end at any step: what a probe showed by then is in the verdicts."""

from __future__ import annotations

import pytest

from compilebisect.core.findings import Verdicts
from compilebisect.core.outcome import Kind, Rung
from compilebisect.core.units import units_of
from compilebisect.core.walk import Walk
from tests.core.scripted_model import Planted, ScriptedModel

TREE = {"": ["a", "b"], "a": ["a.x", "a.y"], "b": ["b.x"]}


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.ERROR, Kind.DIVERGENCE, Kind.GRAPH_BREAK, Kind.RECOMPILE])
@pytest.mark.parametrize("path", ["a.x", "a", "b.x", ""])
def test_whatever_was_seen_is_a_finding_at_once(kind: Kind, path: str) -> None:
    model = ScriptedModel(TREE, [Planted(kind, path, lowest_rung=Rung.AOT_EAGER)])
    walk = Walk(model.tree, units_of(model.tree))
    shown = False
    while not walk.is_finished():
        probe = walk.next_probe()
        assert probe is not None
        observation = model.observe(probe)
        walk.record(probe, observation)
        shown = shown or bool(observation.faults)
        findings = Verdicts(walk, "").findings
        assert [finding.module for finding in findings] == ([path] if shown else [])
    assert "not_judged" not in findings[0].evidence


def test_what_is_not_judged_yet_says_so() -> None:
    model = ScriptedModel(TREE, [Planted(Kind.CRASH, "a.x")])
    walk = Walk(model.tree, units_of(model.tree))
    while (probe := walk.next_probe()) is not None and not (seen := model.observe(probe)).faults:
        walk.record(probe, seen)
    assert probe is not None
    walk.record(probe, seen)
    [finding] = Verdicts(walk, "").findings
    assert (finding.module, "not_judged" in finding.evidence) == ("a.x", not walk.results[probe.unit].is_done)
