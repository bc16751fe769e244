"""Where the tool keeps torch's caches and its scratch files: never in the user's own cache folders of torch."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from pathlib import Path

CACHE_VARIABLE = "COMPILEBISECT_CACHE_DIR"
#: Tells processes where torch's precompiled C++ headers go, some 150 MB: torch itself puts them into TMPDIR.
HEADERS_VARIABLE = "COMPILEBISECT_HEADERS"
# These would make every probe run eager in silence, or send torch's files elsewhere.
_DROPPED_VARIABLES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DEBUG", "TORCHDYNAMO_REPRO_AFTER")


def cache_folder() -> Path:
    """Return the tool's own cache folder; `COMPILEBISECT_CACHE_DIR` moves it."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "compilebisect"


def script_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for fresh processes that run repro scripts, made from that of workers.

    What a script and the compiler leave in the temporary folder stays out of the user's; nothing else of the user's
    runs there, who may look for files in it.
    """
    folder = environment[HEADERS_VARIABLE]
    with contextlib.suppress(OSError):  # without it Python takes another one
        os.makedirs(folder, exist_ok=True)
    return {**environment, "TMPDIR": folder}


def torch_version() -> str | None:
    """Return the installed torch's version without importing it, None where there is none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def worker_environment(base: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment for processes that compile, with torch's caches below `folder`.

    One cache for each torch and Python version: a fresh C++ cache costs about 30 s once.
    """
    caches = folder / f"torch-{torch_version()}-py{sys.version_info[0]}.{sys.version_info[1]}"
    env = {name: value for name, value in base.items() if name not in _DROPPED_VARIABLES}
    env.update(
        TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"),
        TRITON_CACHE_DIR=str(caches / "triton"),
        **{HEADERS_VARIABLE: str(caches / "tmp")},
        # Without it the import of Inductor touches CUDA, after which a forked process cannot use it.
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
        # Idle threads that spin take the cores from other workers: on 2 cores small operators took 5 ms, not 0.1 ms.
        OMP_WAIT_POLICY=base.get("OMP_WAIT_POLICY", "PASSIVE"),
        # A pool of compile processes for each worker would cost more than it brings.
        TORCHINDUCTOR_COMPILE_THREADS=base.get("TORCHINDUCTOR_COMPILE_THREADS", "1"),
    )
    return env
