"""The `verify` command: does a script still show its fault here?"""

from __future__ import annotations

import click

from compilebisect.cli.files import write_output
from compilebisect.cli.options import ANY_SCRIPT, Parsed, device_from_text, positive_seconds, whole_number_from
from compilebisect.cli.script_files import checked_script
from compilebisect.render.wording import shortened
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
@ANY_SCRIPT
def verify_command(script: str, device: str | None, runs: int, timeout_s: float, any_script: bool) -> int:
    """Say whether a script still shows its fault here.

    SCRIPT.py is a repro script: it exits with 1 where the fault shows, 0 where it does not, 125 where it cannot tell,
    and says so in its last line. Whatever else ends it counts as 125. This command exits likewise: 1 when at least one
    run showed the fault.
    """
    from compilebisect.api import status_of, verify_script

    path = checked_script(script, any_script=any_script)
    args = () if device is None else ("--device", device)
    ends = verify_script(path, runs=runs, timeout_s=timeout_s, args=args, any_script=any_script)
    said = [end.said(any_script=any_script) for end in ends]
    for number, (end, meaning) in enumerate(zip(ends, said, strict=True), start=1):
        how = "no end" if end.status is None else f"exit {end.status}"
        how += " without a verdict" if end.status in (0, 1) and meaning == 125 else ""
        write_output(f"run {number}: {how} after {end.seconds:.1f} s: {shortened(end.last_line) or 'nothing'}\n")
    status = status_of(said)
    shown = said.count(1)
    flaky = "flaky: " if 0 < shown < runs else ""
    write_output(f"{flaky}{_WORDS[status]}: shown in {shown} of {runs} runs\n")
    return status
