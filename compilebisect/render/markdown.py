"""The report as Markdown, for pull requests, issues and job summaries."""

from __future__ import annotations

import json
import re

from compilebisect.core.report import Finding, Report
from compilebisect.core.strategies import Strategies
from compilebisect.render.strategies import HEADINGS, remarks, table, title
from compilebisect.render.tree import module_tree_text
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
    visible,
)

_TREE_WIDTH = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def markdown_text(report: Report, *, folder: str = "") -> str:
    """Return a GitHub-flavoured Markdown document."""
    parts = [f"## compilebisect: {_code(report.target)}", f"**{_escaped(headline(report))}**"]
    if report.findings:
        parts.append(_table(report))
    if tree := module_tree_text(report, width=_TREE_WIDTH):
        parts.append(_fenced(tree))
    parts += [_section(report, finding, folder) for finding in report.findings]
    if report.strategies is not None:
        parts.append(_strategies(report.strategies))
    notes = []
    for note, paths in notes_with_modules(report):
        names = ", ".join(_code(name) for name in compressed_paths(module_name(report, path) for path in paths))
        notes.append(f"- {names}: {_escaped(note)}" if names else f"- {_escaped(note)}")
    if notes:
        parts.append("### Notes\n\n" + "\n".join(notes))
    parts.append(f"<sub>{_escaped(environment_line(report))}</sub>")
    return "\n\n".join(parts) + "\n"


def _table(report: Report) -> str:
    rows = ["| | kind | module | where | what |", "| --- | --- | --- | --- | --- |"]
    for finding in report.findings:
        name = _code(module_name(report, finding.module))
        cells = [
            _escaped(finding.id),
            kind_name(finding.kind),
            f"{name} and {len(finding.also_in)} more" if finding.also_in else name,
            _code(place(finding.location)) if finding.location else "",
            _escaped(finding.summary),
        ]
        # a pipe ends a cell also inside code
        rows.append("| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |")
    return "\n".join(rows)


def _section(report: Report, finding: Finding, folder: str) -> str:
    lines = [f"### {_escaped(finding.id)}: {kind_name(finding.kind)} in {_code(module_name(report, finding.module))}"]
    lines.append(_escaped(finding.summary))
    if finding.location is not None and finding.location.code:
        lines.append(_fenced(code_line(finding.location.code), "python"))
    facts = []
    if finding.location is not None:
        facts.append(f"- where: {_code(place(finding.location))}")
    if finding.stage is not None:
        facts.append(f"- stage: {finding.stage.value}")
    facts += [f"- {label}: {_escaped(text)}" for label, text in hanging_on(finding)]
    if impact := impact_of(finding):
        facts.append(f"- impact: {_escaped(impact)}")
    if finding.hint:
        facts.append(f"- fix: {_escaped(finding.hint)}")
    if region := region_of(finding):
        facts.append(f"- region: {', '.join(map(_code, compressed_paths(region)))}")
    if finding.also_in:
        facts.append(f"- also in: {', '.join(map(_code, compressed_paths(finding.also_in)))}")
    if finding.repro is not None:
        facts.append(f"- repro: {_code(repro_path(finding.repro, folder))} ({_escaped(repro_remark(finding.repro))})")
    facts.append(f"- fingerprint: {_code(finding.fingerprint)}")
    lines.append("\n".join(facts))
    evidence = {key: value for key, value in finding.evidence.items() if key != "region"}
    if evidence:
        body = _fenced(visible(json.dumps(evidence, indent=2, ensure_ascii=False, default=str)), "json")
        lines.append(f"<details><summary>Evidence</summary>\n\n{body}\n\n</details>")
    return "\n\n".join(lines)


def _strategies(strategies: Strategies) -> str:
    parts = [f"### {_escaped(title(strategies).capitalize())}"]
    if strategies.results:
        rows = [HEADINGS, *table(strategies)]
        lines = ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]
        lines.insert(1, "| --- " * len(HEADINGS) + "|")
        parts.append("\n".join(lines))
    parts.append("\n".join(f"- {_escaped(label)}: {_escaped(text)}" for label, text in remarks(strategies)))
    parts.append(f"**{_escaped(strategies.reason)}**")
    if strategies.lines:
        parts.append(_fenced("\n".join(map(visible, strategies.lines)), "python"))
    return "\n\n".join(part for part in parts if part)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", one_line(text))


def _code(text: str) -> str:
    """Return text as inline code, with a fence longer than any run of backticks in it."""
    content = one_line(text)
    fence = _fence(content, 1)
    pad = " " if content[:1] == "`" or content[-1:] == "`" else ""
    return f"{fence}{pad}{content}{pad}{fence}" if content else ""


def _fenced(text: str, language: str = "") -> str:
    fence = _fence(text, 3)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _fence(text: str, shortest: int) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)
