"""The `run` command: options to settings, the run, its output and exit status."""

from __future__ import annotations

import difflib
import os
from typing import Any

import click

from compilebisect.cli.files import read_report, read_spec
from compilebisect.cli.options import (
    REDUCE_SECONDS,
    REPRO_RUNS,
    Nearest,
    Parsed,
    config_from_text,
    device_from_text,
    init_from_text,
    kinds_from_text,
    optimizer_from_text,
    positive_seconds,
    tolerance_from_text,
    whole_number_from,
)
from compilebisect.cli.output import print_report, tell
from compilebisect.cli.progress import progress_on_stderr
from compilebisect.core.report_diff import counted_findings, exit_status
from compilebisect.error_text import error_text
from compilebisect.errors import CannotTestError, OutputError, ReportNotSaved, TargetError, UsageError
from compilebisect.render import FORMATS
from compilebisect.render.wording import uncovered_text
from compilebisect.settings import (
    DEFAULT_KINDS,
    DEFAULT_OUT,
    DEFAULT_TIMEOUT_S,
    Settings,
)

_DTYPES = ("float32", "bfloat16", "float16", "float64")
# Source: torch._inductor.list_mode_options, torch 2.13
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")
_KINDS = Parsed("KIND[,KIND]", kinds_from_text)
_DEFAULT_KINDS_TEXT = "all but slowdown"


@click.command("run")
@click.argument("target")
@click.option("--input-spec", "spec_path", metavar="FILE", help="The inputs as JSON; - reads standard input.")
@click.option(
    "--inputs", metavar="FILE.py:FUNC", help="A function that returns (args, kwargs), or a list of such pairs."
)
@click.option(
    "--init",
    type=Parsed("JSON", init_from_text),
    default=dict,
    metavar="JSON",
    help="Keyword arguments of the target's class or function.",
)
@click.option(
    "--device",
    type=Parsed("DEVICE", device_from_text),
    default="auto",
    show_default=True,
    help="auto, cpu, cuda, cuda:N.",
)
@click.option("--dtype", type=Nearest("dtype", _DTYPES), help="Cast the model's floating parameters and buffers.")
@click.option("--backend", default="inductor", show_default=True, help="As in torch.compile.")
@click.option("--mode", type=Nearest("mode", _MODES), help="As in torch.compile.")
@click.option("--dynamic/--no-dynamic", default=None, help="As in torch.compile; automatic by default.")
@click.option("--train/--eval", default=False, help="Check forward and backward, or forward alone (the default).")
@click.option(
    "--check", type=_KINDS, default=DEFAULT_KINDS, help=f"Kinds to look for; {_DEFAULT_KINDS_TEXT} by default."
)
@click.option(
    "--config",
    type=Parsed("KEY=VALUE", config_from_text),
    multiple=True,
    help="Set a torch config in every process that compiles; repeatable.",
)
@click.option("--only", metavar="GLOB", multiple=True, help="Look only at modules whose path matches; repeatable.")
@click.option("--skip", metavar="GLOB", multiple=True, help="Leave out modules whose path matches; repeatable.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Parsed("SECONDS", positive_seconds),
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    help="The longest that one module's check may take.",
)
@click.option(
    "--workers",
    type=Parsed("N", whole_number_from(1)),
    help="Processes that compile side by side; 1 on a GPU, else the number of cores, by default.",
)
@click.option("--out", metavar="DIR", default=DEFAULT_OUT, show_default=True, help="Where report and repros go.")
@click.option(
    "--format", "format_name", type=Nearest("format", FORMATS), default="tree", help="What standard output gets."
)
@click.option("--baseline", metavar="REPORT.json", help="Findings in this report do not count for the exit status.")
@click.option(
    "--fail-on", type=_KINDS, default=DEFAULT_KINDS, help=f"Kinds that make the exit status 1; {_DEFAULT_KINDS_TEXT}."
)
@click.option(
    "--seed", type=Parsed("N", whole_number_from(0)), default=0, help="Seed of everything random; 0 by default."
)
@click.option(
    "--tolerance",
    type=Parsed("RTOL[,ATOL]", tolerance_from_text),
    help="Compare with these instead of measured tolerances; ATOL is RTOL where left out.",
)
@REDUCE_SECONDS
@REPRO_RUNS
@click.option("--no-repro", is_flag=True, help="Write no repro scripts.")
@click.option("--no-cache", is_flag=True, help="Use fresh compiler caches for this run.")
@click.option(
    "--strategies",
    is_flag=True,
    help="Compare ways to compile for the several sizes of the spec's dims; costs a few compiles of the whole model.",
)
@click.option("--all-modules", is_flag=True, help="Compile containers too that could be implied healthy.")
@click.option("--context", is_flag=True, help="Check modules where they stand in the running model, too.")
@click.option(
    "--optimizer",
    type=Parsed("NAME|JSON", optimizer_from_text),
    help='Check this optimizer\'s step too, with --train: adamw, or \'{"name": "sgd", "lr": 0.1}\'.',
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="More progress, and whole tracebacks.")
def run_command(**options: Any) -> int:
    """Find the modules that break torch.compile.

    TARGET is path/to/file.py:Name or package.module:Name, where Name is an nn.Module class, an instance, or a
    function that returns one.

    Exits 0 when every module is healthy, 1 on findings, 2 when the command or the spec is wrong, and 125 when the
    model, or a part of it that nothing else covers, cannot be tested.
    """
    from compilebisect.api import run

    is_quiet, format_name = options.pop("quiet"), options.pop("format_name")
    settings = settings_from_options(options)
    baseline = read_report(settings.baseline) if settings.baseline is not None else None
    with progress_on_stderr(is_quiet=is_quiet, is_verbose=settings.verbose) as progress:
        try:
            report = run(settings, progress)
        except ReportNotSaved as error:
            tell(f"error: {error_text(error)}; it follows on standard output")
            report, format_name = error.report, "json"
    try:
        print_report(report, format_name, settings.out)
    except OutputError as error:
        tell(f"error: {error.what}; the report is in {os.path.join(settings.out, 'report.json')}")
    counted, found = len(counted_findings(report, settings.fail_on, baseline)), len(report.findings)
    if counted < found:
        why = "--fail-on" if settings.baseline is None else f"--baseline {settings.baseline}"
        tell(f"{counted} of {found} findings count for the exit status ({why})")
    status = exit_status(report, settings.fail_on, baseline)
    if report.uncovered and status == CannotTestError.exit_status:
        tell(f"error: {uncovered_text(report)}")
    return status


