"""The door for texts in scripts: whatever goes in, one comment, one literal, one name or one expression comes out."""

from __future__ import annotations

import ast
import io
import tokenize
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilebisect.core import quoting
from tests.hostile_texts import CODE, TEXTS, hostile_text


@given(hostile_text())
def test_a_comment_is_one_line_that_changes_no_statement(text: str) -> None:
    shown = quoting.comment(text)
    source = f"# {shown}\nx = 1  # {shown}\n"
    source.encode("utf-8")
    assert shown.isprintable() and len(source.splitlines()) == 2
    assert ast.dump(ast.parse(source)) == ast.dump(ast.parse("x = 1"))
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source.encode()).readline)
    assert encoding == "utf-8"


def test_a_comment_of_a_long_text_is_cut() -> None:
    assert len(quoting.comment("x" * 50_000_000)) < 500


plain = st.recursive(
    st.one_of(hostile_text(), st.integers(), st.booleans(), st.none(), st.binary(max_size=9), st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(hostile_text(), inner, max_size=3)),
    max_leaves=8,
)


@given(plain)
def test_a_literal_gives_the_value_back_in_one_line_of_ascii_controls(value: Any) -> None:
    text = quoting.literal(value)
    assert "\n" not in text and quoting.expression(text) == text
    text.encode("utf-8")
    assert repr(eval(text)) == repr(value)


def test_a_literal_of_a_class_of_its_own_is_refused() -> None:
    class Text(str):
        def __repr__(self) -> str:
            return f"0\n{CODE}"

    for value in (Text("x"), object(), 10**6000):
        with pytest.raises(quoting.NotPython):
            quoting.literal(value)


@pytest.mark.parametrize("text", ["class", "None", "\ufb01", "a b", "a.b", "", "0", "x\n", "\u00b2", "\udc80"])
def test_what_python_takes_for_another_name_or_for_none_is_no_name(text: str) -> None:
    assert not quoting.is_name(text)
    with pytest.raises(quoting.NotPython):
        quoting.name(text)


@pytest.mark.parametrize("text", ["x", "übung", "__init__", "_", "match"])
def test_names_stay(text: str) -> None:
    assert quoting.name(text) == text


class _Owner:
    pass


@given(hostile_text())
def test_an_attribute_is_read_and_set_whatever_it_is_called(name: str) -> None:
    owner = _Owner()
    place = quoting.attribute("owner", name)
    text = quoting.assignment(place, "7")
    special = ("__class__", "__dict__")  # Python itself lets nobody set these to anything
    if "\x00" not in name and name not in special:
        exec(text, {"owner": owner})
        assert vars(owner) == {name: 7}
        assert eval(place, {"owner": owner}) == 7


def test_a_path_through_a_keyword_is_spelled_out() -> None:
    assert quoting.attribute_path("torch.ops.aten.random.from") == 'getattr(torch.ops.aten.random, "from")'
    assert quoting.attribute_path("torch.ops.aten.add.Tensor") == "torch.ops.aten.add.Tensor"


@pytest.mark.parametrize(
    "text", ["x\n", "x # y", "x; y", "x = 1", "", "x)(y", "1) + (2", "f(x", "\x00", "\udc80", "x\f"]
)
def test_what_would_not_stay_one_expression_is_refused(text: str) -> None:
    with pytest.raises(quoting.NotPython):
        quoting.expression(text)


@pytest.mark.parametrize("text", ["import os\nEVIL = 666", "EVIL = 666", "import a-b", "from x import class", ""])
def test_what_is_not_one_import_is_refused(text: str) -> None:
    with pytest.raises(quoting.NotPython):
        quoting.import_statement(text)


def test_nothing_is_assigned_to_what_is_no_place() -> None:
    for target in ("f()", "1", "a, b", "x = y"):
        with pytest.raises(quoting.NotPython):
            quoting.assignment(target, "1")


@pytest.mark.parametrize("text", [text for text in TEXTS if "\x00" not in text and "\udc80" not in text])
def test_lines_are_counted_as_python_counts_them(text: str) -> None:
    source = f"x = 1\n#\f{text.replace(CODE, '# ')}\ny = 2\n".replace("\\\n", "")
    lines = quoting.source_lines(source)
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for node in tree.body:
        if isinstance(node, ast.Assign):
            assert lines[node.lineno - 1] in ("x = 1", "y = 2")
