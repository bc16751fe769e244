from __future__ import annotations

from compilebisect.core.reduce.class_edits import class_edits
from compilebisect.core.reduce.script_text import ScriptText

BASE = "import torch\n\n\nclass Base(Module):\n    def forward(self, x):\n        return x\n\n\n"
OWN = "class Own(Base):\n    def forward(self, x):\n        return -x\n"


def texts(text: str, *keep: str) -> list[str]:
    script = ScriptText(text, lambda statement: False, frozenset(keep))
    return [script.edited(edits) for edits in class_edits(script)]


def test_a_class_in_between_is_skipped():
    assert texts(BASE + OWN) == ["import torch\n\n\n" + OWN.replace("Base", "Module")]


def test_a_class_that_others_read_or_that_has_the_line_to_keep_stays():
    assert texts(BASE + OWN + "\nmodel = Base()\n") == []
    assert texts(BASE + OWN, "return x") == []


def test_a_class_is_called_rather_than_its_maker():
    text = "def new(cls):\n    return cls()\n\n\nclass Own(Module):\n    size = 1\n\n\n"
    text += "model = new(Own)\nother = abs(model)\n"
    assert texts(text) == [text.replace("new(Own)", "Own()")]
