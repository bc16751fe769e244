"""Every format on the same reports: golden files, and what holds whatever a report says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import pytest

from compilebisect.core.report import Location, Report, report_from_json
from compilebisect.errors import UsageError
from compilebisect.render import FORMATS, render
from tests.sample_reports import healthy_report, interrupted_report, large_report

REPORTS = {"healthy": healthy_report, "large": large_report, "interrupted": interrupted_report}
ENDINGS = {
    "tree": "txt", "json": "json", "markdown": "md", "html": "html", "junit": "xml", "sarif": "sarif", "github": "txt"
}  # fmt: skip


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", REPORTS)
def test_rendering_is_as_looked_at(name: str, format_name: str, golden: Callable[[str, str], None]) -> None:
    text = render(REPORTS[name](), format_name, width=80, folder="compilebisect-out")
    golden(f"{name}.{format_name}.{ENDINGS[format_name]}", text)


def hostile_report() -> Report:
    """Return a report in which every text of the user holds what some format might obey."""
    bad = "\x1b[31m</script><script>alert(1)</script>&amp;]]>%0A::error::x\r\n|`$(x)`\u202e\x00\udc80{{ 7 * 7 }}"
    report = large_report()
    findings = tuple(
        msgspec.structs.replace(
            finding,
            summary=bad,
            hint=bad,
            module=finding.module,
            location=Location(file=f"a,b:{bad}.py", line=3, function=bad, code=bad),
            evidence={"text": bad, "not_proved": [bad], "follows": [bad]},
        )
        for finding in report.findings
    )
    modules = tuple(msgspec.structs.replace(entry, cls=bad, notes=(bad,)) for entry in report.modules)
    return msgspec.structs.replace(report, target=f"{bad}:{bad}", modules=modules, findings=findings, notes=(bad,))


@pytest.mark.parametrize("format_name", [name for name in FORMATS if name != "json"])
def test_no_control_character_of_user_text_gets_through(format_name: str) -> None:
    text = render(hostile_report(), format_name)
    found = set(re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text))
    assert not found
    text.encode("utf-8")


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("change", [{"modules": ()}, {"findings": ()}, {"modules": (), "findings": (), "notes": ()}])
def test_reports_with_missing_parts_are_rendered(format_name: str, change: dict[str, tuple[()]]) -> None:
    report = msgspec.structs.replace(large_report(), **change)
    assert render(report, format_name)


@pytest.mark.parametrize("format_name", FORMATS)
def test_what_hangs_on_a_finding_is_said_with_it(format_name: str) -> None:
    report = large_report()
    evidence = {"not_proved": ["break one (no script shows it)"], "follows": ["break two"]}
    finding = msgspec.structs.replace(report.findings[0], evidence=evidence)
    text = render(msgspec.structs.replace(report, findings=(finding,)), format_name, width=80)
    assert "break one" in text and "break two" in text


def test_unknown_format_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'markdown'"):
        render(healthy_report(), "markdwn")


def test_json_is_the_report() -> None:
    assert large_report() == report_from_json(render(large_report(), "json").encode())


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_html_loads_nothing_and_runs_nothing() -> None:
    parser = _Tags()
    parser.feed(render(hostile_report(), "html"))
    assert not {tag for tag, _ in parser.tags} & {"script", "link", "img", "iframe", "object", "embed"}
    targets = [attrs["href"] for tag, attrs in parser.tags if tag == "a"]
    assert targets and all(str(target).startswith("#") for target in targets)
    assert not [attrs for _, attrs in parser.tags if any(name.startswith("on") or name == "src" for name in attrs)]


def test_html_links_lead_to_findings() -> None:
    parser = _Tags()
    parser.feed(render(large_report(), "html"))
    ids = {attrs.get("id") for _, attrs in parser.tags}
    assert {attrs["href"] for tag, attrs in parser.tags if tag == "a"} == {f"#F{number}" for number in range(1, 9)}
    assert {f"F{number}" for number in range(1, 9)} <= ids


def test_junit_fails_the_modules_that_introduce_a_fault_and_no_other() -> None:
    root = ElementTree.fromstring(render(large_report(), "junit"))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    bad = {name for name, case in cases.items() if case.find("failure") is not None or case.find("error") is not None}
    mlps = {f"vision.layers.{i}.mlp" for i in range(12)}
    assert bad == mlps | {"decoder.cross", "decoder.kernel", "decoder.loop", "head", "pool"}
    assert len(cases) == int(root.get("tests", 0)) == len(large_report().modules)
    assert cases["decoder.kernel"].find("error") is not None
    assert cases["unused"].find("skipped") is not None
    assert "F6" in cases["head"][0].get("message", "") and "F7" in cases["head"][0].get("message", "")


def test_junit_of_an_interrupted_run_does_not_pass() -> None:
    report = msgspec.structs.replace(healthy_report(), complete=False)
    assert ElementTree.fromstring(render(report, "junit")).get("errors") == "1"


def test_junit_is_xml_whatever_the_texts() -> None:
    ElementTree.fromstring(render(hostile_report(), "junit"))


def test_sarif_results_refer_to_their_rules_and_files() -> None:
    log = json.loads(render(large_report(), "sarif"))
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert log["version"] == "2.1.0"
    assert len(run["results"]) == 8
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"error", "warning", "note"}
        assert result["message"]["text"]
    place = run["results"][2]["locations"][0]
    assert place["physicalLocation"]["artifactLocation"] == {"uri": "models/vlm.py", "uriBaseId": "%SRCROOT%"}
    assert place["physicalLocation"]["region"]["startLine"] == 31
    assert len(place["logicalLocations"]) == 12


@pytest.mark.parametrize(
    ("file", "artifact"),
    [
        ("/opt/a b/x.py", {"uri": "file:///opt/a%20b/x.py"}),
        ("C:\\code\\x.py", {"uri": "file:///C:/code/x.py"}),
        ("ä#.py", {"uri": "models/%C3%A4%23.py", "uriBaseId": "%SRCROOT%"}),
    ],
)
def test_sarif_paths_are_uris(file: str, artifact: dict[str, str]) -> None:
    finding = msgspec.structs.replace(large_report().findings[2], location=Location(file=file, line=1))
    report = msgspec.structs.replace(large_report(), findings=(finding,))
    result = json.loads(render(report, "sarif"))["runs"][0]["results"][0]
    assert artifact == result["locations"][0]["physicalLocation"]["artifactLocation"]


def test_github_commands_are_one_line_each_and_escaped() -> None:
    lines = render(hostile_report(), "github").splitlines()
    assert len(lines) == 9
    for line in lines:
        assert re.match(r"::(error|warning|notice) [^:]*::", line)
    # the comma and the colon of the file's name do not end the property
    assert "file=" in lines[0] and "a%2Cb%3A" in lines[0]


def test_markdown_code_survives_backticks_and_pipes() -> None:
    text = render(hostile_report(), "markdown")
    rows = [line for line in text.splitlines() if line.startswith("| F")]
    assert len(rows) == 8
    # five cells, whatever the texts: a pipe that does not end a cell has a backslash before it
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    without_code = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text.replace("\\`", ""), flags=re.DOTALL)
    assert "alert" in without_code and "<script>" not in without_code


@pytest.mark.parametrize("format_name", ["tree", "markdown", "html", "junit"])
def test_the_impact_of_a_divergence_is_shown(format_name: str) -> None:
    report = large_report()
    impact = {"where": "['logits']", "text": "relative error 0.25 at most", "gradients": {"text": "none: unchanged"}}
    findings = tuple(
        msgspec.structs.replace(finding, evidence={**finding.evidence, "impact": impact}) if number == 3 else finding
        for number, finding in enumerate(report.findings)
    )
    text = render(msgspec.structs.replace(report, findings=findings), format_name, width=200)
    shown = re.sub(r"&#39;|&#x27;", "'", text.replace("\\", ""))
    assert "output ['logits']: relative error 0.25 at most; gradients none: unchanged" in shown


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_optimizer_is_shown_by_its_path_in_every_format(format_name: str) -> None:
    report = large_report()
    entry = msgspec.convert(
        {"path": "<optimizer>", "class": "AdamW", "status": "divergence", "findings": ["F9"]}, type(report.modules[0])
    )
    finding = msgspec.structs.replace(report.findings[3], id="F9", module="<optimizer>", also_in=())
    report = msgspec.structs.replace(report, modules=(*report.modules, entry), findings=(*report.findings, finding))
    text = render(report, format_name, width=120)
    shown = {
        "html": lambda: re.sub(r"<[^>]*>", "", text).count("&lt;optimizer&gt;"),
        "junit": lambda: sum(
            case.get("name") == "<optimizer>" and case.get("classname") == "AdamW" and len(case)
            for case in ElementTree.fromstring(text).iter("testcase")
        ),
        "sarif": lambda: text.count('"fullyQualifiedName": "<optimizer>"'),
        "markdown": lambda: text.count("`<optimizer>`"),
        "json": lambda: sum(module.path == "<optimizer>" for module in report_from_json(text.encode()).modules),
    }.get(format_name, lambda: text.count("<optimizer>"))
    assert shown()
    if format_name in ("html", "markdown"):
        code = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
        assert "<optimizer>" not in code, "nothing may take it for a tag"
