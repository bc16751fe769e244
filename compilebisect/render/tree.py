"""The report as a terminal shows it: the module tree, the findings below it, one line that sums up."""

from __future__ import annotations

from rich.text import Text

from compilebisect.core.report import Finding, Report
from compilebisect.render.console import printed
from compilebisect.render.outline import Node, outline
from compilebisect.render.strategies import strategy_lines
from compilebisect.render.tree_lines import tree_lines
from compilebisect.render.wording import (
    CROSS,
    DASH,
    TICK,
    TIMES,
    code_line,
    compressed_paths,
    environment_line,
    evidence_text,
    hanging_on,
    headline,
    impact_of,
    kind_name,
    module_name,
    no_repro_remark,
    notes_with_modules,
    one_line,
    place,
    region_of,
    repro_path,
    repro_remark,
    short_place,
    visible,
)
from compilebisect.render.wrap import styled, wrapped

MIN_WIDTH = 40
_STYLES = {
    "crash": "bold red",
    "timeout": "bold red",
    "error": "bold red",
    "divergence": "bold magenta",
    "graph_break": "bold yellow",
    "recompile": "bold yellow",
    "slowdown": "bold cyan",
}
_LABEL_WIDTH = 9


def tree_text(report: Report, *, width: int, color: bool = False, folder: str = "") -> str:
    """Return the whole rendering: target, module tree, findings, notes and summary."""
    width = max(width, MIN_WIDTH)
    parts: list[Text | str] = [*_head(report, width)]
    if (root := outline(report)) is not None:
        parts += _tree(report, root, width)
    for finding in report.findings:
        parts += ["", *_finding_lines(report, finding, width, folder)]
    if report.strategies is not None:
        parts += ["", *strategy_lines(report.strategies, width)]
    parts += [*_note_lines(report, width), ""]
    style = "bold red" if report.findings or report.uncovered or not report.complete else "bold green"
    parts += [Text(line, style) for line in wrapped(headline(report), width)]
    return printed(parts, width, color=color)


def module_tree_text(report: Report, *, width: int) -> str:
    """Return the module tree alone, without colours; empty where the report has no modules."""
    root = outline(report)
    width = max(width, MIN_WIDTH)
    return "" if root is None else printed(_tree(report, root, width), width, color=False)


def _head(report: Report, width: int) -> list[Text]:
    lines = [Text(line, "bold") for line in wrapped(one_line(report.target), width)]
    lines += [Text(line, "dim") for line in wrapped(environment_line(report), width)]
    return [*lines, Text("")]


def _tree(report: Report, root: Node, width: int) -> list[Text]:
    findings = {finding.id: finding for finding in report.findings}
    return tree_lines(root, lambda node: _node_text(node, findings, is_root=node is root), width)


def _node_text(node: Node, findings: dict[str, Finding], *, is_root: bool = False) -> Text:
    text = Text()
    entry = node.entry
    if entry is None:
        # a line for several healthy siblings: what they are called matters least
        return text.append(node.label, "dim").append("  ").append_text(_quiet_text(node))
    text.append(node.label, "dim" if node.is_quiet else "bold" if node.findings else "")
    if not is_root:
        text.append("  ").append(one_line(entry.cls), "dim" if node.is_quiet else "cyan")
    if node.count > 1:
        text.append(f" {TIMES}{node.count}", "bold" if not node.is_quiet else "dim")
    if entry.shared_with:
        text.append(f"  shared with {', '.join(map(one_line, entry.shared_with))}", "dim")
    text.append("  ")
    if node.is_quiet:
        return text.append_text(_quiet_text(node))
    if node.findings:
        for number, finding_id in enumerate(node.findings):
            _append_mark(text, findings[finding_id], is_first=number == 0)
    elif entry.status in _STYLES:
        remark = f", {entry.origin}" if entry.origin else ""
        text.append(f"{kind_name(entry.status)}{remark}", "dim")
    elif entry.status == "ok":
        text.append(TICK, "green")
        if entry.implied:
            text.append(" implied", "dim")
    elif entry.status == "skipped":
        text.append(f"{DASH} skipped", "dim")
    elif node.is_uncovered:
        text.append("? not tested", "bold red")
    elif entry.status == "untested":
        text.append(f"{DASH} untested", "dim")
    return text


def _append_mark(text: Text, finding: Finding, *, is_first: bool) -> None:
    if not is_first:
        text.append(", ")
    text.append(f"{CROSS} {kind_name(finding.kind)} {one_line(finding.id)}", _STYLES[finding.kind.value])
    if finding.location is not None:
        text.append(f" {short_place(finding.location)}", "dim")


def _quiet_text(node: Node) -> Text:
    text = Text(TICK, "green") if node.is_judged else Text(DASH, "dim")
    words = node.quiet_words()
    return text.append(f" {words}", "dim") if words else text


def _finding_lines(report: Report, finding: Finding, width: int, folder: str) -> list[Text]:
    style = _STYLES[finding.kind.value]
    title = f"{one_line(finding.id)}  {kind_name(finding.kind)} in {module_name(report, finding.module)}"
    if len(finding.also_in):
        title += f" and {len(finding.also_in)} more"
    lines = [Text(line, style) for line in wrapped(title, width)]
    stage = f"stage {finding.stage.value}" if finding.stage else ""
    lines += _row("where", " · ".join(part for part in (place(finding.location), stage) if part), width)
    if finding.location is not None and finding.location.code:
        lines.append(Text(" " * (_LABEL_WIDTH + 4) + code_line(finding.location.code), "italic"))
    lines += _row("from", evidence_text(finding, "user_line"), width)
    lines += _row("what", finding.summary, width)
    lines += _row("hidden", f"behind {hider}" if (hider := evidence_text(finding, "hidden_behind")) else "", width)
    lines += _row("costs", evidence_text(finding, "consequence"), width)
    for label, text in hanging_on(finding):
        lines += _row(label, text, width)
    lines += _row("impact", impact_of(finding), width)
    lines += _row("fix", finding.hint, width, "green")
    lines += _row("region", ", ".join(compressed_paths(region_of(finding))), width)
    lines += _row("also in", ", ".join(compressed_paths(finding.also_in)), width)
    if finding.repro is None:
        return lines + _row("repro", no_repro_remark(finding), width, "dim")
    lines += _row("repro", repro_path(finding.repro, folder), width, "bold")
    return lines + _row("", repro_remark(finding.repro), width, "dim" if finding.repro.verified else "yellow")


def _row(label: str, content: str, width: int, style: str = "") -> list[Text]:
    """Return a labelled row with a hanging indent; nothing where there is no content."""
    if not content.strip():
        return []
    lines = []
    for number, line in enumerate(wrapped(visible(content), width - _LABEL_WIDTH - 2)):
        head = f"  {label if number == 0 else '':<{_LABEL_WIDTH}}"
        lines.append(styled((head, "dim"), (line, style)))
    return lines


def _note_lines(report: Report, width: int) -> list[Text]:
    lines = []
    for note, paths in notes_with_modules(report):
        names = ", ".join(compressed_paths(module_name(report, path) for path in paths))
        lines += _row("note", f"{names}: {note}" if names else note, width, "dim")
    return [Text(""), *lines] if lines else []
