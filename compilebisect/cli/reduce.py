"""The `reduce` command: makes any script smaller that follows the exit statuses of repro scripts."""

from __future__ import annotations

from pathlib import Path

import click

from compilebisect.cli.files import write_output
from compilebisect.cli.options import ANY_SCRIPT, REDUCE_SECONDS, REPRO_RUNS, Parsed, device_from_text
from compilebisect.cli.progress import progress_on_stderr
from compilebisect.cli.script_files import check_output_script, checked_script
from compilebisect.render.wording import one_line


@click.command("reduce")
@click.argument("script", metavar="SCRIPT.py")
@click.option("-o", "--output", metavar="FILE.py", help="Where the smaller script goes; SCRIPT_reduced.py by default.")
@click.option("--device", type=Parsed("DEVICE", device_from_text), help="Where to run it; the script's own by default.")
@REDUCE_SECONDS
@REPRO_RUNS
@ANY_SCRIPT
@click.option("--force", is_flag=True, help="Overwrite FILE.py whatever it is; only a repro script is replaced else.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def reduce_command(
    script: str,
    output: str | None,
    device: str | None,
    reduce_seconds: float,
    repro_runs: int,
    any_script: bool,
    force: bool,
    quiet: bool,
) -> int:
    """Make a script smaller while it shows the same fault.

    SCRIPT.py is a repro script: it exits with 1 where the fault shows, 0 where it does not, 125 where it cannot tell,
    and says so in its last line; an exception that it does not handle counts as the last. What compiles and judges is
    left as it is: functions that call `torch.compile` or end the process. Ctrl-C keeps the smallest so far.
    """
    from compilebisect.api import reduce_script

    path = checked_script(script, any_script=any_script)
    out = path.with_name(f"{path.stem}_reduced.py") if output is None else Path(output)
    check_output_script(path, out, force=force)
    args = () if device is None else ("--device", device)
    with progress_on_stderr(is_quiet=quiet, is_verbose=False) as progress:
        done = reduce_script(
            path,
            out,
            budget_s=reduce_seconds,
            runs=repro_runs,
            args=args,
            any_script=any_script,
            progress=progress,
        )
    ended = "" if done.is_finished else "; stopped before everything was tried"
    flaky = "" if done.shown == done.runs else "flaky: "
    write_output(
        f"{one_line(str(out))}: {done.before} lines to {done.after}, {done.candidates} candidates; "
        f"{flaky}shown in {done.shown} of {done.runs} fresh runs{ended}\n"
    )
    return 0
