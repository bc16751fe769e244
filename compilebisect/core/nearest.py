"""The nearest match of a misspelt name, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, choices: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `; did you mean 'x'?` for the choice nearest to `name`, or an empty string where none is near."""
    by_lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


def quoted(names: Iterable[str], *, limit: int = 12) -> str:
    """Return names as a readable list, `'a', 'b' and 3 more` beyond `limit`."""
    shown = [repr(name) for name in names]
    if len(shown) > limit:
        return f"{', '.join(shown[:limit])} and {len(shown) - limit} more"
    return ", ".join(shown)
