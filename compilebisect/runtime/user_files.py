"""Which source files are the user's, and which belong to Python, torch and installed libraries."""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path

from compilebisect.core.repro_case import UserFile


@functools.cache
def _library_folders() -> tuple[Path, ...]:
    keys = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(sysconfig.get_path(key)).resolve() for key in keys})


@functools.cache
def is_user_file(file: str | None) -> bool:
    """Return whether `file` is source that belongs to neither Python nor an installed library."""
    if not file or file.startswith("<") or not file.endswith(".py"):
        return False
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in _library_folders())


def module_file(module: str) -> str | None:
    """Return the source file of an imported module, None where it has none."""
    found = sys.modules.get(module)
    return getattr(found, "__file__", None)


def is_user_module(module: str) -> bool:
    """Return whether an imported module is the user's."""
    return is_user_file(module_file(module))


def user_file(module: str, names: tuple[str, ...]) -> UserFile | None:
    """Describe how a fresh process imports `names` from a module of the user; None where it has no file."""
    file = module_file(module)
    if not file:
        return None
    path = Path(file).resolve()
    parts = module.split(".")
    relative = Path(*parts)
    for candidate in (relative.with_suffix(".py"), relative / "__init__.py"):
        if path.parts[-len(candidate.parts) :] == candidate.parts:
            folder = Path(*path.parts[: -len(candidate.parts)])
            return UserFile(module=module, folder=str(folder), file=candidate.as_posix(), names=names)
    return UserFile(module=path.stem, folder=str(path.parent), file=path.name, names=names)
