"""The comparison of two reports as a terminal shows it."""

from __future__ import annotations

from rich.text import Text

from compilebisect.core.report import Finding, Report
from compilebisect.core.report_diff import ReportDiff
from compilebisect.render.console import printed
from compilebisect.render.wording import kind_name, module_name, one_line, place
from compilebisect.render.wrap import wrapped

_INDENT = " " * 11


def diff_text(diff: ReportDiff, base: Report, new: Report, *, width: int, color: bool = False) -> str:
    """Return one block per finding, the new ones first, then notes and a line of counts."""
    lines: list[Text] = []
    for finding in diff.new:
        lines += _block("+ new", _title(finding, new), _details(finding), "bold red", width)
    for change in diff.changed:
        before, after = _title(change.base, base), _title(change.new, new)
        what = "the same fault in another module" if change.is_same_fault else "another fault at the same place"
        details = [f"was {before}", what, *_details(change.new)]
        lines += _block("~ changed", after, details, "bold yellow", width)
    for finding in diff.fixed:
        lines += _block("- fixed", _title(finding, base), _details(finding), "bold green", width)
    for finding in diff.unchanged:
        lines += _block("  same", _title(finding, new), [], "dim", width)
    for note in diff.notes:
        lines += _block("  note", note, [], "dim", width)
    if lines:
        lines.append(Text(""))
    lines.append(
        Text(
            f"{len(diff.new)} new, {len(diff.fixed)} fixed, {len(diff.changed)} changed, "
            f"{len(diff.unchanged)} unchanged",
            "bold red" if diff.new else "bold green",
        )
    )
    return printed(lines, width, color=color)


def _title(finding: Finding, report: Report) -> str:
    where = f" at {place(finding.location)}" if finding.location else ""
    more = f" and {len(finding.also_in)} more" if finding.also_in else ""
    return f"{kind_name(finding.kind)} in {module_name(report, finding.module)}{more}{where} ({finding.id})"


def _details(finding: Finding) -> list[str]:
    return [one_line(finding.summary)]


def _block(label: str, title: str, details: list[str], style: str, width: int) -> list[Text]:
    first, *rest = wrapped(one_line(title), width - len(_INDENT))
    lines = [Text.assemble((f"{label:<{len(_INDENT)}}", style), first)]
    lines += [Text(_INDENT + line) for line in rest]
    for detail in details:
        lines += [Text(f"{_INDENT}  {line}", "dim") for line in wrapped(detail, width - len(_INDENT) - 2)]
    return lines
