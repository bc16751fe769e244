"""The composition root: runs the walk over worker processes and makes the report. Imports no torch."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from compilebisect.cache_folder import cache_folder, script_environment, torch_version, worker_environment
from compilebisect.core.input_spec import parse_spec
from compilebisect.core.outcome import Kind
from compilebisect.core.report import Report
from compilebisect.errors import CannotTestError, UsageError
from compilebisect.interrupts import Interrupts, noted_interrupts
from compilebisect.progress import ProgressListener, SilentProgress
from compilebisect.repro.verify import ScriptEnd, run_fresh
from compilebisect.search import reduce_script as search
from compilebisect.search.background_proofs import BackgroundProofs
from compilebisect.search.bisection import Bisection
from compilebisect.search.reduce_script import ReducedScript, status_of
from compilebisect.search.report_folder import ReportFolder
from compilebisect.search.report_keeper import ReportKeeper
from compilebisect.search.script_runner import NO_CACHED_GRAPHS, ScriptRunner
from compilebisect.search.settle import take_back_unseen
from compilebisect.search.slowdowns import search_slowdowns
from compilebisect.search.strategies import compare_strategies
from compilebisect.settings import Settings
from compilebisect.workplace import workplace

__all__ = ["ReducedScript", "reduce_script", "run", "status_of", "verify_script"]


def run(settings: Settings, progress: ProgressListener | None = None) -> Report:
    """Bisect a model and write `report.json` and the repro scripts to `settings.out`.

    From the moment when the model has run in eager mode a report lies there, and what was found is in it before it is
    shown. It says `complete: false` until the end, and where an interrupt, or a failure after a finding, ends the run.

    Raises:
        CompilebisectError: the target, the spec or an option is wrong, or the model cannot be tested.
        ReportNotSaved: the report, which it holds, could not be written anywhere.
    """
    progress = progress or SilentProgress()
    if torch_version() is None:
        raise CannotTestError("torch is not installed", fix="Install it, for example with `pip install torch`.")
    if settings.optimizer is not None and not settings.train:
        raise UsageError(
            "an optimizer is only checked in training",
            where="--optimizer",
            fix="Add --train, or leave --optimizer out.",
        )
    if settings.inputs is None and settings.spec is None:
        raise UsageError(
            "the model's inputs are missing",
            where="--input-spec",
            fix=f"Write a first spec with `compilebisect init {settings.target} -o shapes.json`, "
            "or name a function with --inputs FILE.py:FUNC.",
        )
    if settings.inputs is None:
        spec = parse_spec(settings.spec)  # a wrong spec is told before torch is started
        if settings.strategies and spec.variant_count == 1:
            raise UsageError(
                "no dim of the spec has several values, so there are no strategies to compare",
                where="--strategies",
                fix='Name a size and give it values: {"dims": {"seq": [16, 32, 64]}}.',
            )
    folder = ReportFolder(settings.out)
    started = time.monotonic()
    try:
        with noted_interrupts() as interrupts, workplace(interrupts.check) as place:
            bisection = Bisection(settings, place.supervisor, place.scratch, progress)
            return _bisect(bisection, settings, folder, started, place.environment, progress, interrupts)
    finally:
        folder.leave_if_empty()


def verify_script(
    script: Path, *, runs: int, timeout_s: float, args: tuple[str, ...] = (), any_script: bool = False
) -> list[ScriptEnd]:
    """Run a script several times in fresh processes with the tool's own caches; `status_of` sums them up.

    With `any_script` an exception that the script does not handle counts as 125, not as Python's exit status of it.
    """
    environment = {**script_environment(worker_environment(os.environ, cache_folder())), **NO_CACHED_GRAPHS}
    return run_fresh(
        script,
        env=environment,
        python=sys.executable,
        timeout_s=timeout_s,
        args=args,
        runs=runs,
        any_script=any_script,
    )


def reduce_script(
    script: Path,
    out: Path,
    *,
    budget_s: float,
    runs: int,
    args: tuple[str, ...] = (),
    any_script: bool = False,
    progress: ProgressListener | None = None,
) -> ReducedScript:
    """Make a script smaller that tells by its exit status whether it shows a fault, and prove the result.

    Args:
        script: exits 1 when the fault shows, 0 when it does not, 125 when it cannot tell.
        out: where the smaller one goes, in the same folder.
        budget_s: seconds for the search.
        runs: how often the result is run in a fresh process.
        args: arguments of the script.
        any_script: believe the exit status alone; else the script has to say what it saw, as repro scripts do.
        progress: told what goes on.

    Raises:
        CompilebisectError: it is no script, or it does not show its fault here.
    """
    with workplace() as place:
        return search.reduce_script(
            script,
            out,
            ScriptRunner(place.supervisor),
            budget_s=budget_s,
            runs=runs,
            args=args,
            any_script=any_script,
            environment={**script_environment(place.environment), **NO_CACHED_GRAPHS},
            progress=progress or SilentProgress(),
        )


def _bisect(
    bisection: Bisection,
    settings: Settings,
    folder: ReportFolder,
    started: float,
    environment: dict[str, str],
    progress: ProgressListener,
    interrupts: Interrupts,
) -> Report:
    bisection.open()  # an interrupt up to here leaves nothing to report
    folder.remove_old()
    keeper = ReportKeeper(bisection, folder, started)
    keeper.save()
    bisection.on_fault = keeper.save
    scripts = {**script_environment(environment), **NO_CACHED_GRAPHS}
    made = BackgroundProofs(
        bisection, folder, scripts, on_proved=keeper.save, is_impatient=lambda: interrupts.is_impatient
    )
    with made if settings.repro else nullcontext() as proofs:
        keeper.proofs = proofs
        with keeper.ending_early():
            bisection.walk_all()
            if Kind.SLOWDOWN in settings.check:
                search_slowdowns(bisection)
            _check_something_was_wanted(bisection, settings)
        verdicts = keeper.conclude()
        keeper.save()
        hidden = verdicts.hidden()
        for finding in verdicts.findings:
            if finding.id not in hidden:
                progress.finding_made(finding)
        if proofs is not None:
            with keeper.ending_early():
                if keeper.ended_by is None:
                    proofs.finish(verdicts)
                    take_back_unseen(bisection, verdicts, proofs)
            proofs.call_off()
        keeper.settle()
        for finding in verdicts.findings:
            if finding.id in verdicts.hidden():
                progress.finding_made(finding)
        if proofs is not None:
            proofs.enter(verdicts)
            keeper.proofs = None
        with keeper.ending_early():
            if keeper.ended_by is None and settings.strategies:
                keeper.save()
                keeper.strategies = compare_strategies(bisection)
        return keeper.save_at_end()


def _check_something_was_wanted(bisection: Bisection, settings: Settings) -> None:
    """A run in which nothing was looked at must not read as healthy."""
    results = list(bisection.walk.results.values())
    if all(result.is_left_out for result in results):
        raise UsageError(
            "--only and --skip leave no module to look at",
            where="--only" if settings.only else "--skip",
            fix="Modules go by their paths, for example " + ", ".join(list(bisection.walk.tree)[1:6]) + ".",
        )
