"""Which findings stay, given what their scripts and a second check showed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from compilebisect.core.findings import Verdicts
from compilebisect.core.outcome import Fault, Kind, Observation
from compilebisect.core.report import Repro
from compilebisect.core.unit_result import IntroducedFault, Probe
from compilebisect.search.settle import take_back_unproved, take_back_unseen
from tests.core.scripted_model import Planted, ScriptedModel
from tests.core.test_hidden_breaks import model_with_one_break

GONE = Repro(path="repro_F1.py", runs=3, shown=0, note="not verified (gone)")
SHOWN = Repro(path="repro_F1.py", runs=3, shown=3, verified=True)


class Proofs:
    def __init__(self, repro: Repro | None) -> None:
        self.repro = repro
        self.notes: list[str] = []

    def repro_of(self, item: IntroducedFault) -> Repro | None:
        return self.repro

    def add_note(self, item: IntroducedFault, note: str) -> None:
        self.notes.append(note)


class SecondLook:
    """Stands for a bisection whose walk is done."""

    def __init__(self, verdicts: Verdicts, seen: Observation) -> None:
        self.walk = verdicts.walk
        self.seen = seen
        self.probes: list[Probe] = []

    def look_again(self, probe: Probe) -> Observation:
        self.probes.append(probe)
        return self.seen


def flaky(kind: Kind = Kind.DIVERGENCE, path: str = "") -> Verdicts:
    return Verdicts(ScriptedModel({"": ["a"], "a": []}, [Planted(kind, path)]).walk(), "/project")


def settled(verdicts: Verdicts, seen: Observation, repro: Repro | None = GONE) -> tuple[SecondLook, Proofs]:
    look: Any = SecondLook(verdicts, seen)
    proofs: Any = Proofs(repro)
    take_back_unseen(look, verdicts, proofs)
    return look, proofs


def test_what_neither_a_script_nor_a_second_check_shows_is_no_finding() -> None:
    verdicts = flaky()
    look, _ = settled(verdicts, Observation())
    assert not verdicts.findings
    (probe,) = look.probes
    assert probe.path == "" and probe.is_cold and probe.purpose == "again"


@pytest.mark.parametrize(
    "seen",
    [
        Observation(faults=(Fault(kind=Kind.DIVERGENCE, type="elsewhere"),)),
        Observation(faults_by_instance={"": (Fault(kind=Kind.DIVERGENCE, type="values"),)}),
        Observation(untested="it could not be checked"),
        Observation(completed=False),
    ],
    ids=["seen", "seen of an instance", "untested", "not completed"],
)
def test_what_a_second_check_shows_or_cannot_tell_of_stays_a_finding(seen: Observation) -> None:
    verdicts = flaky()
    _, proofs = settled(verdicts, seen)
    assert len(verdicts.findings) == len(proofs.notes) == 1


def test_an_error_in_whose_place_something_else_shows_stays_a_finding() -> None:
    verdicts = flaky(Kind.ERROR)
    settled(verdicts, Observation(faults=(Fault(kind=Kind.DIVERGENCE, type="values"),)))
    assert len(verdicts.findings) == 1


def test_all_findings_of_a_module_are_looked_at_again_at_once() -> None:
    planted = [Planted(Kind.DIVERGENCE, "", type_name=name) for name in ("values", "stride")]
    verdicts = Verdicts(ScriptedModel({"": ["a"], "a": []}, planted).walk(), "/project")
    assert len(verdicts.findings) == 2
    look, _ = settled(verdicts, Observation())
    assert not verdicts.findings and len(look.probes) == 1


@pytest.mark.parametrize(
    "repro", [None, SHOWN, msgspec.structs.replace(GONE, runs=0)], ids=["none", "shown", "not run"]
)
def test_nothing_is_checked_again_that_no_script_denies(repro: Repro | None) -> None:
    verdicts = flaky()
    look, proofs = settled(verdicts, Observation(), repro)
    assert verdicts.findings and not look.probes and not proofs.notes


def test_what_the_module_above_shows_by_itself_needs_no_further_check() -> None:
    verdicts = flaky(path="a")
    look, proofs = settled(verdicts, Observation())
    assert verdicts.findings and not look.probes and proofs.notes


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.TIMEOUT])
def test_a_crash_or_hang_is_told_though_it_shows_only_once(kind: Kind) -> None:
    verdicts = flaky(kind)
    look, _ = settled(verdicts, Observation())
    assert verdicts.findings and not look.probes


@pytest.mark.parametrize(("repro", "reason"), [(None, "no script was tried"), (GONE, "no script shows it")])
def test_a_hidden_fault_is_a_finding_only_with_a_proof(repro: Repro | None, reason: str) -> None:
    model, known = model_with_one_break()
    model.hidden["a.x"] = [model.break_in("a.x", "behind", line=6, behind=known)]
    verdicts = Verdicts(model.walk(), "/project")
    take_back_unproved(verdicts, lambda item: SHOWN)
    assert len(verdicts.findings) == 2
    take_back_unproved(verdicts, lambda item: repro)
    (left,) = verdicts.findings
    assert left.evidence["not_proved"] == [f"graph break at model.py:27 (behind) ({reason})"]
