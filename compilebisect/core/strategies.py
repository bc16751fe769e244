"""Ways to compile a model for inputs of several sizes, what was measured of each, and which of them to take.

Pure: `runtime.strategy_probe` measures, `render.strategies` draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

# The recommended strategy takes at most this many times the seconds of the fastest one.
WITHIN = 1.05


class Strategy(str, Enum):
    """The simplest to keep first: of equally fast ones it is taken."""

    AUTOMATIC = "automatic"
    MARK_DYNAMIC = "mark_dynamic"
    DYNAMIC = "dynamic=True"
    STATIC = "static"
    BUCKETS = "buckets"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A dim of an input tensor that is to be dynamic: `path` leads to the tensor, from `args` or `kwargs`."""

    path: str
    dim: int
    name: str = ""
    sizes: tuple[int, ...] = ()
    min: int | None = None
    max: int | None = None


class StrategyRun(msgspec.Struct, frozen=True, kw_only=True):
    """One variant: seconds of its first call, compiling included, and the median of later ones.

    `against_static` is that median by the one of code that was compiled for this size alone. `padded_to` has the sizes
    that were run in place of the variant's own, by dim.
    """

    variant: int
    first_s: float
    run_s: float
    against_static: float | None = None
    padded_to: dict[str, int] = {}


class StrategyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one strategy took; with an `error` the figures go as far as it came.

    `compiles` counts functions that Dynamo compiled, `graphs` what they were compiled to, `guards` the conditions that
    are checked at each call, and `shape_guards` those about sizes that were made dynamic. `compile_s` is what first
    calls took longer than later ones; `total_s` the seconds to go through all variants once, compiling included;
    `run_s` the same once all is compiled. `candidate` is empty where it may be recommended, else it says why not.
    """

    strategy: Strategy
    compiles: int = 0
    graphs: int = 0
    guards: int = 0
    shape_guards: int = 0
    compile_s: float = 0.0
    run_s: float = 0.0
    total_s: float = 0.0
    runs: tuple[StrategyRun, ...] = ()
    cuda_graphs: str = ""
    error_type: str = ""
    error: str = ""
    not_candidate: str = ""
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Strategies(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison: sizes of each variant by dim, a result for each strategy, and which one to take, and why."""

    variants: tuple[dict[str, int], ...] = ()
    results: tuple[StrategyResult, ...] = ()
    recommended: Strategy | None = None
    reason: str = ""
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def compared(
    variants: Sequence[Mapping[str, int]],
    results: Sequence[StrategyResult],
    *,
    least: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> Strategies:
    """Hold each strategy's runs against static ones, and recommend one; `least` has lower bounds of dims."""
    results = _against_static(results)
    chosen, reason = recommend(results)
    return Strategies(
        variants=tuple(dict(sizes) for sizes in variants),
        results=tuple(results),
        recommended=None if chosen is None else chosen.strategy,
        reason=reason,
        lines=() if chosen is None else chosen.lines,
        notes=(*notes, *_notes_on_sizes(variants, least or {})),
    )


def recommend(results: Sequence[StrategyResult]) -> tuple[StrategyResult | None, str]:
    """Return the strategy to take and why: of those within 5 % of the fastest, the simplest.

    Seconds are those to go through all variants once, compiling included.
    """
    candidates = [one for one in results if not one.error and not one.not_candidate and one.runs]
    if not candidates:
        return None, "none of the strategies that could be recommended ran through"
    fastest = min(candidates, key=lambda one: one.total_s)
    order = list(Strategy)
    near = [one for one in candidates if one.total_s <= WITHIN * fastest.total_s]
    chosen = min(near, key=lambda one: order.index(one.strategy))
    name = chosen.strategy.value
    reason = f"{name} goes through the variants in {_s(chosen.total_s)}, compiling included"
    if chosen is fastest:
        reason += ", and is the fastest"
    else:
        reason += f": within 5 % of the fastest, {fastest.strategy.value} ({_s(fastest.total_s)}), and simpler"
    more = (
        _each_size(chosen, results),
        _plain(chosen, candidates),
        _later(chosen, candidates),
        _faster_but(chosen, results),
    )
    return chosen, f"{reason}.{''.join(more)}"


def _each_size(chosen: StrategyResult, results: Sequence[StrategyResult]) -> str:
    """Say that a strategy which is to serve many sizes compiles for each of them; of two sizes all do."""
    static = next((one for one in results if one.strategy is Strategy.STATIC and not one.error), None)
    is_dynamic = chosen.strategy not in (Strategy.STATIC, Strategy.BUCKETS)
    if static is None or not is_dynamic or len(chosen.runs) < 3 or chosen.compiles < static.compiles:
        return ""
    return " But it compiles for each size anew, also for further ones: mend the recompiles among the findings first."


def _plain(chosen: StrategyResult, candidates: Sequence[StrategyResult]) -> str:
    """Say which strategy to take by whoever cannot have padded positions in the output."""
    others = [one for one in candidates if one.strategy is not Strategy.BUCKETS]
    if chosen.strategy is not Strategy.BUCKETS or not others:
        return ""
    best = min(others, key=lambda one: one.total_s)
    return (
        " The model's output then covers padded positions; of those that leave it as it is, "
        f"{best.strategy.value} is the fastest ({_s(best.total_s)})."
    )


def _later(chosen: StrategyResult, candidates: Sequence[StrategyResult]) -> str:
    """Say which strategy overtakes the chosen one where each size comes often."""
    best = min(candidates, key=lambda one: one.run_s)
    gain = chosen.run_s - best.run_s
    if best is chosen or gain < (1 - 1 / WITHIN) * chosen.run_s:
        return ""
    passes = max((best.total_s - chosen.total_s) / gain, 0) + 1
    return (
        f" Once compiled, {best.strategy.value} is faster ({_s(best.run_s)} against {_s(chosen.run_s)} for all "
        f"variants): it pays off from about {passes:.0f} passes over them."
    )


def _faster_but(chosen: StrategyResult, results: Sequence[StrategyResult]) -> str:
    others = [one for one in results if one.not_candidate and not one.error and one.total_s < chosen.total_s]
    return "".join(f" {one.strategy.value} took {_s(one.total_s)}, but {one.not_candidate}." for one in others)


def _against_static(results: Sequence[StrategyResult]) -> list[StrategyResult]:
    static = next((one for one in results if one.strategy is Strategy.STATIC), None)
    known = {run.variant: run.run_s for run in static.runs} if static is not None else {}
    return [
        msgspec.structs.replace(
            one,
            runs=tuple(
                msgspec.structs.replace(run, against_static=round(run.run_s / known[run.variant], 4))
                if known.get(run.variant)
                else run
                for run in one.runs
            ),
        )
        for one in results
    ]


def _notes_on_sizes(variants: Sequence[Mapping[str, int]], least: Mapping[str, int]) -> list[str]:
    met = {f"{name} = {size}" for sizes in (*variants, least) for name, size in sizes.items() if size in (0, 1)}
    special = sorted(met)
    if not special:
        return []
    return [
        f"sizes of 0 and 1 are special in torch ({', '.join(special)}): they are always compiled apart, also where the "
        "dim is dynamic or marked so"
    ]


def _s(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"
