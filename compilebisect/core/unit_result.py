"""What the walk asks for and what it keeps: probes, the faults that modules bring, the result of each unit."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from compilebisect.core.fingerprint import FaultKey
from compilebisect.core.outcome import Fault, Observation, Rung
from compilebisect.core.timing import UnitTiming


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One compile and run that the walk asks for.

    `rung` None is the user's own backend. Modules in `fenced` are kept out of the compiled code. `is_cold` asks for a
    worker in which the model never ran. `instances` are further modules of the unit to be run through the code that
    was compiled for `path`, with the same modules below them fenced. With `variants` the module is fed that many
    variants of its inputs instead. `in_row` asks for calls in a row also where the probe looks whether one fault shows
    in another way. With `mends_breaks` its graph breaks are mended instead, to see what lies behind them;
    `breaks_below` are those of modules below. With `compiles_only` nothing but that module below `path` is compiled.
    `in_place` asks for a run of the whole model in which nothing but `path` and `instances` is compiled.
    """

    unit: int
    path: str
    rung: Rung | None = None
    fenced: tuple[str, ...] = ()
    is_cold: bool = False
    purpose: str = "check"
    instances: tuple[str, ...] = ()
    variants: int = 0
    mends_breaks: bool = False
    breaks_below: tuple[FaultKey, ...] = ()
    compiles_only: str | None = None
    in_place: bool = False
    in_row: bool = False


Steps = Generator[Probe, Observation, None]


class IntroducedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that a module brings, with the region of children whose interplay it takes (empty for its own code).

    `instances` are the modules of the unit that bring it, empty for all of them. `seen_in` is the module that has to
    be compiled to see it, where that is not the module itself.
    """

    path: str
    fault: Fault
    region: tuple[str, ...] = ()
    seen_in: str | None = None
    instances: tuple[str, ...] = ()

    def is_of(self, path: str) -> bool:
        """Return whether the module at `path`, one of the unit's, brings it."""
        return not self.instances or path in self.instances


class InheritedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that a module shows and that comes from below; `instances` as in `IntroducedFault`.

    `is_of_left_out` says that it comes from modules that nobody was to look at.
    """

    fault: Fault
    instances: tuple[str, ...] = ()
    is_of_left_out: bool = False

    def is_shown_by(self, path: str) -> bool:
        """Return whether the module at `path`, one of the unit's, shows it."""
        return not self.instances or path in self.instances


class UnitResult(msgspec.Struct, kw_only=True):
    """What the walk knows of one unit: `recompiles` counts those that are no fault too, `timing` is of one instance.

    `untested` says why its check gives no verdict, `untested_instances` why that of one instance does not, and
    `is_left_out` that nobody was to look at it. `kept_out` has, for each time that it was compiled as the user would
    and ran to its end, the modules below that were kept out of the compiled code.
    """

    observation: Observation | None = None
    introduced: list[IntroducedFault] = []
    inherited: list[InheritedFault] = []
    is_implied: bool = False
    untested: str = ""
    untested_instances: dict[str, str] = {}
    is_left_out: bool = False
    kept_out: list[tuple[str, ...]] = []
    is_done: bool = False
    recompiles: int = 0
    timing: UnitTiming | None = None
    notes: list[str] = []

    def why_untested(self, path: str) -> str:
        """Return why nothing is known of the module at `path`, one of the unit's; empty where its check told."""
        if self.is_left_out or self.is_implied or not self.is_done:
            return ""
        if reason := self.untested or self.untested_instances.get(path, ""):
            return reason
        has_run = self.observation is not None and self.observation.completed
        return "" if has_run or self.introduced or self.inherited else "its check did not run to its end"
