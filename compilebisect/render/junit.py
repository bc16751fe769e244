"""The report as JUnit XML: one test case per module, so that CI systems show a history of each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree

from compilebisect.core.outcome import Kind
from compilebisect.core.report import Finding, ModuleEntry, Report
from compilebisect.render.wording import (
    code_line,
    environment_line,
    hanging_on,
    headline,
    impact_of,
    kind_name,
    module_name,
    modules_of,
    place,
    repro_path,
    repro_remark,
    untested_text,
    visible,
)

# What XML 1.0 forbids even when escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_text(report: Report, *, folder: str = "") -> str:
    """Return a `testsuites` document. Only modules that introduce a finding fail; inherited faults are said."""
    by_module: dict[str, list[Finding]] = {}
    for finding in report.findings:
        for path in modules_of(finding):
            by_module.setdefault(path, []).append(finding)
    suite = ElementTree.Element("testsuite", name=_clean(f"compilebisect {report.target}"))
    for entry in report.modules:
        _add_case(suite, report, entry, by_module.pop(entry.path, []), folder)
    for path, findings in by_module.items():
        _add_faults(_case(suite, report, path, ""), report, findings, folder)
    if not report.complete:
        case = ElementTree.SubElement(suite, "testcase", classname="compilebisect", name="the whole model was tested")
        ElementTree.SubElement(case, "error", type="incomplete", message="the run was stopped early")
    ElementTree.SubElement(suite, "system-out").text = _clean(f"{headline(report)}\n{environment_line(report)}")
    counts = {"tests": len(suite.findall("testcase"))}
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        counts[attribute] = len(suite.findall(f"testcase/{tag}"))
    totals = {name: str(count) for name, count in counts.items()} | {"time": f"{report.timing.total_s:.3f}"}
    suite.attrib.update(totals)
    root = ElementTree.Element("testsuites", {"name": "compilebisect", **totals})
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_case(
    suite: ElementTree.Element, report: Report, entry: ModuleEntry, findings: list[Finding], folder: str
) -> None:
    case = _case(suite, report, entry.path, entry.cls)
    case.set("time", f"{entry.compile_s:.3f}")
    if findings:
        _add_faults(case, report, findings, folder)
    elif any(part.path == entry.path for part in report.uncovered):
        ElementTree.SubElement(case, "error", type="untested", message=_clean(untested_text(report, entry.path)))
    elif entry.status in ("not_called", "skipped", "untested"):
        ElementTree.SubElement(case, "skipped", message=kind_name(entry.status))
    elif entry.origin == "inherited":
        ElementTree.SubElement(case, "system-out").text = f"{kind_name(entry.status)}, inherited from below"
    elif entry.status != "ok":
        # a status without a finding is still no success
        ElementTree.SubElement(case, "failure", type=entry.status, message=kind_name(entry.status))


def _case(suite: ElementTree.Element, report: Report, path: str, cls: str) -> ElementTree.Element:
    name = _clean(module_name(report, path))
    return ElementTree.SubElement(suite, "testcase", classname=_clean(cls) or "module", name=name)


def _add_faults(case: ElementTree.Element, report: Report, findings: Iterable[Finding], folder: str) -> None:
    """Add one element for all findings of a module, since many readers take only the first."""
    ordered = sorted(findings, key=lambda finding: finding.kind.severity)
    worst = ordered[0].kind
    element = ElementTree.SubElement(case, "error" if worst in (Kind.CRASH, Kind.TIMEOUT) else "failure")
    element.set("type", worst.value)
    element.set("message", _clean("; ".join(f"{finding.id}: {finding.summary}" for finding in ordered)))
    element.text = _clean("\n\n".join(_fault_text(report, finding, folder) for finding in ordered))


def _fault_text(report: Report, finding: Finding, folder: str) -> str:
    lines = [f"{finding.id}: {kind_name(finding.kind)} in {module_name(report, finding.module)}", finding.summary]
    if finding.location is not None:
        lines.append(f"where: {place(finding.location)}")
        lines += [f"    {code_line(finding.location.code)}"] if finding.location.code else []
    if finding.stage is not None:
        lines.append(f"stage: {finding.stage.value}")
    lines += [f"{label}: {text}" for label, text in hanging_on(finding)]
    if impact := impact_of(finding):
        lines.append(f"impact: {impact}")
    if finding.hint:
        lines.append(f"fix: {finding.hint}")
    if finding.repro is not None:
        lines.append(f"repro: {repro_path(finding.repro, folder)} ({repro_remark(finding.repro)})")
    return "\n".join(lines)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", visible(text))