def settings_from_options(options: dict[str, Any]) -> Settings:
    """Return the settings that the options of `run` say.

    Raises:
        UsageError: options exclude each other, or a file that they name is missing or wrong.
    """
    options = dict(options)
    spec_path = options.pop("spec_path")
    if spec_path is not None and options["inputs"] is not None:
        raise UsageError("--input-spec and --inputs exclude each other", fix="Give one of them.")
    _check_target(options["target"])
    if options["inputs"] is not None:
        _check_function(options["inputs"])
    spec, spec_dir = (None, ".") if spec_path is None else read_spec(spec_path)
    return Settings(
        spec=spec,
        spec_dir=spec_dir,
        repro=not options.pop("no_repro"),
        cache=not options.pop("no_cache"),
        workers=options.pop("workers") or 0,
        **options,
    )


def _check_target(target: str) -> None:
    """Catch the plain mistakes at once, before seconds go into starting torch."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise TargetError(
            f"the target {target!r} names no module",
            fix="Write it as path/to/file.py:Name or package.module:Name.",
        )
    if not all(part.isidentifier() for part in name.split(".")):
        raise TargetError(f"{name!r} is no Python name", where=target, fix="Give the name of a class or function.")
    if place.endswith(".py") or "/" in place:
        _check_file(place, target)


def _check_function(inputs: str) -> None:
    place, colon, name = inputs.rpartition(":")
    if not colon or not place.endswith(".py") or not name:
        raise UsageError(f"--inputs {inputs!r} names no function", fix="Write it as path/to/file.py:function.")
    _check_file(place, f"--inputs {inputs}")


def _check_file(path: str, where: str) -> None:
    if os.path.isfile(path):
        return
    if os.path.isdir(path):
        raise TargetError(f"{path!r} is a folder", where=where, fix="Give a Python file, or package.module:Name.")
    folder = os.path.dirname(path) or "."
    names = [name for name in os.listdir(folder) if name.endswith(".py")] if os.path.isdir(folder) else []
    near = difflib.get_close_matches(os.path.basename(path), names, n=1)
    fix = f"Did you mean {os.path.join(os.path.dirname(path), near[0])!r}?" if near else "Give an existing Python file."
    raise TargetError(f"there is no file {path!r}", where=where, fix=fix)
