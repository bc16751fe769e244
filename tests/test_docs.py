"""The docs: links lead somewhere, shown commands and options exist, and what is shown can be read by the tool."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from compilebisect.cli.main import command_line
from compilebisect.core.input_spec import parse_spec
from compilebisect.core.outcome import Kind, Stage
from compilebisect.core.report import Finding, ModuleEntry, Report, Timing

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*/README.md"))]
PAGES = list(dict.fromkeys(PAGES))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Markdown viewers make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands() -> dict[str, click.Command]:
    context = click.Context(command_line)
    found = {name: command_line.get_command(context, name) for name in command_line.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def options_of(command: click.Command) -> set[str]:
    named = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {option for option in named if option.startswith("-")} | {"--help", "-h"}


def shown_commands(page: Path) -> Iterator[list[str]]:
    """The words of each compilebisect command in the page's code blocks, without the program itself."""
    for _, block in FENCE.findall(page.read_text(encoding="utf-8")):
        for line in block.splitlines():
            for part in re.split(r"&&|;|\|", line):
                words = part.split("#")[0]
                if re.match(r"\s*(\S*/)?compilebisect\s", words):
                    yield shlex.split(words.replace("[", "").replace("]", ""))[1:]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{link}: there is no such file"
        if anchor:
            assert anchor in anchors(target), f"{link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_shown_commands_use_options_and_files_that_exist(page: Path) -> None:
    known = commands()
    for words in shown_commands(page):
        name, rest = (words[0], words[1:]) if words[0] in known else ("run", words)
        for word in rest:
            if word.startswith("-"):
                assert word in options_of(known[name]), f"compilebisect {name} has no option {word}"
            elif word.startswith("sample_models/"):
                assert (ROOT / word.partition(":")[0]).is_file(), f"{word}: there is no such file"


def test_commands_are_shown_at_all() -> None:
    assert sum(1 for page in PAGES for _ in shown_commands(page)) > 10


def test_command_line_page_lists_every_command_and_every_option_of_run() -> None:
    text = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
    for name in commands():
        assert f"compilebisect {name} " in text or f"compilebisect {name}\n" in text, name
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    shown = set(re.findall(r"`(--?[a-z][a-z-]*)", table))
    assert shown == options_of(commands()["run"]) - {"--help", "-h"}


def test_report_page_lists_every_field() -> None:
    text = (ROOT / "docs/reference/report.md").read_text(encoding="utf-8")
    names = {
        name
        for struct in (Report, ModuleEntry, Finding, Timing)
        for name in struct.__struct_encode_fields__
    } | {kind.value for kind in Kind} | {stage.value for stage in Stage}  # fmt: skip
    missing = {name for name in names if f"`{name}`" not in text}
    assert not missing


def test_json_in_the_pages_on_specs_is_valid_input_spec() -> None:
    found = 0
    for name in ("docs/reference/input-spec.md", "docs/tutorial/first-run.md"):
        for language, block in FENCE.findall((ROOT / name).read_text(encoding="utf-8")):
            if language == "json":
                parse_spec(json.loads(block))
                found += 1
    assert found >= 2
