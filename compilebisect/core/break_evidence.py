"""What the report says of a graph break beyond its place: what it costs, which one hid it, which line of the user leads
to it. The worker gives places as they are on its machine; here they become those of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from compilebisect.core.mended_source import Site
from compilebisect.core.outcome import Frame
from compilebisect.core.words import plural

# What only the tool itself needs.
_RAW = ("skipped_frames", "hidden_behind", "mended")


def break_evidence(
    evidence: Mapping[str, Any],
    *,
    place: Callable[[Frame], str],
    function: Callable[[Frame], str],
    hiders: Mapping[tuple[str, ...], str],
) -> dict[str, Any]:
    """Return a graph break's evidence for the report.

    Args:
        evidence: as the worker gave it.
        place: says where a frame is, as `model.py:12`.
        function: the qualified name of a frame's function.
        hiders: the ids of findings by the keys of their faults.
    """
    said = {name: value for name, value in evidence.items() if name not in _RAW}
    skipped = [
        (Frame(file=item["file"], line=item["line"], function=item["function"]), item)
        for item in evidence.get("skipped_frames", ())
    ]
    if skipped:
        said["skipped_frames"] = [f"{place(frame)} in {function(frame)}" for frame, _ in skipped]
    blocks = [
        f"{item['block']} at {place(Frame(file=item['file'], line=item['block_line'], function=''))}"
        for _, item in skipped
        if "block" in item
    ]
    if blocks:
        said["because"] = f"it stands in a {blocks[0]}"
    if key := tuple(evidence.get("hidden_behind", ())):
        file, line = key[2], key[3].partition(":")[0]
        known = hiders.get(key)
        said["hidden_behind"] = known or (place(Frame(file=file, line=int(line), function="")) if line else key[1])
    if evidence.get("mended"):
        said["mended"] = [_mended(item, place) for item in evidence["mended"]]
    if consequence := _consequence(evidence, said, [function(frame) for frame, _ in skipped]):
        said["consequence"] = consequence
    return said


def mended_texts(evidence: Mapping[str, Any]) -> list[tuple[str, Site, str]]:
    """Return what stands in for other breaks, so that this one shows: a line of code, the place in it, the new text."""
    return [(item["code"], Site(**item["site"]), item["text"]) for item in evidence.get("mended", ())]


def _mended(item: Mapping[str, Any], place: Callable[[Frame], str]) -> str:
    where = place(Frame(file=item["file"], line=item["site"]["line"], function=""))
    site = item["site"]
    is_one_line = site["line"] == site["end_line"]
    end = site["end_column"] if is_one_line else None
    code = item["code"].encode()[site["column"] : end].decode()
    return f"{where}: {code}{'' if is_one_line else ' ...'} -> {item['text']}"


def _consequence(evidence: Mapping[str, Any], said: Mapping[str, Any], functions: list[str]) -> str:
    parts = []
    effect = evidence.get("effect", "")
    if functions and effect == "frame skipped":
        parts.append(f"all of {', '.join(functions)} runs in eager mode")
    elif functions:
        parts.append(f"the rest of {', '.join(functions)} runs in eager mode")
    if parts and "because" in said:
        parts[0] += f", since {said['because']}"
    graphs = evidence.get("graphs", {})
    if graphs and graphs["with"] != graphs["without"] and graphs["without"]:
        parts.append(f"{plural(graphs['with'], 'graph')} instead of {graphs['without']}")
    operators = evidence.get("operators_in_graphs", {})
    if operators and (lost := operators["without"] - operators["with"]) > 0:
        parts.append(f"{plural(lost, 'operator')} that a graph would hold {'runs' if lost == 1 else 'run'} outside")
    return "; ".join(parts)
