"""What a run tells whoever watches it. The command line draws it; tests and programs may listen too."""

from __future__ import annotations

from typing import Protocol

from compilebisect.core.report import Finding, Repro


class ProgressListener(Protocol):
    """Receives the events of a run, in order, in the supervisor's process."""

    def phase_started(self, text: str) -> None:
        """A longer step begins, such as `starting torch` or `running the model in eager mode`."""

    def probe_started(self, path: str, class_name: str, rung: str, done: int, total: int) -> None:
        """A module's check begins; `done` of `total` units are finished (the total may grow)."""

    def probe_finished(self, path: str, status: str, done: int, total: int) -> None:
        """A module's check ended with this status."""

    def proof_went_on(self, text: str) -> None:
        """The proof of a fault took a step, beside the walk or after it; called from another thread."""

    def script_made(self, what: str, repro: Repro) -> None:
        """The proof of a fault ended; `what` names the fault. Called from another thread."""

    def finding_made(self, finding: Finding) -> None:
        """A finding is final but for its repro."""

    def warned(self, text: str) -> None:
        """Something that the user should know and that is no finding."""


class SilentProgress:
    """Listener that ignores everything."""

    def phase_started(self, text: str) -> None:
        """Ignore it."""

    def probe_started(self, path: str, class_name: str, rung: str, done: int, total: int) -> None:
        """Ignore it."""

    def probe_finished(self, path: str, status: str, done: int, total: int) -> None:
        """Ignore it."""

    def proof_went_on(self, text: str) -> None:
        """Ignore it."""

    def script_made(self, what: str, repro: Repro) -> None:
        """Ignore it."""

    def finding_made(self, finding: Finding) -> None:
        """Ignore it."""

    def warned(self, text: str) -> None:
        """Ignore it."""
