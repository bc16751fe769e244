"""Reports in which every text is hostile, in every format: no markup, command or control character of it is live."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from enum import Enum
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from compilebisect.core.report import Finding, ModuleEntry, Report, Repro, Uncovered, report_from_json
from compilebisect.core.report_diff import diff_reports
from compilebisect.render import FORMATS, render
from compilebisect.render.diff import diff_text
from compilebisect.render.wording import one_line, plain_lines, shortened, visible
from tests.hostile_texts import TEXTS, hostile_text
from tests.sample_reports import large_report

MARKUP = (
    "<script>alert(1)</script>",
    "</pre></code></details><b onclick=x>b</b>",
    "<img src=x onerror=alert(1)>",
    '"><a href="javascript:alert(1)">x</a>',
    "<!--",
    "-->",
    "]]>",
    "&lt;b&gt;&#60;b&#62;",
    "[x](javascript:alert(1))",
    "![x](http://example.invalid/x.png)",
    "<http://example.invalid>",
    "| a | b |",
    "\\|",
    "\\\\|",
    "`",
    "```\n# heading\n```",
    "\n\n# heading\n\n- item\n\n> quote\n\n---\n",
    "%0A::error::x",
    "\n::error file=x::y",
    " ::stop-commands::x",
    "##vso[task.setvariable variable=x]y",
    "##[group]x",
    "\x1b]8;;http://example.invalid\x07x",
    "\x9b31m",
    "a\rb",
)
# What has to stay what it is: kinds, statuses and the like, and the version of the schema.
KEPT = {"schema", "kind", "status", "origin", "stage", "strategy", "recommended"}
# Names of evidence that renderings look for.
KEYS = {"region", "impact", "text", "where", "gradients", "user_line", "hidden_behind", "consequence"}
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\U000e0000-\U000e007f]"
)
Change = Callable[[str], str]


def changed(value: Any, change: Change, name: str = "") -> Any:
    """Return the same report with all its texts changed."""
    if name in KEPT or isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return change(value)
    if isinstance(value, msgspec.Struct):
        fields = {field: changed(getattr(value, field), change, field) for field in value.__struct_fields__}
        return type(value)(**fields)
    if isinstance(value, (tuple, list)):
        return type(value)(changed(item, change) for item in value)
    if isinstance(value, dict):
        return {key if key in KEYS else change(key): changed(item, change) for key, item in value.items()}
    return value


def full_report() -> Report:
    """Return a report in which every field that may hold a text does."""
    report = large_report()
    evidence = {
        "region": ["a", "b"],
        "impact": {"text": "t", "where": "w", "gradients": {"text": "g", "where": "h"}},
        "user_line": "u",
        "hidden_behind": "h",
        "consequence": "c",
        "more": {"k": ["v", {"k": "v"}]},
    }
    findings = tuple(
        msgspec.structs.replace(
            finding,
            hint=finding.hint or "do it",
            evidence={**finding.evidence, **evidence},
            also_in=finding.also_in or ("x.y",),
            location=finding.location or report.findings[4].location,
            repro=Repro(path=f"repro_{finding.id}.py", note="note", imports_user_code=True, lines=3),
        )
        for finding in report.findings
    )
    modules = tuple(
        msgspec.structs.replace(entry, notes=("note",), shared_with=("other",), same_as="x")
        for entry in (*report.modules[:14], *report.modules[-16:])
    )
    environment = type(report.environment)(compilebisect="1", torch="2", triton="3", python="4", device="d", cuda="5")
    return msgspec.structs.replace(
        report,
        findings=findings,
        modules=modules,
        environment=environment,
        settings={"out": "o", "x": ["y"]},
        uncovered=(Uncovered(path=modules[-1].path, reason="r"), Uncovered(path="", reason="r")),
    )


FULL = full_report()


def hostile(bad: str) -> tuple[Change, ...]:
    return (lambda text: bad + text, lambda text: text + bad, lambda text: f"{text}{bad}{text}")


class Outline(HTMLParser):
    """The tags of a document with the names of their attributes, and what links lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.targets += [str(value) for name, value in attrs if name in ("href", "src")]

    def handle_comment(self, data: str) -> None:
        self.tags.append(("!", ()))


def html_outline(text: str) -> list[Any]:
    parser = Outline()
    parser.feed(text)
    parser.close()
    assert all(target.startswith("#") for target in parser.targets)
    return parser.tags


def xml_outline(text: str) -> list[Any]:
    return [(element.tag, sorted(element.attrib)) for element in ElementTree.fromstring(text).iter()]


