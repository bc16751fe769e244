from __future__ import annotations

import ast

from compilebisect.core.reduce.script_text import ScriptText
from compilebisect.core.reduce.statement_edits import behind_kept_lines, unwrapped, without


def parse(text: str) -> ScriptText:
    return ScriptText(text, lambda statement: False, frozenset())


def away(text: str, *starts: str) -> str:
    """Leave out the statements whose text begins so."""
    script = parse(text)
    nodes = [node for node in ast.walk(script.tree) if isinstance(node, ast.stmt)]
    return without(script, [node for node in nodes if script.segment(node).startswith(starts)])


def test_a_statement_takes_its_comments_along():
    text = "def f():\n    a = 1\n    # about b\n    # more\n    b = 2  # trailing\n    c = 3\n"
    assert away(text, "b =") == "def f():\n    a = 1\n    c = 3\n"


def test_the_head_of_the_file_stays():
    assert away("# head\n# more\na = 1\nb = 2\n", "a =") == "# head\n# more\nb = 2\n"
    assert away("# head\n\n# about a\na = 1\nb = 2\n", "a =") == "# head\n\nb = 2\n"


def test_an_empty_body_becomes_pass():
    assert away("def f():\n    # why\n    a = 1\n\n    b = 2  # b\n\n\nc = 3\n", "a =", "b =") == (
        "def f():\n    pass\n\n\nc = 3\n"
    )
    assert away("def f(): a = 1\n", "a =") == "def f(): pass\n"


def test_an_empty_clause_is_left_out_whole():
    text = "if a:\n    b = 1\nelif c:\n    d = 2\nelse:\n    e = 3\nf = 4\n"
    assert away(text, "e =") == "if a:\n    b = 1\nelif c:\n    d = 2\nf = 4\n"
    assert away(text, "if c", "elif c") == "if a:\n    b = 1\nf = 4\n"
    text = "try:\n    a = 1\nexcept E:\n    b = 2\nfinally:\n    c = 3\n"
    assert away(text, "c =") == "try:\n    a = 1\nexcept E:\n    b = 2\n"


def test_statements_on_one_line_are_told_apart():
    assert away("a = 1; b = 2; c = 3\n", "a =") == "b = 2; c = 3\n"
    assert away("a = 1; b = 2; c = 3\n", "b =") == "a = 1; c = 3\n"
    assert away("a = 1; b = 2; c = 3\n", "b =", "c =") == "a = 1\n"


def test_blank_lines_around_what_goes_become_those_of_one_gap():
    text = "a = 1\n\n\ndef f():\n    pass\n\n\ndef g():\n    pass\n\n\nb = 2\n"
    assert away(text, "def f") == "a = 1\n\n\ndef g():\n    pass\n\n\nb = 2\n"
    assert away(text, "def f", "def g") == "a = 1\n\n\nb = 2\n"
    assert away(text, "b =") == "a = 1\n\n\ndef f():\n    pass\n\n\ndef g():\n    pass\n"
    assert away("def f():\n    a = 1\n\n    b = 2\n\n\nc = 3\n", "a =") == "def f():\n    b = 2\n\n\nc = 3\n"
    assert away("def f():\n    a = 1\n\n    b = 2\n\n\nc = 3\n", "b =") == "def f():\n    a = 1\n\n\nc = 3\n"


def test_decorators_go_with_their_function():
    assert away("@one\n@two(1)\ndef f():\n    pass\na = 1\n", "def f") == "a = 1\n"


def test_a_compound_statement_is_replaced_by_each_of_its_blocks():
    script = parse('if a:\n    b = """\n  x\n"""\n    # why\n    c = 1\nelif d:\n    e = 2\nelse:\n    f = 3\n')
    assert list(unwrapped(script, script.tree.body[0])) == [
        'b = """\n  x\n"""\n# why\nc = 1\n',
        "if d:\n    e = 2\nelse:\n    f = 3\n",
    ]
    script = parse("def g():\n    try:\n        a = 1\n    except E:\n        b = 2\n    else:\n        c = 3\n")
    function = script.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    assert list(unwrapped(script, function.body[0])) == [
        "def g():\n    a = 1\n",
        "def g():\n    c = 3\n",
        "def g():\n    b = 2\n",
    ]
    script = parse("if a: b = 'ü'; c = 2\n")
    assert list(unwrapped(script, script.tree.body[0])) == ["b = 'ü'; c = 2\n"]


def test_gaps_at_the_ends_of_nested_bodies_become_one():
    text = "def f():\n    if a:\n        b = 1\n\n\n        c = 2\n    d = 3\n\n\ne = 4\n"
    assert away(text, "c =", "d =") == "def f():\n    if a:\n        b = 1\n\n\ne = 4\n"
    text = "def f():\n    if a:\n        b = 1\n        c = 2\n\n\n    d = 3\n\n\ne = 4\n"
    assert away(text, "c =", "d =") == "def f():\n    if a:\n        b = 1\n\n\ne = 4\n"


def test_what_comes_after_a_line_to_keep_or_within_it_can_go():
    text = "def f(x):\n    a = 1\n    with lock:\n        b = 2\n        c = 3\n    return a\n\n\nd = 4\n"
    script = ScriptText(text, lambda statement: False, frozenset({"with lock:"}))
    assert without(script, behind_kept_lines(script)) == (
        "def f(x):\n    a = 1\n    with lock:\n        pass\n\n\nd = 4\n"
    )
    script = ScriptText(text, lambda statement: False, frozenset({"b = 2"}))
    assert without(script, behind_kept_lines(script)) == (
        "def f(x):\n    a = 1\n    with lock:\n        b = 2\n\n\nd = 4\n"
    )
