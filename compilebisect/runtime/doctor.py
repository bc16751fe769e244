"""Checks whether this machine can compile. Run as a program it prints one JSON object per check.

Each object has `name`, `status` (`ok`, `info` or `problem`), `value` and `fix`. One line at a time, so that what was
found is known even when a later check kills the process.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata, util
from typing import Any, NamedTuple

from compilebisect.attempt import attempt
from compilebisect.error_text import error_lines, error_text


class Check(NamedTuple):
    """What one check found; `fix` says what to do about a problem."""

    name: str
    status: str
    value: str
    fix: str = ""


def checks() -> Iterator[Check]:
    """Yield all checks, the cheap ones first."""
    yield Check("python", "ok", platform.python_version())
    compiler = _cpp_compiler()
    yield compiler
    try:
        import torch
    except (ImportError, OSError) as error:
        # a missing shared library shows itself as OSError
        yield Check("torch", "problem", f"cannot be imported: {error_text(error)}", "Install torch 2.11 to 2.15.")
        return
    yield Check("torch", "ok", torch.__version__)
    has_gpu = torch.cuda.is_available()
    yield _gpu(torch, has_gpu)
    yield _triton(has_gpu)
    yield _compile_check(torch, "cpu", is_needed=not has_gpu)
    if has_gpu:
        yield _compile_check(torch, "cuda", is_needed=True)


def _cpp_compiler() -> Check:
    wanted = os.environ.get("CXX")
    names = [wanted] if wanted else ["g++", "clang++", "c++", "cl"]
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        fix = f"Mend CXX, which says {wanted!r}." if wanted else "Install g++ or clang++, or set CXX to a C++ compiler."
        return Check("C++ compiler", "problem", f"none found ({', '.join(names)})", fix)
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(
            "C++ compiler", "problem", f"{path} does not run: {error_text(error)}", "Install a working C++ compiler."
        )
    first_line = (done.stdout or done.stderr).strip().partition("\n")[0]
    return Check("C++ compiler", "ok", f"{path}: {first_line}" if first_line else path)


def _gpu(torch: Any, has_gpu: bool) -> Check:
    if has_gpu:
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Check("GPU", "ok", f"{', '.join(names)}, CUDA {torch.version.cuda}")
    if torch.version.cuda is None:
        return Check("GPU", "info", "none: this is a CPU build of torch")
    return Check("GPU", "info", "none is visible", "If there should be one, check its driver and CUDA_VISIBLE_DEVICES.")


def _triton(has_gpu: bool) -> Check:
    if util.find_spec("triton") is None:
        if has_gpu:
            return Check("triton", "problem", "not installed", "Install torch again: its GPU builds bring triton.")
        return Check("triton", "info", "not installed; only a GPU needs it")
    for distribution in ("triton", "pytorch-triton", "triton-windows"):
        try:
            return Check("triton", "ok", metadata.version(distribution))
        except metadata.PackageNotFoundError:
            continue
    return Check("triton", "ok", "of unknown version")


def _compile_check(torch: Any, device: str, *, is_needed: bool) -> Check:
    """Compile a tiny function with Inductor and compare its result with eager mode."""
    name = f"torch.compile on {'the GPU' if device == 'cuda' else 'the CPU'}"
    status = "problem" if is_needed else "info"

    def tiny(x: Any) -> Any:
        return torch.relu(x @ x) + 1

    def is_right() -> bool:
        x = torch.linspace(-1, 1, 64, device=device).reshape(8, 8)
        got, wanted = torch.compile(tiny)(x), tiny(x)
        return bool(torch.allclose(got, wanted, rtol=1e-3, atol=1e-3))

    ran = attempt(is_right)
    if ran.error is not None:  # whatever a broken installation raises
        lines = [line.strip() for line in error_lines(ran.error).splitlines() if line.strip()]
        return Check(name, status, " ".join(lines[:3])[:400], "Mend what the message names, then run this again.")
    if not ran.value:
        return Check(name, status, "gives a wrong result", "Install a matching build of torch for this machine.")
    return Check(name, "ok", "works")


def main() -> None:
    """Print one JSON object per check; whatever torch and its compilers print goes to standard error."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for check in checks():
            print(json.dumps(check._asdict()), file=out, flush=True)


if __name__ == "__main__":
    main()
