"""The `doctor` command: says whether this machine is able to compile, and what to do where it is not."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from typing import Any

import click

from compilebisect import __version__
from compilebisect.cli.files import write_output
from compilebisect.cli.output import has_color, output_width, tell
from compilebisect.errors import CannotTestError
from compilebisect.render.wording import CROSS, DASH, TICK, one_line
from compilebisect.repro.script_process import ScriptProcess

_TIMEOUT_S = 600
_MARKS = {"ok": (TICK, "green"), "info": (DASH, "dim"), "problem": (CROSS, "bold red")}


@click.command("doctor")
def doctor_command() -> int:
    """Check that this machine is able to compile.

    Looks at torch, triton, the GPU and the C++ compiler, and compiles a tiny function. Exits 0 when that works, else
    125.
    """
    if sys.stderr.isatty():
        tell("checking; the first compile may take half a minute …")
    found = [{"name": "compilebisect", "status": "ok", "value": __version__, "fix": ""}, *_checks_of_child()]
    problems = [check for check in found if check["status"] == "problem"]
    write_output(_text(found, len(problems)))
    return CannotTestError.exit_status if problems else 0


def _checks_of_child() -> list[dict[str, Any]]:
    """Run the checks in a process of their own, with private caches, and return what they found."""
    with tempfile.TemporaryDirectory(prefix="compilebisect-doctor-") as folder:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
            "TRITON_CACHE_DIR": os.path.join(folder, "triton"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TMPDIR": folder,  # torch's precompiled headers go there, 150 MB
        }
        command = [sys.executable, "-m", "compilebisect.runtime.doctor"]
        process = ScriptProcess(command, environment)
        try:
            process.wait(_TIMEOUT_S)
            status = process.ending
        finally:
            process.end()
    ending = f"did not end within {_TIMEOUT_S} s" if status is None else _ending(status)
    lines = process.output.splitlines()
    found: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith('{"name"')]
    if ending:
        last_lines = " ".join(" ".join(line for line in lines if not line.startswith('{"name"')).split()[-60:])
        value = f"the process {ending} after the check of {found[-1]['name'] if found else 'nothing'}. {last_lines}"
        fix = "Mend what the message names; `python -m compilebisect.runtime.doctor` shows it whole."
        found.append({"name": "checks", "status": "problem", "value": value, "fix": fix})
    return found


def _ending(status: int) -> str:
    """Return how a process ended, empty where it ended well."""
    if status >= 0:
        return f"exited with {status}" if status else ""
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _text(found: list[dict[str, Any]], problem_count: int) -> str:
    from rich.text import Text

    from compilebisect.render.console import printed
    from compilebisect.render.wrap import wrapped

    width = output_width()
    column = max(len(check["name"]) for check in found) + 2
    lines = []
    for check in found:
        mark, style = _MARKS[check["status"]]
        first, *rest = wrapped(one_line(check["value"]), width - column - 2)
        lines.append(Text.assemble((f"{mark} ", style), f"{check['name']:<{column}}", first))
        lines += [Text(" " * (column + 2) + line) for line in rest]
        for line in wrapped(one_line(check["fix"]), width - column - 2) if check["fix"] else []:
            lines.append(Text(" " * (column + 2) + line, "bold"))
    if problem_count:
        lines.append(Text("\nThis machine cannot compile models yet.", "bold red"))
    else:
        lines.append(Text("\nThis machine can compile models.", "bold green"))
    return printed(lines, width, color=has_color())
