"""The composition root: runs the walk over worker processes and makes the report. Imports no torch."""

from __future__ import annotations

import os
import platform
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

import compilebisect
from compilebisect.cache_folder import cache_folder, torch_version, worker_environment
from compilebisect.core.findings import Verdicts
from compilebisect.core.input_spec import parse_spec
from compilebisect.core.judge import LEFT_OUT
from compilebisect.core.outcome import Kind
from compilebisect.core.report import Environment, Report, Timing, report_json
from compilebisect.core.unit_result import UnitResult
from compilebisect.errors import CannotTestError, UsageError
from compilebisect.progress import ProgressListener, SilentProgress
from compilebisect.repro.verify import ScriptEnd, run_fresh
from compilebisect.search import reduce_script as search
from compilebisect.search.background_proofs import BackgroundProofs
from compilebisect.search.bisection import Bisection
from compilebisect.search.reduce_script import ReducedScript, status_of
from compilebisect.search.script_runner import NO_CACHED_GRAPHS, ScriptRunner
from compilebisect.search.settle import take_back_unproved, take_back_unseen
from compilebisect.search.slowdowns import search_slowdowns
from compilebisect.search.strategies import compare_strategies
from compilebisect.settings import Settings
from compilebisect.workplace import workplace

__all__ = ["ReducedScript", "reduce_script", "run", "status_of", "verify_script"]


def run(settings: Settings, progress: ProgressListener | None = None) -> Report:
    """Bisect a model and write `report.json` and the repro scripts to `settings.out`.

    An interrupt (KeyboardInterrupt) ends the walk; the report then holds what was found so far and says
    `complete: false`.

    Raises:
        CompilebisectError: the target, the spec or an option is wrong, or the model cannot be tested.
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
    started = time.monotonic()
    with workplace() as place:
        bisection = Bisection(settings, place.supervisor, place.scratch, progress)
        return _bisect(bisection, settings, started, place.environment, progress)


def verify_script(script: Path, *, runs: int, timeout_s: float, args: tuple[str, ...] = ()) -> list[ScriptEnd]:
    """Run a script several times in fresh processes with the tool's own caches; `status_of` sums them up."""
    environment = {**worker_environment(os.environ, cache_folder()), **NO_CACHED_GRAPHS}
    return run_fresh(script, env=environment, python=sys.executable, timeout_s=timeout_s, args=args, runs=runs)


def reduce_script(
    script: Path,
    out: Path,
    *,
    budget_s: float,
    runs: int,
    args: tuple[str, ...] = (),
    progress: ProgressListener | None = None,
) -> ReducedScript:
    """Make a script smaller that tells by its exit status whether it shows a fault, and prove the result.

    Args:
        script: exits 1 when the fault shows, 0 when it does not, 125 when it cannot tell.
        out: where the smaller one goes, in the same folder.
        budget_s: seconds for the search.
        runs: how often the result is run in a fresh process.
        args: arguments of the script.
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
            environment={**place.environment, **NO_CACHED_GRAPHS},
            progress=progress or SilentProgress(),
        )


def _bisect(
    bisection: Bisection,
    settings: Settings,
    started: float,
    environment: dict[str, str],
    progress: ProgressListener,
) -> Report:
    out = _output_folder(settings.out)
    bisection.open()  # an interrupt up to here leaves nothing to report
    complete = True
    scripts = {**environment, **NO_CACHED_GRAPHS}
    with BackgroundProofs(bisection, out, scripts) if settings.repro else nullcontext() as proofs:
        try:
            bisection.walk_all()
            if Kind.SLOWDOWN in settings.check:
                search_slowdowns(bisection)
        except KeyboardInterrupt:
            complete = False
        if complete:
            _check_something_was_tested(bisection, settings)
        verdicts = Verdicts(bisection.walk, bisection.description.root_dir, settings.check)
        hidden = verdicts.hidden()
        for finding in verdicts.findings:
            if finding.id not in hidden:
                progress.finding_made(finding)
        if proofs is not None:
            try:
                if complete:
                    proofs.finish(verdicts)
                    take_back_unseen(bisection, verdicts, proofs)
            except KeyboardInterrupt:
                complete = False
            proofs.call_off()
        take_back_unproved(verdicts, proofs.repro_of if proofs is not None else lambda item: None)
        for number in verdicts.hidden():
            progress.finding_made(next(finding for finding in verdicts.findings if finding.id == number))
        if proofs is not None:
            proofs.enter(verdicts)
    strategies = None
    if complete and settings.strategies:
        try:
            strategies = compare_strategies(bisection)
        except KeyboardInterrupt:
            complete = False
    description = bisection.description
    report = Report(
        complete=complete,
        target=settings.target,
        environment=Environment(
            compilebisect=compilebisect.__version__,
            torch=description.torch,
            triton=description.triton,
            python=_python_version(),
            device=description.device,
            cuda=description.cuda,
        ),
        settings=_settings_in_force(settings),
        modules=tuple(verdicts.modules()),
        findings=tuple(verdicts.findings),
        timing=Timing(
            total_s=round(time.monotonic() - started, 3),
            compiles=bisection.walk.probes_made,
            eager_s=round(description.eager_s, 4),
            eager_peak_bytes=description.peak_bytes,
            worker_peak_bytes=bisection.worker_peak_bytes,
        ),
        strategies=strategies,
        notes=(*description.notes, *bisection.notes),
    )
    (out / "report.json").write_bytes(report_json(report))
    return report


def _output_folder(name: str) -> Path:
    out = Path(name)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the folder for the results cannot be made: {error}", where="--out", fix="Name another folder."
        ) from error
    if (report := out / "report.json").exists():  # what an earlier run left would pass for what this one found
        for left in (*out.glob("repro_F*.*"), *out.glob("early_*.*"), report):
            left.unlink()
    return out


def _check_something_was_tested(bisection: Bisection, settings: Settings) -> None:
    """A run in which nothing was compiled must not read as healthy."""
    results = list(bisection.walk.results.values())
    if all(result.skipped == LEFT_OUT for result in results):
        raise UsageError(
            "--only and --skip leave no module to look at",
            where="--only" if settings.only else "--skip",
            fix="Modules go by their paths, for example " + ", ".join(list(bisection.walk.tree)[1:6]) + ".",
        )
    if any(result.introduced or result.is_implied or _is_tested(result) for result in results):
        return
    reasons = list(dict.fromkeys(result.skipped for result in results if result.skipped))
    raise CannotTestError("no module could be tested", detail="\n".join(reasons[:5]))


def _is_tested(result: UnitResult) -> bool:
    return result.observation is not None and not result.observation.skipped


def _python_version() -> str:
    return platform.python_version()


def _settings_in_force(settings: Settings) -> dict[str, Any]:
    values = msgspec.to_builtins(settings)
    values.pop("spec_dir", None)
    return dict(values)
