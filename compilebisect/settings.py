"""Every option of a run in one frozen, validated type."""

from __future__ import annotations

from typing import Any

import msgspec

from compilebisect.core.outcome import Kind

DEFAULT_KINDS = tuple(kind for kind in Kind if kind is not Kind.SLOWDOWN)
DEFAULT_TIMEOUT_S = 300.0
DEFAULT_REDUCE_SECONDS = 120.0
DEFAULT_REPRO_RUNS = 3
DEFAULT_OUT = "compilebisect-out"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Options in force for one run; names follow the command line.

    `target` is `path/to/file.py:Name` or `package.module:Name`. `spec` is the input spec as parsed JSON and
    `spec_dir` the folder that paths inside it are relative to; `inputs` is `FILE.py:FUNC` instead of a spec.
    `tolerance` is (rtol, atol); `timeout_s` the seconds that one module's check may take.
    `workers` 0 means automatic: 1 on a GPU, else the number of cores. `reduce_seconds` is the budget for shrinking
    one repro script, `repro_runs` how often it is run as a proof. `strategies` asks for a comparison of
    ways to compile for several sizes, `context` for checks of modules in place, too. `optimizer` is the `name` of a
    class of torch.optim and its keyword arguments.
    """

    target: str
    init: dict[str, Any] = {}
    spec: Any = None
    spec_dir: str = "."
    inputs: str | None = None
    device: str = "auto"
    dtype: str | None = None
    backend: str = "inductor"
    mode: str | None = None
    dynamic: bool | None = None
    train: bool = False
    check: tuple[Kind, ...] = DEFAULT_KINDS
    config: tuple[tuple[str, Any], ...] = ()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    timeout_s: float = DEFAULT_TIMEOUT_S
    workers: int = 0
    out: str = DEFAULT_OUT
    baseline: str | None = None
    fail_on: tuple[Kind, ...] = DEFAULT_KINDS
    seed: int = 0
    tolerance: tuple[float, float] | None = None
    repro: bool = True
    reduce_seconds: float = DEFAULT_REDUCE_SECONDS
    repro_runs: int = DEFAULT_REPRO_RUNS
    cache: bool = True
    all_modules: bool = False
    strategies: bool = False
    context: bool = False
    optimizer: dict[str, Any] | None = None
    verbose: bool = False
