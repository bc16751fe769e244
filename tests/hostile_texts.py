"""Texts that scripts, reports and terminals might obey; shared by the tests of all doors that texts go through."""

from __future__ import annotations

from hypothesis import strategies as st

#: What each text holds at its end, so that a test finds out whether it came through as code.
CODE = "EVIL = 666"
TEXTS = (
    f"Net\n{CODE}",
    f"Net\r{CODE}",
    f"Net\r\n{CODE}",
    f"Net\f\n{CODE}",
    f"Net\u2028{CODE}\u2029{CODE}\x85{CODE}\x0b{CODE}",
    f"a; {CODE}",
    f'"; {CODE} #',
    f"'; {CODE} #",
    f'"""\n{CODE}\n"""',
    f"'''\n{CODE}\n'''",
    f"\\\n{CODE}",
    "\\",
    f"): pass\n{CODE}",
    f"{{ {CODE} }}{{{{ 7 * 7 }}}}{{% raw %}}",
    "coding: utf-7",
    "-*- coding=latin-1 -*-",
    "\x00",
    "a\x00b",
    "\udc80",
    "\x1b[31mred\x1b[0m\x07",
    "\u202egnp.exe\u2066",
    "::error::x",
    "  ::add-mask::x",
    "##[error]x",
    "class",
    "None",
    "__init__",
    "__class__",
    "__debug__",
    "\ufb01",
    "\u1d2c",
    "\u00b2",
    "\u0663",
    "0",
    "a b",
    "a.b",
    "a-b",
    "",
    " ",
    "#",
    "self",
    "cls",
    "torch",
    "x" * 5000,
    "\U0001f600",
)


def hostile_text() -> st.SearchStrategy[str]:
    """Draw one of these, two joined, or any text at all."""
    known = st.sampled_from(TEXTS)
    anything = st.text(st.characters(), max_size=20)
    return st.one_of(known, st.builds(str.__add__, known, known), anything)
