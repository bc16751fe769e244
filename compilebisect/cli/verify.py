"""The `verify` command: does a script still show its fault here?"""

from __future__ import annotations

from pathlib import Path

import click

from compilebisect.cli.files import write_output
from compilebisect.cli.options import Parsed, device_from_text, positive_seconds, whole_number_from
from compilebisect.errors import UsageError
from compilebisect.settings import DEFAULT_REPRO_RUNS

_DEADLINE_S = 600.0
_WORDS = {0: "the fault is gone", 1: "the fault shows", 125: "this cannot be told"}


@click.command("verify")
@click.argument("script", metavar="SCRIPT.py")
@click.option("--device", type=Parsed("DEVICE", device_from_text), help="Where to run it; the script's own by default.")
@click.option(
    "--runs",
    type=Parsed("N", whole_number_from(1)),
    default=DEFAULT_REPRO_RUNS,
    show_default=True,
    help="How often it is run, each time in a fresh process.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Parsed("SECONDS", positive_seconds),
    default=_DEADLINE_S,
    show_default=True,
    help="The longest that one run may take.",
)
def verify_command(script: str, device: str | None, runs: int, timeout_s: float) -> int:
    """Say whether a script still shows its fault here.

    SCRIPT.py tells by its exit status: 1 the fault shows, 0 it does not, 125 it cannot be told. This command exits
    likewise: 1 when at least one run showed it.
    """
    from compilebisect.api import status_of, verify_script

    path = Path(script)
    if not path.is_file():
        raise UsageError("there is no such script", where=script, fix="Give the path of a Python file.")
    args = () if device is None else ("--device", device)
    ends = verify_script(path, runs=runs, timeout_s=timeout_s, args=args)
    for number, end in enumerate(ends, start=1):
        lines = end.output.strip().splitlines()
        said = end.verdict_line or (lines[-1] if lines else "nothing")
        how = "no end" if end.status is None else f"exit {end.status}"
        write_output(f"run {number}: {how} after {end.seconds:.1f} s: {said}\n")
    status = status_of(ends)
    shown = sum(end.status == 1 for end in ends)
    flaky = "flaky: " if 0 < shown < runs else ""
    write_output(f"{flaky}{_WORDS[status]}: shown in {shown} of {runs} runs\n")
    return status
