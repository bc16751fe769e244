"""Decides, once the scripts were tried, which findings stay findings."""

from __future__ import annotations

from collections.abc import Callable

from compilebisect.core.dismissed import NOT_PROVED, NOT_TRIED, SEEN_ONCE, is_hidden, is_seen_as
from compilebisect.core.findings import Verdicts
from compilebisect.core.outcome import Kind, Observation
from compilebisect.core.report import Repro
from compilebisect.core.unit_result import IntroducedFault, Probe
from compilebisect.search.background_proofs import BackgroundProofs
from compilebisect.search.bisection import Bisection

ReproOf = Callable[[IntroducedFault], Repro | None]
# What ends or blocks a process is told also if it does so only once; seconds are proved by measuring again.
_NOT_ASKED_AGAIN = (Kind.CRASH, Kind.TIMEOUT, Kind.SLOWDOWN)
_SEEN_AGAIN = "but checks of modules in the model show the fault more than once"


def take_back_unproved(verdicts: Verdicts, repro_of: ReproOf) -> None:
    """Make notes of the findings that no run of the model shows as it is, and no script either."""
    repros = {number: repro_of(verdicts.faults[number]) for number in verdicts.hidden()}
    verdicts.dismiss(
        {
            number: NOT_TRIED if repro is None else NOT_PROVED
            for number, repro in repros.items()
            if repro is None or not repro.verified
        }
    )


def take_back_unseen(bisection: Bisection, verdicts: Verdicts, proofs: BackgroundProofs) -> None:
    """Check modules again whose script ran and did not show their fault, and make notes of what does not show again.

    Raises:
        KeyboardInterrupt: the user did not wait; nothing is taken back then.
    """
    gone = {}
    looks: dict[Probe, Observation] = {}  # one tells of all findings of its module
    for number, item in verdicts.faults.items():
        repro = proofs.repro_of(item)
        if repro is None or not repro.runs or repro.verified or item.fault.kind in _NOT_ASKED_AGAIN:
            continue
        if is_hidden(item.fault):
            continue
        if verdicts.shows_above(number) or _shows_again(bisection, item, looks):
            proofs.add_note(item, _SEEN_AGAIN)
        else:
            gone[number] = SEEN_ONCE
    verdicts.dismiss(gone)


def _shows_again(bisection: Bisection, item: IntroducedFault, looks: dict[Probe, Observation]) -> bool:
    """Make the first check of a fault again, unless `looks` has it; where in doubt, it shows."""
    probe = bisection.walk.first_check_of(item)
    if probe is None:
        return True
    if probe not in looks:
        looks[probe] = bisection.look_again(probe)
    seen = looks[probe]
    faults = (*seen.faults, *(fault for found in seen.faults_by_instance.values() for fault in found))
    return (
        bool(seen.untested or seen.untested_instances)
        or not seen.completed
        or any(is_seen_as(item.fault, fault) for fault in faults)
        or bool(faults and item.fault.kind is Kind.ERROR)  # it kept all else from being seen
    )
