"""Makes any script smaller that tells by its exit status whether it shows a fault: 1 yes, 0 no, 125 cannot tell."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from compilebisect.core.reduce.python_source import simplifications
from compilebisect.error_text import error_text
from compilebisect.errors import CannotTestError, UsageError
from compilebisect.progress import ProgressListener
from compilebisect.repro.check_part import is_check, kept_lines
from compilebisect.repro.script import line_count
from compilebisect.repro.verify import ScriptEnd, identity, run_fresh
from compilebisect.search.reducing import drive
from compilebisect.search.script_runner import ScriptRunner

SHOWN, GONE, CANNOT_TELL = 1, 0, 125
_LONGEST_LINE = 500
_SLOWER, _LEAST_S, _FIRST_S = 4.0, 15.0, 600.0


class ReducedScript(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: lines before and after, candidates that were run, and proof runs that showed the fault."""

    before: int
    after: int
    candidates: int
    shown: int
    runs: int
    is_finished: bool


def reduce_script(
    script: Path,
    out: Path,
    runner: ScriptRunner,
    *,
    budget_s: float,
    runs: int,
    args: tuple[str, ...],
    environment: Mapping[str, str],
    progress: ProgressListener,
    any_script: bool = False,
) -> ReducedScript:
    """Shrink a script into `out` as long as it shows the same fault, and prove the result in fresh processes.

    The same fault: exit status 1, and for scripts that say what they saw in our form, the same kind, type and line;
    only with `any_script` need a script not say it. An interrupt ends the search; the smallest script so far is kept
    and proved.

    Raises:
        UsageError: the script cannot be read, or is no Python.
        CannotTestError: it does not show its fault here, the smaller one does not in a fresh process, or cannot be
            written.
    """
    source = _source(script)
    search = _Search(script, source, runner, args, progress, any_script=any_script)
    is_finished = search.run(time.monotonic() + budget_s)
    _write(out, search.text)
    progress.phase_started("proving")
    ends = run_fresh(
        out,
        env=environment,
        python=sys.executable,
        timeout_s=_FIRST_S,
        args=args,
        runs=runs,
        any_script=any_script,
    )
    shown = sum(search.is_same(end) for end in ends)
    if not shown:
        _write(out, source)
        raise CannotTestError(
            "the smaller script does not show the fault in a fresh process; the script is left as it was",
            where=str(out),
            detail=ends[-1].output[-2000:],
        )
    return ReducedScript(
        before=line_count(source),
        after=line_count(search.text),
        candidates=search.candidates,
        shown=shown,
        runs=runs,
        is_finished=is_finished,
    )


class _Search:
    """The search for a smaller text; candidates lie beside the script, since it may read files from there."""

    def __init__(
        self,
        script: Path,
        source: str,
        runner: ScriptRunner,
        args: tuple[str, ...],
        progress: ProgressListener,
        *,
        any_script: bool,
    ) -> None:
        self._any_script = any_script
        self._script, self._runner, self._args, self._progress = script.resolve(), runner, args, progress
        self.text, self._before = source, line_count(source)
        self.candidates = 0
        self._identity: tuple[str, str, str] | None = None
        self._timeout_s = _FIRST_S

    def run(self, end: float) -> bool:
        """Shrink until nothing helps; returns False where the clock or an interrupt ended it."""
        self._progress.phase_started("running the script")
        first = self._run(self.text)
        if first.said(any_script=self._any_script) != SHOWN:
            raise CannotTestError(
                f"the script does not show its fault here: exit status {first.status}; its last line: "
                f"{first.last_line[-_LONGEST_LINE:] or 'none'}",
                where=str(self._script),
            )
        self._identity = identity(first.verdict_line)
        self._timeout_s = max(_SLOWER * first.seconds, _LEAST_S)
        steps = simplifications(self.text, is_check, self._kept_lines())
        try:
            return drive(steps, self._shows, self._take, lambda: time.monotonic() >= end)
        except KeyboardInterrupt:
            return False

    def is_same(self, end: ScriptEnd) -> bool:
        """Return whether a run showed the fault that the first one did."""
        return end.said(any_script=self._any_script) == SHOWN and identity(end.verdict_line) == self._identity

    def _shows(self, text: str) -> bool:
        self.candidates += 1
        return self.is_same(self._run(text))

    def _take(self, text: str) -> None:
        self.text = text
        self._progress.phase_started(f"reducing, {self._before} lines to {line_count(text)}")

    def _run(self, text: str) -> ScriptEnd:
        candidate = self._script.with_name(f".{self._script.stem}_candidate.py")
        candidate.write_text(text, encoding="utf-8")
        try:
            return self._runner.run(candidate, timeout_s=self._timeout_s, args=self._args)
        finally:
            candidate.unlink(missing_ok=True)

    def _kept_lines(self) -> frozenset[str]:
        code = self._identity[2] if self._identity else ""
        return kept_lines(self.text, code, keeps_seeds=True)


def _source(script: Path) -> str:
    try:
        source = script.read_text(encoding="utf-8")
        ast.parse(source)
    except OSError as error:
        raise UsageError(f"cannot read the script: {error.strerror}", where=str(script)) from error
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"this is no Python script: {error_text(error)}", where=str(script)) from error
    return source


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotTestError(
            f"the smaller script cannot be written: {error.strerror}; here it is", where=str(out), detail=text
        ) from error


def status_of(said: Sequence[int]) -> int:
    """Return the exit status for what some runs of one script said: 1 if any shows the fault, 0 if none does."""
    if SHOWN in said:
        return SHOWN
    return GONE if all(status == GONE for status in said) else CANNOT_TELL
