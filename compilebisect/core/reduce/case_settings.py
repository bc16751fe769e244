"""Makes the settings that a repro case runs under simpler."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from compilebisect.core.repro_case import ReproCase


def simpler_settings(case: ReproCase) -> Generator[ReproCase, bool, ReproCase]:
    """Propose cases with one of torch's settings left at its default; send back whether the fault still shows.

    Returns:
        The case with the fewest settings that showed it.
    """
    plain_context = msgspec.structs.replace(case.context, autocast=())
    plain = {"train": False, "dynamic": None, "mode": None, "context": plain_context}
    for name, value in plain.items():
        if getattr(case, name) != value:
            candidate = msgspec.structs.replace(case, **{name: value})
            if (yield candidate):
                case = candidate
    for entry in case.config:
        candidate = msgspec.structs.replace(case, config=tuple(item for item in case.config if item != entry))
        if (yield candidate):
            case = candidate
    return case
