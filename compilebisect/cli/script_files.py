"""Checks of the scripts that `verify` and `reduce` are given, before anything runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from compilebisect.errors import UsageError
from compilebisect.repro.wording import is_our_script

# The comment at the head of a repro script is far shorter.
_HEAD_BYTES = 1 << 16


def checked_script(script: str, *, any_script: bool) -> Path:
    """Return the path of a script that may be run.

    Raises:
        UsageError: it is no file that can be read, or no repro script although `any_script` is not set.
    """
    path = Path(script)
    if not path.is_file():
        raise UsageError("there is no such script", where=script, fix="Give the path of a Python file.")
    try:
        is_ours = _is_ours(path)
    except OSError as error:
        raise UsageError(f"cannot read the script: {error.strerror}", where=script, fix="Make it readable.") from error
    if not is_ours and not any_script:
        raise UsageError(
            "this is no repro script: it does not begin with the comment that those of compilebisect begin with",
            where=script,
            fix="With --any-script its exit status alone counts: 1 the fault shows, 0 it does not, 125 it cannot tell.",
        )
    return path


def check_output_script(script: Path, out: Path, *, force: bool) -> None:
    """Check that a smaller form of a script can be written to `out`.

    Raises:
        UsageError: it cannot, or would replace the script itself or a file that is no repro script.
    """
    folder = script.resolve().parent
    if out.resolve().parent != folder:
        raise UsageError(
            "the smaller script has to lie in the folder of the script, whose files it may read",
            where="-o",
            fix=f"Name a file in {folder}.",
        )
    if out.is_dir():
        raise UsageError(f"{str(out)!r} is a folder", where="-o", fix="Name a file in it.")
    if out.exists() and out.samefile(script):
        raise UsageError("the smaller script would replace the script", where="-o", fix="Name another file.")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{script.stem}_"):
            pass
        if out.exists() and not force and not _is_ours(out):
            raise UsageError(
                f"{str(out)!r} exists and is no repro script",
                where="-o",
                fix="Name another file, or overwrite it with --force.",
            )
        if out.exists() and not os.access(out, os.W_OK):
            raise UsageError(f"{str(out)!r} cannot be written", where="-o", fix="Name another file.")
    except OSError as error:
        raise UsageError(
            f"nothing can be written beside the script: {error.strerror}",
            where=str(folder),
            fix="Copy the script to another folder.",
        ) from error


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return is_our_script(file.read(_HEAD_BYTES).decode("utf-8", "replace").replace("\r\n", "\n"))
