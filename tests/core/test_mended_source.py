from __future__ import annotations

import ast

import pytest

from compilebisect.core.mended_source import (
    Place,
    Site,
    callee_site,
    enclosing_block,
    find_site,
    wider_site,
    with_replaced,
    with_values,
)

SOURCE = """\
import torch

LIMIT = max(1, 2)


class Net:
    def forward(self, x, many=max(1, 2)):
        print("a", x.shape)
        for part in x.unbind():
            if part.sum() > 0 and part.max().item() < LIMIT:
                x = x + part
            y = [float(p) for p in part if p > 0]
        assert x.sum() > 0, f"bad {x.sum()}"
        with torch.no_grad():
            x = x * self.scale(
                x.mean(),
            )
        while x.sum() > 0:
            try:
                x[0] = x.min()
            except ValueError:
                pass
        return x, y
"""


def tree() -> ast.Module:
    return ast.parse(SOURCE)


def site_at(text: str, *, line_of: str = "") -> Site | None:
    """Find the site for an instruction that spans `text`, or for the line alone that holds `line_of`."""
    lines = SOURCE.splitlines()
    number = next(number for number, line in enumerate(lines) if (line_of or text) in line)
    if line_of:
        return find_site(tree(), Place(number + 1))
    column = lines[number].index(text)
    return find_site(tree(), Place(number + 1, column, column + len(text)))


def text_of(site: Site | None) -> str:
    assert site is not None
    lines = SOURCE.splitlines()[site.line - 1 : site.end_line]
    lines[-1] = lines[-1][: site.end_column]
    return "\n".join([lines[0][site.column :], *lines[1:]])


@pytest.mark.parametrize(
    ("text", "is_test"),
    [
        ('print("a", x.shape)', False),
        ("part.max().item()", False),
        ("part.sum() > 0", True),
        ("float(p)", False),
        ("p > 0", True),
        ("x.unbind()", False),
        ("x.min()", False),
    ],
)
def test_an_instruction_gives_its_expression_and_whether_only_its_truth_counts(text: str, is_test: bool) -> None:
    site = site_at(text)
    assert text_of(site) == text
    assert site is not None and site.is_test is is_test


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if part.sum()", "part.sum() > 0 and part.max().item() < LIMIT"),
        ("assert x.sum()", "x.sum() > 0"),
        ("x = x + part", "x + part"),
        ("for part in", "x.unbind()"),
    ],
)
def test_without_columns_all_that_the_statement_computes_is_taken(line: str, expected: str) -> None:
    assert text_of(site_at("", line_of=line)) == expected


def test_an_expression_over_several_lines_is_taken_whole() -> None:
    lines = SOURCE.splitlines()
    number = next(number for number, line in enumerate(lines) if "self.scale(" in line)
    start = lines[number].index("self.scale(")
    site = find_site(tree(), Place(number + 1, start, lines[number + 2].index(")") + 1))
    assert text_of(site).startswith("self.scale(") and text_of(site).endswith(")")


@pytest.mark.parametrize("text", ["max(1, 2)", "x[0]"])
def test_defaults_and_targets_of_assignments_have_no_site(text: str) -> None:
    assert site_at(text) is None


def test_what_goes_on_breaking_is_taken_with_more_around_it_up_to_the_statement() -> None:
    sizes = []
    site = site_at("part.max().item()")
    while site is not None:
        sizes.append(text_of(site))
        site = wider_site(tree(), site)
    assert sizes[1:] == ["part.max().item() < LIMIT", "part.sum() > 0 and part.max().item() < LIMIT"]


@pytest.mark.parametrize(
    ("line", "block"),
    [
        ("print(", None),
        ("for part in", None),
        ("x = x + part", "`for` loop"),
        ("y = [", "`for` loop"),
        ("x = x * self", "`with` block"),
        ("while x.sum()", "`while` loop"),
        ("x[0] =", "`try` block"),
        ("return x", None),
    ],
)
def test_the_block_that_keeps_dynamo_from_going_on_is_named(line: str, block: str | None) -> None:
    number = next(number for number, text in enumerate(SOURCE.splitlines(), start=1) if line in text)
    found = enclosing_block(tree(), number)
    assert (found and found[0]) == block


def test_replaced_expressions_keep_everything_else_and_all_positions() -> None:
    inner, outer = site_at("part.max().item()"), site_at("part.sum() > 0")
    assert inner is not None and outer is not None
    changed = with_replaced(tree(), {inner: lambda node: ast.Constant(7), outer: lambda node: ast.Constant(True)})
    text = ast.unparse(changed)
    assert "if True and 7 < LIMIT:" in text
    assert text.replace("True and 7 < LIMIT", "part.sum() > 0 and part.max().item() < LIMIT") == ast.unparse(tree())
    compile(changed, "file", "exec")
    assert [node.lineno for node in ast.walk(changed) if isinstance(node, ast.stmt)] == [
        node.lineno for node in ast.walk(tree()) if isinstance(node, ast.stmt)
    ]


def test_what_is_called_in_an_expression_has_a_site_of_its_own() -> None:
    tree = ast.parse("def f(x):\n    return lib.part(x).grow(\n        x)\n")
    called = callee_site(tree, Site(2, 11, 3, 10))
    assert called == Site(2, 11, 2, 27)
    assert callee_site(tree, Site(2, 11, 2, 22)) == Site(2, 11, 2, 19)
    assert callee_site(tree, Site(2, 11, 2, 19)) is None


def test_values_get_into_a_text_whose_lines_stand_elsewhere() -> None:
    text = "class Net:\n    def forward(self, x):\n        ü = 1; n = x.item() + 1\n        return n"
    line = text.splitlines()[2]
    column = len(line.encode()[: line.encode().index(b"x.item()")])
    site = Site(90, column, 90, column + len("x.item()"))
    assert with_values(text, [(line, site, "2.5")]).splitlines()[2] == "        ü = 1; n = 2.5 + 1"


def test_a_value_that_does_not_fit_changes_nothing() -> None:
    text = "def f(x):\n    return x"
    assert with_values(text, [("    return y", Site(2, 11, 2, 12), "1")]) == text
    assert with_values(text, [("    return x", Site(2, 4, 2, 7), "1")]) == text
