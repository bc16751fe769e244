"""The report as one HTML file that needs nothing else: no script, no font, no image from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from compilebisect.core.report import Finding, Report
from compilebisect.core.strategies import Strategies
from compilebisect.render.figures import columns_of
from compilebisect.render.outline import Node, outline
from compilebisect.render.strategies import HEADINGS, remarks, table, title
from compilebisect.render.wording import (
    code_line,
    compressed_paths,
    environment_line,
    hanging_on,
    headline,
    impact_of,
    kind_name,
    module_name,
    notes_with_modules,
    one_line,
    place,
    region_of,
    repro_path,
    repro_remark,
    short_place,
    visible,
)

# What lies deeper is listed with whole paths: neither a template nor a reader follows a hundred levels.
_DEEPEST = 60


def html_text(report: Report, *, folder: str = "") -> str:
    """Return a standalone HTML document; all texts of the report are escaped."""
    source = resources.files("compilebisect.render").joinpath("report.html.jinja").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_visible
    )
    by_id = {finding.id: finding for finding in report.findings}
    root = outline(report)
    return (
        environment.from_string(source).render(
            target=one_line(report.target),
            headline=headline(report),
            state="bad" if report.findings or report.uncovered or not report.complete else "good",
            tree=None if root is None else _node_view(root, by_id),
            findings=[_finding_view(report, finding, folder) for finding in report.findings],
            strategies=None if report.strategies is None else _strategies_view(report.strategies),
            notes=[
                (compressed_paths(module_name(report, path) for path in paths), visible(note))
                for note, paths in notes_with_modules(report)
            ],
            environment=environment_line(report),
            settings=_pretty(report.settings) if report.settings else "",
        )
        + "\n"
    )


def _visible(value: Any) -> Any:
    """Let no text into the document with control characters; what the template itself made is markup and stays."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _node_view(node: Node, by_id: dict[str, Finding], *, level: int = 0, is_flat: bool = False) -> dict[str, Any]:
    entry = node.entry
    children: list[dict[str, Any]] = []
    if level == _DEEPEST:
        children = [_node_view(below, by_id, level=level + 1, is_flat=True) for below in _all_below(node)]
    elif not is_flat:
        children = [_node_view(child, by_id, level=level + 1) for child in node.children]
    remark = ""
    if not node.is_quiet and entry is not None and not node.findings and entry.status not in ("ok", "not_called"):
        status = "not tested" if node.is_uncovered else kind_name(entry.status)
        remark = f"{status}, {entry.origin}" if entry.origin else status
    return {
        "label": one_line(entry.path) if is_flat and entry is not None else node.label,
        "cls": "" if entry is None or level == 0 else one_line(entry.cls),
        "count": node.count,
        "quiet": node.is_quiet,
        "idle": not node.is_judged,
        "words": node.quiet_words() if node.is_quiet else "",
        "shared": "" if entry is None else ", ".join(map(one_line, entry.shared_with)),
        "remark": remark,
        "figures": [(column.heading, column.title, column.text(node)) for column in columns_of([node])],
        "marks": [_mark_view(by_id[finding_id]) for finding_id in node.findings if finding_id in by_id],
        "children": children,
    }


def _all_below(node: Node) -> Iterator[Node]:
    waiting = [*reversed(node.children)]
    while waiting:
        below = waiting.pop()
        yield below
        waiting += reversed(below.children)


def _mark_view(finding: Finding) -> dict[str, str]:
    return {
        "id": one_line(finding.id),
        "kind": finding.kind.value,
        "name": kind_name(finding.kind),
        "place": short_place(finding.location) if finding.location else "",
    }


def _finding_view(report: Report, finding: Finding, folder: str) -> dict[str, Any]:
    rows: list[tuple[str, str, bool]] = []
    if finding.location is not None:
        rows.append(("where", place(finding.location), True))
    if finding.stage is not None:
        rows.append(("stage", finding.stage.value, False))
    rows += [(label, text, False) for label, text in hanging_on(finding)]
    if impact := impact_of(finding):
        rows.append(("impact", impact, False))
    if finding.hint:
        rows.append(("fix", visible(finding.hint), False))
    if region := region_of(finding):
        rows.append(("region", ", ".join(compressed_paths(region)), True))
    if finding.also_in:
        rows.append(("also in", ", ".join(compressed_paths(finding.also_in)), True))
    if finding.repro is not None:
        rows.append(("repro", repro_path(finding.repro, folder), True))
        rows.append(("", repro_remark(finding.repro), False))
    rows.append(("fingerprint", one_line(finding.fingerprint), True))
    return {
        **_mark_view(finding),
        "module": module_name(report, finding.module),
        "summary": visible(finding.summary),
        "code": code_line(finding.location.code) if finding.location else "",
        "rows": rows,
        "evidence": _pretty({key: value for key, value in finding.evidence.items() if key != "region"}),
    }


def _strategies_view(strategies: Strategies) -> dict[str, Any]:
    return {
        "title": title(strategies).capitalize(),
        "headings": HEADINGS if strategies.results else (),
        "rows": table(strategies),
        "chosen": strategies.recommended.value if strategies.recommended else "",
        "remarks": [*remarks(strategies), ("take", strategies.reason)],
        "code": "\n".join(map(visible, strategies.lines)),
    }


def _pretty(value: dict[str, Any]) -> str:
    return visible(json.dumps(value, indent=2, ensure_ascii=False, default=str)) if value else ""
