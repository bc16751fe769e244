"""Scratch folders of runs: each is locked while its run lives, so that the next run can clear away dead ones."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_PREFIX = "scratch-"
_LOCK = "lock"
# A home may be shared by machines whose locks do not reach each other, and folders of old versions have no lock: those
# are only taken for dead when nothing was written into them for so long.
_SURELY_DEAD_S = 7 * 86400.0
_SURELY_LEFT_S = 86400.0


def scratch_folder(parent: Path) -> tuple[Path, BinaryIO]:
    """Make a scratch folder, and remove those of runs that are dead.

    Returns:
        The folder, and the open file whose lock says that its run lives.

    Raises:
        OSError: it cannot be made.
    """
    with _alone(parent):
        _sweep(parent)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = open(folder / _LOCK, "wb", buffering=0)  # noqa: SIM115 - it is open as long as the run lives
        lock.write(_machine().encode())
        with contextlib.suppress(OSError):  # without locks nothing is swept here but what is old
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, lock


@contextlib.contextmanager
def _alone(parent: Path) -> Iterator[None]:
    """Keep other runs from looking at a folder that has no lock yet."""
    with open(parent / f"{_PREFIX}lock", "ab") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        if folder.is_dir() and not folder.is_symlink() and _is_dead(folder):
            shutil.rmtree(folder, ignore_errors=True)


def sweep_temporary(folder: Path) -> None:
    """Remove what killed scripts left in their temporary folder a day ago; torch's own folder in it is a cache."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if not entry.name.startswith("torchinductor_") and time.time() - entry.lstat().st_mtime > _SURELY_LEFT_S:
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()


def _is_dead(folder: Path) -> bool:
    path = folder / _LOCK
    try:
        age_s = time.time() - max(entry.stat().st_mtime for entry in (folder, *folder.iterdir()))
        if not path.exists():
            return age_s > _SURELY_DEAD_S
        with open(path, "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock.read().decode("utf-8", "replace") == _machine() or age_s > _SURELY_DEAD_S
    except OSError:  # it is locked, or somebody else removes it
        return False


def _machine() -> str:
    """Name this machine since it was started: within it a lock tells whether a process lives."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot or socket.gethostname()}\n"
