"""Which source files belong to the user or to a library, and which to torch, Python or this tool. Imports no torch."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

_PACKAGES_MARK = "-packages/"


@functools.lru_cache(maxsize=1)
def _hidden_folders() -> tuple[str, ...]:
    folders = [str(Path(__file__).resolve().parent)]
    for name in ("torch", "triton"):
        spec = importlib.util.find_spec(name)
        if spec is not None:
            folders.extend(str(Path(place).resolve()) for place in spec.submodule_search_locations or ())
    return tuple(f"{folder}/" for folder in folders)


def _is_generated(resolved: str) -> bool:
    """Return whether a file is code that Inductor or Triton wrote."""
    folders = [os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    return "/torchinductor_" in resolved or any(
        folder and resolved.startswith(f"{Path(folder).resolve()}/") for folder in folders
    )


@functools.lru_cache(maxsize=1)
def _standard_library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], f"{sys.base_prefix}/lib/python{sys.version_info[0]}"}
    return tuple(f"{Path(folder).resolve()}/" for folder in folders)


@functools.cache
def is_user_or_library_file(file: str) -> bool:
    """Return whether code of this file is the user's or a library's, and not torch's, Python's or our own."""
    if file.startswith("<") or not file:
        return False
    resolved = str(Path(file).resolve())
    if resolved.startswith(_hidden_folders()) or _is_generated(resolved):
        return False
    # Installed packages lie below the standard library's folder.
    return not resolved.startswith(_standard_library()) or _PACKAGES_MARK in resolved
