from __future__ import annotations

from compilebisect.core.reduce.expression_edits import expression_edits
from compilebisect.core.reduce.script_text import ScriptText


def texts(text: str) -> list[str]:
    script = ScriptText(text, lambda statement: False, frozenset())
    return [script.edited(edits) for _, edits in expression_edits(script)]


def test_a_call_for_its_effect_goes_as_a_whole_rather_than_leaving_a_name():
    text = "def make():\n    model = Net(4)\n    model.eval()\n    return model\n"
    assert text.replace("    model.eval()\n", "") in texts(text)
    assert not any("\n    model\n" in found for found in texts(text))


def test_a_value_gives_way_to_its_parts():
    assert "y = x\n" in texts("y = abs(x)\n")
    assert "y = a\n" in texts("y = a + b\n")
