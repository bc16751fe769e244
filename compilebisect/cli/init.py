"""The `init` command: a starter input spec. The model is loaded in another process, so that torch stays out here."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from compilebisect.cli.files import write_output
from compilebisect.cli.options import Parsed, init_from_text
from compilebisect.cli.output import tell
from compilebisect.errors import CannotTestError, TargetError, UsageError
from compilebisect.repro.script_process import ScriptProcess

# How often an interrupt is looked for.
_POLL_S = 0.5
_TIMEOUT_S = 1800
_CHILD = "compilebisect.runtime.starter_spec"


@click.command("init")
@click.argument("target")
@click.option("-o", "--output", metavar="SPEC.json", help="Where to write the spec; standard output by default.")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@click.option(
    "--init",
    type=Parsed("JSON", init_from_text),
    default=dict,
    metavar="JSON",
    help="Keyword arguments of the target's class or function.",
)
def init_command(target: str, output: str | None, force: bool, init: dict[str, Any]) -> int:
    """Write a starter input spec from forward()'s signature.

    TARGET is path/to/file.py:Name or package.module:Name. Parameters with a default are left out. Sizes come from the
    model's first layers where these tell them: look the result over before you use it.
    """
    if output is not None:
        _check_output(Path(output), force=force)
    spec, left_out = _spec_from_child(target, init)
    if left_out:
        tell(f"left to their defaults: {', '.join(left_out)}; add those that matter to you")
    text = spec_text(spec)
    if output is None:
        write_output(text)
        return 0
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{output!r} cannot be written: {error.strerror or error}", where="-o", fix="Name another file."
        ) from error
    tell(f"wrote {output}; check it, then run: compilebisect {target} --input-spec {output}")
    return 0


def spec_text(spec: dict[str, Any]) -> str:
    """Return a spec as JSON with one argument on each line."""
    parts = []
    for key, value in spec.items():
        if isinstance(value, dict) and value:
            lines = [f"    {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items()]
            parts.append(f'  "{key}": {{\n' + ",\n".join(lines) + "\n  }")
        elif isinstance(value, list) and value:
            parts.append(f'  "{key}": [\n' + ",\n".join(f"    {json.dumps(item)}" for item in value) + "\n  ]")
        else:
            parts.append(f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _check_output(path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a folder", where="-o", fix="Name a file in it.")
    if path.exists() and not force:
        raise UsageError(f"{str(path)!r} exists", where="-o", fix="Name another file, or overwrite it with --force.")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {str(path.parent)!r}", where="-o", fix="Create it first.")
    try:  # before the model is loaded
        if path.exists():
            os.close(os.open(path, os.O_WRONLY))
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be written: {error.strerror or error}", where="-o", fix="Name another file."
        ) from error


def _spec_from_child(target: str, init: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Load the target in a child process; also tells what is left out. What the child prints is told at its end."""
    with tempfile.TemporaryDirectory(prefix="compilebisect-") as folder:
        answer = Path(folder) / "answer.json"
        # -B: no bytecode beside the user's files
        command = [sys.executable, "-B", "-m", _CHILD, target, json.dumps(init), str(answer)]
        process = ScriptProcess(command, os.environ)
        until = time.monotonic() + _TIMEOUT_S
        try:
            while not process.wait(_POLL_S):
                if time.monotonic() > until:
                    raise CannotTestError(
                        f"loading {target!r} did not finish within {_TIMEOUT_S} s",
                        fix="Import the file in Python to see why.",
                    )
            status = process.ending or 0
        finally:
            process.end()
        if text := process.output.rstrip():
            tell(text)
        result = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {}
    if "spec" in result:
        return result["spec"], result["left_out"]
    if "error" in result:
        error = TargetError if result["exit_status"] == TargetError.exit_status else CannotTestError
        raise error(**result["error"])
    how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    raise CannotTestError(
        f"the process that loaded {target!r} ended {how}", fix="Import the file in Python to see what ends it."
    )
