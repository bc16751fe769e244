"""The findings as workflow commands that GitHub Actions shows beside the lines of a pull request."""

from __future__ import annotations

from compilebisect.core.outcome import Kind
from compilebisect.core.report import Finding, Report
from compilebisect.render.wording import (
    compressed_paths,
    hanging_on,
    headline,
    kind_name,
    module_name,
    one_line,
    repro_path,
    repro_remark,
    source_path,
    visible,
)

_LEVELS = {Kind.GRAPH_BREAK: "warning", Kind.RECOMPILE: "warning", Kind.SLOWDOWN: "notice"}


def github_text(report: Report, *, folder: str = "") -> str:
    """Return one workflow command per finding and one that sums up.

    Source: "Workflow commands for GitHub Actions" in GitHub's documentation, for the form and its escapes.
    """
    lines = [_command(report, finding, folder) for finding in report.findings]
    level = "error" if report.uncovered else "notice" if report.complete else "warning"
    lines.append(f"::{level} title=compilebisect::{_data(headline(report))}")
    return "\n".join(lines) + "\n"


def _command(report: Report, finding: Finding, folder: str) -> str:
    name = module_name(report, finding.module)
    properties = []
    if finding.location is not None:
        properties.append(f"file={_property(source_path(report, finding.location))}")
        properties.append(f"line={finding.location.line}")
    properties.append(f"title={_property(f'{finding.id}: {kind_name(finding.kind)} in {name}')}")
    message = [finding.summary]
    message += [f"{label.capitalize()}: {text}" for label, text in hanging_on(finding)]
    if finding.hint:
        message.append(f"Fix: {finding.hint}")
    if finding.also_in:
        message.append(f"Also in: {', '.join(compressed_paths(finding.also_in))}")
    if finding.repro is not None:
        message.append(f"Repro: {repro_path(finding.repro, folder)} ({repro_remark(finding.repro)})")
    return f"::{_LEVELS.get(finding.kind, 'error')} {','.join(properties)}::{_data(chr(10).join(message))}"


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(one_line(text)).replace(":", "%3A").replace(",", "%2C")
