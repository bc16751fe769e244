"""Keeps the report on disk up to date while a run goes on, so that nothing that was shown can be lost."""

from __future__ import annotations

import copy
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

import compilebisect
from compilebisect.core.coverage import uncovered_parts
from compilebisect.core.findings import Verdicts
from compilebisect.core.report import Environment, Report, Repro, Timing
from compilebisect.core.strategies import Strategies
from compilebisect.core.unit_result import IntroducedFault
from compilebisect.error_text import error_line
from compilebisect.errors import CompilebisectError, ReportNotSaved
from compilebisect.search.background_proofs import BackgroundProofs
from compilebisect.search.bisection import Bisection
from compilebisect.search.report_folder import REPORT_NAME, ReportFolder, write_elsewhere
from compilebisect.search.settle import take_back_unproved


class ReportKeeper:
    """Makes the report of an opened bisection and writes it, again and again.

    `ended_by` is None as long as nothing but the end of all work ends the run.
    """

    def __init__(self, bisection: Bisection, folder: ReportFolder, started: float) -> None:
        self.ended_by: Literal["interrupt", "failure"] | None = None
        self.proofs: BackgroundProofs | None = None
        self.strategies: Strategies | None = None
        self._bisection = bisection
        self._folder = folder
        self._started = started
        self._verdicts: Verdicts | None = None
        self._is_settled = False
        self._failures: list[str] = []
        self._has_warned = False

    @contextmanager
    def ending_early(self) -> Iterator[None]:
        """Take an interrupt, or a failure behind a finding, for the end of the run.

        Raises:
            Exception: a failure before anything was found.
        """
        try:
            yield
        except KeyboardInterrupt:
            self.ended_by = "interrupt"
        except Exception as error:
            text = error.what if isinstance(error, CompilebisectError) else error_line(error)
            self.ended_by = "failure"
            self._failures.append(f"the run ended early: {text}")
            if not self.save().findings:
                raise
            self._bisection.progress.warned(self._failures[-1])

    def conclude(self) -> Verdicts:
        """Draw the findings from the walk, once and for all."""
        self._verdicts = self._new_verdicts()
        return self._verdicts

    def settle(self) -> None:
        """Take back the findings that need a proof and have none, once no more proofs are under way."""
        assert self._verdicts is not None
        self._is_settled = True
        take_back_unproved(self._verdicts, self._repro_of)
        self.save()

    def save(self) -> Report:
        """Write what is known by now; where that fails it is said once, and the run goes on."""
        report = self._report(complete=False)
        try:
            self._folder.write(report)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                self._bisection.progress.warned(
                    f"the report cannot be written to {self._folder.path}: {error.strerror or error}"
                )
        return report

    def save_at_end(self) -> Report:
        """Write the report as it stays, elsewhere if it has to be.

        Raises:
            ReportNotSaved: there is no place for it.
        """
        report = self._report(complete=self.ended_by is None)
        try:
            self._folder.write(report)
        except OSError as error:
            why = f"the report cannot be written to {self._folder.path}: {error.strerror or error}"
            try:
                folder = write_elsewhere(report)
            except OSError:
                raise ReportNotSaved(report, why) from error
            self._bisection.progress.warned(f"{why}; it is in {folder / REPORT_NAME}")
        return report

    def _new_verdicts(self) -> Verdicts:
        bisection = self._bisection
        return Verdicts(bisection.walk, bisection.description.root_dir, bisection.settings.check)

    def _repro_of(self, item: IntroducedFault) -> Repro | None:
        return None if self.proofs is None else self.proofs.repro_of(item)

    def _report(self, *, complete: bool) -> Report:
        bisection = self._bisection
        description, settings = bisection.description, bisection.settings
        verdicts = self._verdicts or self._new_verdicts()
        if not self._is_settled:  # what may have a proof by and by has none by now
            verdicts = copy.copy(verdicts)
            take_back_unproved(verdicts, self._repro_of)
        findings = verdicts.findings if self.proofs is None else self.proofs.with_repros(verdicts)
        return Report(
            complete=complete,
            ended_by=self.ended_by,
            target=settings.target,
            environment=Environment(
                compilebisect=compilebisect.__version__,
                torch=description.torch,
                triton=description.triton,
                python=platform.python_version(),
                device=description.device,
                cuda=description.cuda,
            ),
            settings=_settings_in_force(bisection),
            modules=tuple(verdicts.modules()),
            findings=tuple(findings),
            uncovered=uncovered_parts(bisection.walk) if complete else (),
            timing=Timing(
                total_s=round(time.monotonic() - self._started, 3),
                compiles=bisection.walk.probes_made,
                eager_s=round(description.eager_s, 4),
                eager_peak_bytes=description.peak_bytes,
                worker_peak_bytes=bisection.worker_peak_bytes,
            ),
            strategies=self.strategies,
            notes=(*description.notes, *bisection.notes, *self._failures),
        )


def _settings_in_force(bisection: Bisection) -> dict[str, Any]:
    values = msgspec.to_builtins(bisection.settings)
    values.pop("spec_dir", None)
    return dict(values)
