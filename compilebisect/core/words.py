"""Words that more than one layer puts together."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Return `1 module`, `2 modules`, `2 crashes`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}es" if noun.endswith(("sh", "s", "x")) else f"{count} {noun}s"
