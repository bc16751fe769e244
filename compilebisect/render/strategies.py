"""The comparison of strategies as rows of text, for every rendering."""

from __future__ import annotations

from rich.text import Text

from compilebisect.core.strategies import Strategies, StrategyResult
from compilebisect.core.words import plural
from compilebisect.render.wording import one_line, seconds, visible
from compilebisect.render.wrap import wrapped

HEADINGS = ("strategy", "compiles", "graphs", "guards", "compile", "total", "runs", "against static")
# What a narrow terminal does without, first of all the first.
_DISPENSABLE = ("guards", "graphs", "runs", "compile", "compiles")
# With more variants than this the least and the most have to do.
_SHOWN_RUNS = 4


def title(strategies: Strategies) -> str:
    """Return what is compared: `dynamic shapes over 3 variants: batch 2, 4, 4; seq 16, 32, 64`."""
    names = strategies.variants[0] if strategies.variants else {}
    dims = "; ".join(
        f"{one_line(name)} {', '.join(str(sizes.get(name, '')) for sizes in strategies.variants)}"
        for name in names
        if len({sizes.get(name) for sizes in strategies.variants}) > 1
    )
    text = f"dynamic shapes over {plural(len(strategies.variants), 'variant')}"
    return f"{text}: {dims}" if dims else text


def table(strategies: Strategies) -> list[tuple[str, ...]]:
    """Return a row of cells for each strategy, as in `HEADINGS`; seconds of runs are of all variants together."""
    return [
        (
            result.strategy.value,
            str(result.compiles),
            str(result.graphs),
            f"{result.guards} ({result.shape_guards})" if result.shape_guards else str(result.guards),
            seconds(result.compile_s) if result.runs else "",
            seconds(result.total_s) if result.runs else "",
            _short_seconds(result.run_s) if result.runs else "",
            _against_static(result) if result.runs else "failed",
        )
        for result in strategies.results
    ]


def remarks(strategies: Strategies) -> list[tuple[str, str]]:
    """Return what is to be said below the table: a label and a text each."""
    found = [
        (result.strategy.value, visible(f"{result.error_type}: {result.error}" if result.error_type else result.error))
        for result in strategies.results
        if result.error
    ]
    for result in strategies.results:
        found += [(result.strategy.value, visible(note)) for note in result.notes]
    graphs: dict[str, list[str]] = {}
    for result in strategies.results:
        if result.cuda_graphs:
            graphs.setdefault(result.cuda_graphs, []).append(result.strategy.value)
    found += [("CUDA graphs", f"{', '.join(names)}: {visible(text)}") for text, names in graphs.items()]
    return [*found, *(("note", visible(note)) for note in strategies.notes)]


def strategy_lines(strategies: Strategies, width: int) -> list[Text]:
    """Return the comparison as a terminal shows it."""
    lines = [Text(line, "bold cyan") for line in wrapped(title(strategies), width)]
    rows = [HEADINGS, *table(strategies)]
    for heading in _DISPENSABLE:
        if sum(_widths(rows)) + 2 * len(rows[0]) <= width:
            break
        place = rows[0].index(heading)
        rows = [(*row[:place], *row[place + 1 :]) for row in rows]
    sizes = _widths(rows)
    chosen = strategies.recommended.value if strategies.recommended else ""
    for number, row in enumerate(rows if strategies.results else ()):
        cells = [f"{cell:<{sizes[0]}}" if k == 0 else f"{cell:>{sizes[k]}}" for k, cell in enumerate(row)]
        style = "dim" if number == 0 else "bold green" if row[0] == chosen else ""
        lines.append(Text(f"  {'  '.join(cells[:-1])}  {row[-1]}", style))
    for label, text in [*remarks(strategies), ("take", visible(strategies.reason))]:
        for part, line in enumerate(wrapped(text, width - 15)):
            lines.append(Text.assemble((f"  {label if part == 0 else '':<13}", "dim"), line))
    lines += [Text(f"  {'':<13}{visible(line)}", "green") for line in strategies.lines]
    return lines


def _widths(rows: list[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _against_static(result: StrategyResult) -> str:
    ratios = [run.against_static for run in result.runs if run.against_static is not None]
    if not ratios:
        return "no static runs"
    if len(ratios) <= _SHOWN_RUNS:
        return " ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"{min(ratios):.2f} … {max(ratios):.2f}"


def _short_seconds(value: float) -> str:
    return seconds(value) if value >= 1 else f"{value * 1e3:.3g} ms"
