"""The folder of `--out`: what in it is ours, and the report that is kept up to date there while the run goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from compilebisect.core.report import SCHEMA, Report, report_json
from compilebisect.errors import UsageError
from compilebisect.repro.wording import is_our_script

REPORT_NAME = "report.json"
#: A script and the tensors beside it.
SUFFIXES = (".py", ".safetensors")
_OUR_STEM = re.compile(r"repro_F\d+(_\d+)?|\.?early_\d+")
_OTHER_FOLDER = "Name another folder."
# A script says in its head whose it is; no more is read of a file that may be the user's.
_HEAD_BYTES = 64 << 10


class ReportFolder:
    """Where a run writes. Only what an earlier run wrote is ever replaced or removed.

    Args:
        name: the folder; it is made if it is not there.

    Raises:
        UsageError: it cannot be made or written, or its `report.json` is none of ours.
    """

    def __init__(self, name: str) -> None:
        self.path = Path(name)
        self._is_new = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as file:  # rights alone do not tell: quotas, read-only mounts
                file.write(b"\0" * 4096)
                file.flush()
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the folder for the results cannot be written: {getattr(error, 'strerror', None) or error}",
                where=f"--out {name}",
                fix=_OTHER_FOLDER,
            ) from error
        self._old_scripts = self._scripts_of_report(self._report_there())

    def _report_there(self) -> dict[str, object]:
        path = self.path / REPORT_NAME
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._refused(f"cannot be looked at: {error.strerror or error}") from error
        if not stat.S_ISREG(mode):
            what = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "no plain file"
            raise self._refused(f"is {what}")
        if not mode & 0o222:
            raise self._refused("is read-only")
        try:
            report = json.loads(path.read_bytes())
        except OSError as error:
            raise self._refused(f"cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise self._refused("was not written by compilebisect") from error
        if not isinstance(report, dict) or not str(report.get("schema")).startswith(SCHEMA.partition("/")[0] + "/"):
            raise self._refused("was not written by compilebisect")
        return report

    def _refused(self, why: str) -> UsageError:
        return UsageError(
            f"it holds a {REPORT_NAME} that {why}, and is left as it is",
            where=f"--out {self.path}",
            fix=_OTHER_FOLDER,
        )

    def _scripts_of_report(self, report: dict[str, object]) -> set[str]:
        """Return the names of the scripts that a report tells of, as far as they are such as we give."""
        findings = report.get("findings")
        names = set()
        for finding in findings if isinstance(findings, list) else ():
            repro = finding.get("repro") if isinstance(finding, dict) else None
            path = repro.get("path") if isinstance(repro, dict) else None
            if isinstance(path, str) and path.endswith(".py") and _OUR_STEM.fullmatch(path[:-3]):
                names.add(path)
        return names

    def leave_if_empty(self) -> None:
        """Remove the folder again where it was made for this run and holds nothing."""
        if self._is_new:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def remove_old(self) -> None:
        """Remove the scripts of earlier runs, which would pass for those of this one; the report is replaced."""
        for path in self._there():
            if path.suffix == ".py" and _OUR_STEM.fullmatch(path.stem):
                if path.name in self._old_scripts or _is_ours(path):
                    with contextlib.suppress(OSError):
                        path.unlink()
                        path.with_suffix(".safetensors").unlink(missing_ok=True)
            elif path.name.startswith(f".{REPORT_NAME}.") and path.name.endswith(".part"):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _there(self) -> Iterable[Path]:
        try:
            entries = [entry for entry in os.scandir(self.path) if entry.is_file(follow_symlinks=False)]
        except OSError:
            return []
        return [self.path / entry.name for entry in entries]

    def free_stem(self, stem: str) -> str:
        """Return a name for a script that no file of the user's has: the wanted one, or one with a number behind it."""
        tried, number = stem, 1
        while any(os.path.lexists(self.path / f"{dot}{tried}{suffix}") for dot in ("", ".") for suffix in SUFFIXES):
            number += 1
            tried = f"{stem}_{number}"
        return tried

    def write(self, report: Report) -> None:
        """Put the report in the place of the one before, so that at each moment a whole one is there.

        Raises:
            OSError: it cannot be written; the one before is still there, if the folder is.
        """
        write_whole(self.path / REPORT_NAME, report_json(report))


def write_elsewhere(report: Report) -> Path:
    """Write a report into a new temporary folder and return that.

    Raises:
        OSError: there is no room for it either.
    """
    folder = Path(tempfile.mkdtemp(prefix="compilebisect-out-"))
    write_whole(folder / REPORT_NAME, report_json(report))
    return folder


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file at once: whoever reads it, or finds it after a crash, has the old or the new one.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    with contextlib.suppress(OSError):  # the rename itself; some file systems cannot
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _is_ours(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return is_our_script(file.read(_HEAD_BYTES).decode("utf-8", "replace"))
    except OSError:
        return False
