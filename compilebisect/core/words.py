"""Words that more than one layer puts together."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Return `1 module`, `2 modules`, `2 crashes`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}es" if noun.endswith(("sh", "s", "x")) else f"{count} {noun}s"


#: A class of a regular expression: the characters that a terminal, a log viewer or an editor would obey. C0 but for tab
#: and newline, DEL, C1, those that end lines, change the direction of text or are tags; and what UTF-8 or XML lacks.
CONTROL_CHARACTERS = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\ufffe\uffff\U000e0000-\U000e007f]"
)
