"""What the terminal tree shows, folds, groups and wraps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from compilebisect.core.report import ModuleEntry, Report
from compilebisect.render import render
from compilebisect.render.outline import Node, outline
from compilebisect.render.wording import compressed_paths, modules_of, seconds
from compilebisect.render.wrap import wrapped
from tests.sample_reports import healthy_report, large_report, module


def report_of(*modules: ModuleEntry) -> Report:
    return msgspec.structs.replace(healthy_report(), modules=modules)


def all_nodes(node: Node) -> list[Node]:
    return [node, *(inner for child in node.children for inner in all_nodes(child))]


@pytest.mark.parametrize("width", [40, 60, 120])
def test_tree_suits_the_width(width: int, golden: Callable[[str, str], None]) -> None:
    golden(f"large.{width}.txt", render(large_report(), "tree", width=width, folder="compilebisect-out"))


def test_only_code_of_the_user_is_wider_than_asked() -> None:
    lines = render(large_report(), "tree", width=44).splitlines()
    codes = {finding.location.code for finding in large_report().findings if finding.location}
    too_wide = [line.strip() for line in lines if cell_len(line) > 44]
    assert set(too_wide) <= codes


def test_colour_codes_appear_only_when_asked_for() -> None:
    assert "\x1b[" not in render(large_report(), "tree")
    assert "\x1b[" in render(large_report(), "tree", color=True)


def test_healthy_model_is_one_line_of_tree() -> None:
    root = outline(healthy_report())
    assert root is not None and not root.children and root.is_quiet
    assert root.tally == {"ok": 26, "implied": 1, "container": 1, "not_called": 1}


def test_what_was_looked_at_stands_beside_what_was_left_out() -> None:
    names = [f"part{number}" for number in range(6)]
    report = report_of(
        module("", "Net", "skipped", children=[*names, "head"]),
        *(module(name, name.title(), "skipped") for name in names),
        module("head", "Linear", "ok"),
    )
    root = outline(report)
    assert root is not None
    assert [(node.label, node.tally) for node in root.children] == [
        ("head", {"ok": 1}),
        (", ".join(names), {"skipped": 6}),
    ]
    assert "no findings in 1 module (7 not called or skipped)" in render(report, "tree")


def test_equal_faulty_siblings_are_grouped_though_one_is_the_findings_module() -> None:
    root = outline(large_report())
    assert root is not None
    (group,) = [node for node in all_nodes(root) if node.count == 12]
    assert group.label == "0…11"
    assert [node.findings for node in all_nodes(group) if node.findings] == [("F3",)]


def timed_report() -> Report:
    slow = {"status": "slowdown", "origin": "inherited", "graphs": 1, "eager_s": 1.0}
    return report_of(
        module("", "Net", "slowdown", "inherited", graphs=5, recompiles=2, compile_s=75.0, eager_s=4.0, compiled_s=8.0),
        module("0", "Block", compile_s=2.5, compiled_s=1.0, **slow),
        module("1", "Block", compiled_s=4.0, **slow),
        module("2", "Block", compiled_s=4.0, **slow),
        module("head", "AHeadWithAVeryLongNameOfItsClass", "slowdown", "inherited", graphs=3, eager_s=0.5),
    )


def test_figures_stand_in_columns_and_below_a_line_that_is_too_long() -> None:
    lines = render(timed_report(), "tree", width=76).splitlines()
    start = next(number for number, line in enumerate(lines) if line.lstrip().startswith("graphs"))
    heads, root, blocks, head, figures = lines[start : start + 5]
    assert heads.split() == ["graphs", "recompiles", "compile", "speed"]
    assert root.split()[-5:] == ["5", "2", "75", "s", "0.5x"]
    # three siblings: their seconds together, and their speed as one
    assert blocks.startswith("├── 0…2") and blocks.split()[-4:] == ["1", "2.5", "s", "0.33x"]
    assert head.startswith("└── head") and figures.split() == ["3"]
    assert len({cell_len(line) for line in (heads, root, blocks)}) == 1
    assert max(map(cell_len, lines)) <= 76


def test_a_narrow_tree_has_no_figures() -> None:
    assert "graphs" not in render(timed_report(), "tree", width=44)


def test_siblings_with_other_figures_are_not_grouped() -> None:
    root = outline(
        report_of(module("", "Net", "error"), module("a", "B", "error", graphs=1), module("b", "B", "error"))
    )
    assert root is not None and len(root.children) == 2


def test_siblings_that_differ_below_are_not_grouped() -> None:
    root = outline(
        report_of(
            module("", "Net", "error", "inherited"),
            module("a", "Block", "error", "inherited"),
            module("a.x", "Linear", "error", "introduced"),
            module("b", "Block", "error", "inherited"),
            module("b.y", "Linear", "error", "introduced"),
        )
    )
    assert root is not None and [child.label for child in root.children] == ["a", "b"]


def test_tally_counts_every_module_once() -> None:
    root = outline(large_report())
    assert root is not None and sum(root.tally.values()) == len(large_report().modules)


def test_every_introducing_module_is_marked() -> None:
    root = outline(large_report())
    assert root is not None
    marked = sum(node.count for node in all_nodes(root) if node.findings and "mlp" not in node.label) + 12
    assert marked == len({path for finding in large_report().findings for path in modules_of(finding)})


def test_children_stand_in_the_order_of_their_parent_not_of_the_walk() -> None:
    root = outline(
        report_of(
            module("z", "Linear", "error", "introduced"),
            module("a", "Conv", "error", "introduced"),
            module("", "Net", "error", "inherited", children=["z", "a"]),
        )
    )
    assert root is not None and [child.label for child in root.children] == ["z", "a"]


def test_parts_without_their_root_hang_below_it() -> None:
    root = outline(report_of(module("enc.layers.0", "Block", "error", "introduced")))
    assert root is not None and root.label == "Captioner"
    assert [child.label for child in root.children] == ["enc.layers.0"]


NAMES = st.sampled_from(["a", "b", "0", "1", "2"])
STATUSES = st.sampled_from(["ok", "error", "not_called", "skipped"])


@settings(max_examples=60)
@given(
    st.dictionaries(st.lists(NAMES, max_size=4).map(".".join), st.tuples(STATUSES, st.sampled_from("MN")), max_size=12)
)
def test_no_module_is_lost_whatever_the_tree(modules: dict[str, tuple[str, str]]) -> None:
    entries = [module(path, cls, status) for path, (status, cls) in modules.items()]
    root = outline(report_of(*entries))
    if not entries:
        assert root is None
    else:
        assert root is not None and sum(root.tally.values()) == len({"", *modules})


@given(st.text(max_size=80), st.integers(8, 40))
def test_wrapping_keeps_the_text_and_the_width(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert lines
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(cell_len(line) <= width for line in lines)


def test_long_paths_are_broken_after_a_separator() -> None:
    assert wrapped("some/long/path/of/a/file.py", 16) == ["some/long/path/", "of/a/file.py"]


@pytest.mark.parametrize(
    ("paths", "short"),
    [
        (["a.0.m", "a.1.m", "a.2.m"], ["a.{0…2}.m"]),
        (["a.0.m", "a.2.m", "b"], ["a.{0,2}.m", "b"]),
        (["a.0", "b.0"], ["a.0", "b.0"]),
        (["a.0.0", "a.1.1"], ["a.0.0", "a.1.1"]),
        ([""], [""]),
        ([], []),
    ],
)
def test_paths_are_compressed_where_one_number_differs(paths: list[str], short: list[str]) -> None:
    assert short == compressed_paths(paths)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04, "0.0 s"), (9.96, "10 s"), (99.6, "1 min 40 s"), (125, "2 min 05 s"), (7260, "2 h 01 min")],
)
def test_seconds_read_well(value: float, text: str) -> None:
    assert text == seconds(value)