def markdown_outline(text: str) -> list[Any]:
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    live = [child.content for child in inline if child.type == "html_inline"]
    live += [line for token in tokens if token.type == "html_block" for line in token.content.split("\n") if line]
    assert set(live) <= {"<sub>", "</sub>", "<details><summary>Evidence</summary>", "</details>"}
    assert not {child.type for child in inline} & {"link_open", "image", "autolink"}
    return [token.type for token in tokens]


OUTLINES = {"html": html_outline, "junit": xml_outline, "markdown": markdown_outline}


def check_lines(text: str, format_name: str = "") -> None:
    assert not CONTROL.search(text)
    text.encode("utf-8")
    assert not re.search(r"##\w*\[", text)
    lines = text.split("\n")
    if format_name == "github":
        assert len(lines) == len(FULL.findings) + 2 and lines[-1] == ""
        assert all(re.match(r"::(error|warning|notice) [^\n]*", line) for line in lines[:-1])
    else:
        assert not [line for line in lines if line.lstrip().startswith("::")]


@functools.cache
def plain_outline(number: int, format_name: str) -> list[Any]:
    plain = changed(FULL, hostile("qq")[number])
    return OUTLINES[format_name](render(plain, format_name, width=80, folder="out"))


def check(report: Report, number: int, format_name: str) -> None:
    text = render(report, format_name, width=80, folder="out")
    check_lines(text, format_name)
    if format_name in ("json", "sarif"):
        json.loads(text)
    if format_name == "json":
        assert report_from_json(text.encode("utf-8")) == report
    if format_name in OUTLINES:
        assert OUTLINES[format_name](text) == plain_outline(number, format_name)
    if format_name == "tree":
        coloured = render(report, "tree", width=40, color=True, folder="out")
        check_lines(re.sub(r"\x1b\[[0-9;]*m", "", coloured))
        assert "\x1b[31mred" not in coloured


# Numbers are left out: names that end in them share a line.
KNOWN = [text for text in (*TEXTS, *MARKUP) if text.strip() and len(text) < 1000 and not text.isdecimal()]


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("bad", KNOWN, ids=range(len(KNOWN)))
def test_no_text_of_a_report_is_live_in_any_format(bad: str, format_name: str) -> None:
    bad = bad.replace(".", "")  # a dot makes another module path
    for number, change in enumerate(hostile(bad)):
        check(changed(FULL, change), number, format_name)


@pytest.mark.parametrize("format_name", FORMATS)
@settings(max_examples=30)
@given(st.lists(st.one_of(hostile_text(), st.sampled_from(MARKUP)), min_size=1, max_size=4))
def test_no_mixture_of_texts_gets_through(format_name: str, texts: list[str]) -> None:
    numbers = iter(range(10**9))
    report = changed(FULL, lambda text: texts[next(numbers) % len(texts)])
    check_lines(render(report, format_name, width=60), format_name if len(report.findings) == 8 else "")


@pytest.mark.parametrize("bad", KNOWN, ids=range(len(KNOWN)))
def test_no_text_of_a_report_without_findings_is_live(bad: str) -> None:
    for change in hostile(bad):
        report = changed(msgspec.structs.replace(FULL, findings=()), change)
        for format_name in ("tree", "markdown", "html", "junit", "sarif", "json"):
            check_lines(render(report, format_name, width=60))


@pytest.mark.parametrize("bad", KNOWN, ids=range(len(KNOWN)))
def test_no_text_is_live_in_a_comparison(bad: str) -> None:
    for change in (*hostile(bad), lambda text: bad):
        report = changed(FULL, change)
        fixed = msgspec.structs.replace(report, findings=report.findings[:4])
        other = msgspec.structs.replace(report, findings=report.findings[3:], target=f"{bad}:other")
        for one, two in ((fixed, other), (FULL, report)):
            check_lines(diff_text(diff_reports(one, two), one, two, width=50))


def test_every_text_field_of_a_report_is_filled() -> None:
    def empty(value: Any) -> list[str]:
        if not isinstance(value, msgspec.Struct):
            return []
        return [name for name in value.__struct_fields__ if getattr(value, name) in ("", (), {})]

    assert not empty(FULL) and not empty(FULL.findings[2])
    assert not empty(FULL.environment)
    assert {type(item) for item in (FULL.findings[0], FULL.modules[0])} == {Finding, ModuleEntry}


@given(hostile_text(), hostile_text())
def test_lines_for_standard_error_are_no_commands(one: str, other: str) -> None:
    check_lines(plain_lines(f"error: {one}\n{other}\n  {one}"))
    check_lines(visible(f"x{one}"))
    assert "\n" not in one_line(one) and "\n" not in shortened(one)
    assert len(shortened(one * 2000)) < 6000


def test_what_is_harmless_stays_as_it_is() -> None:
    text = 'a::b\n\tx = "#[y]" ## z\n  : : é → \N{GRINNING FACE}'
    assert plain_lines(text) == text
