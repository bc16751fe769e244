"""The findings as SARIF 2.1.0, for code scanning and editors."""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any
from urllib.parse import quote

from compilebisect.core.outcome import Kind
from compilebisect.core.report import Finding, Report
from compilebisect.render.wording import (
    code_line,
    compressed_paths,
    hanging_on,
    kind_name,
    module_name,
    modules_of,
    repro_path,
    source_path,
    untested_text,
)

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Kind.GRAPH_BREAK: "warning", Kind.RECOMPILE: "warning", Kind.SLOWDOWN: "note"}
_RULES = {
    Kind.CRASH: "The process dies when the module is compiled or its compiled code runs.",
    Kind.TIMEOUT: "Compiling the module or running its compiled code does not end in time.",
    Kind.ERROR: "The compiler stack raises an exception for a module that runs in eager mode.",
    Kind.DIVERGENCE: "The compiled module gives another result than eager mode.",
    Kind.GRAPH_BREAK: "Dynamo cannot trace the module into one graph and runs a part of it in eager mode.",
    Kind.RECOMPILE: "The module is compiled again when its inputs change.",
    Kind.SLOWDOWN: "The compiled module is slower than eager mode.",
}


def sarif_text(report: Report, *, folder: str = "") -> str:
    """Return a SARIF log with one run, whose rules are the kinds of finding.

    Source: OASIS "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
    """
    driver = {
        "name": "compilebisect",
        "version": report.environment.compilebisect,
        "rules": [
            {
                "id": kind.value,
                "name": kind.value.title().replace("_", ""),
                "shortDescription": {"text": _RULES[kind]},
                "defaultConfiguration": {"level": _LEVELS.get(kind, "error")},
            }
            for kind in Kind
        ],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [_invocation(report)],
        "results": [_result(report, finding, folder) for finding in report.findings],
        "columnKind": "unicodeCodePoints",
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    # lone surrogates stay escaped, as no encoding can hold them
    return json.dumps(log, indent=2, ensure_ascii=True) + "\n"


def _invocation(report: Report) -> dict[str, Any]:
    invocation: dict[str, Any] = {"executionSuccessful": report.complete and not report.uncovered}
    if report.uncovered:
        invocation["toolExecutionNotifications"] = [
            {"level": "error", "message": {"text": f"not tested: {untested_text(report, part.path)}"}}
            for part in report.uncovered
        ]
    return invocation


def _result(report: Report, finding: Finding, folder: str) -> dict[str, Any]:
    name = module_name(report, finding.module)
    text = [f"{kind_name(finding.kind)} in {name}: {finding.summary}"]
    text += [f"{label.capitalize()}: {words}" for label, words in hanging_on(finding)]
    if finding.hint:
        text.append(f"Fix: {finding.hint}")
    if finding.also_in:
        text.append(f"Also in: {', '.join(compressed_paths(finding.also_in))}")
    if finding.repro is not None:
        text.append(f"Repro: {repro_path(finding.repro, folder)}")
    properties: dict[str, Any] = {"id": finding.id}
    if finding.stage is not None:
        properties["stage"] = finding.stage.value
    if finding.repro is not None:
        properties["reproVerified"] = finding.repro.verified
    return {
        "ruleId": finding.kind.value,
        "ruleIndex": finding.kind.severity,
        "level": _LEVELS.get(finding.kind, "error"),
        "message": {"text": "\n".join(text)},
        "locations": [_location(report, finding)],
        "partialFingerprints": {"compilebisect/v1": finding.fingerprint},
        "properties": properties,
    }


def _location(report: Report, finding: Finding) -> dict[str, Any]:
    location: dict[str, Any] = {
        "logicalLocations": [
            {"fullyQualifiedName": path or module_name(report, path), "kind": "module"} for path in modules_of(finding)
        ]
    }
    physical: dict[str, Any] = {}
    if finding.location is not None:
        physical = {"artifactLocation": _artifact(source_path(report, finding.location))}
        # SARIF counts lines from 1
        if finding.location.line >= 1:
            physical["region"] = {"startLine": finding.location.line}
            if finding.location.code:
                physical["region"]["snippet"] = {"text": code_line(finding.location.code)}
    elif (file := report.target.rpartition(":")[0]).endswith(".py"):
        # viewers show nothing without a file: the target's is the best that is known
        physical = {"artifactLocation": _artifact(file.replace("\\", "/"))}
    if physical:
        location["physicalLocation"] = physical
    return location


def _artifact(path: str) -> dict[str, Any]:
    if re.match("[A-Za-z]:/", path):
        return {"uri": f"file:///{quote(path, safe='/:', errors='replace')}"}
    if posixpath.isabs(path):
        return {"uri": f"file://{quote(path, errors='replace')}"}
    return {"uri": quote(path, errors="replace"), "uriBaseId": "%SRCROOT%"}
