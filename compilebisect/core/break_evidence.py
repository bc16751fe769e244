"""What the report says of a graph break beyond its place: what it costs, which one hid it, which line of the user leads
to it. The worker gives places as they are on its machine; here they become those of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compilebisect.core.fingerprint import FaultKey
from compilebisect.core.mended_source import Site
from compilebisect.core.outcome import Frame
from compilebisect.core.words import plural

# What only the tool itself needs.
_RAW = ("skipped_frames", "skipped_above", "hidden_behind", "follows_from", "mended")


def break_evidence(
    evidence: Mapping[str, Any],
    *,
    place: Callable[[Frame], str],
    function: Callable[[Frame], str],
    hiders: Mapping[FaultKey, str],
) -> dict[str, Any]:
    """Return a graph break's evidence for the report.

    Args:
        evidence: as the worker gave it.
        place: says where a frame is, as `model.py:12`.
        function: the qualified name of a frame's function.
        hiders: the ids of findings by the keys of their faults.
    """
    said = {name: value for name, value in evidence.items() if name not in _RAW}
    functions: dict[str, list[str]] = {}
    for name in ("skipped_frames", "skipped_above"):
        items = evidence.get(name, ())
        frames = [Frame(file=item["file"], line=item["line"], function=item["function"]) for item in items]
        functions[name] = [function(frame) for frame in frames]
        if frames:
            said[name] = [f"{place(frame)} in {function(frame)}" for frame in frames]
    if block := _block(evidence.get("skipped_frames", ()), place):
        said["because"] = f"it stands in a {block}"
    if block := _block(evidence.get("skipped_above", ()), place):
        said["because_above"] = f"the call is in a {block}"
    if key := evidence.get("hidden_behind"):
        file, line = key[2], key[3].partition(":")[0]
        known = hiders.get((key[0], key[1], file, key[3]))
        said["hidden_behind"] = known or (place(Frame(file=file, line=int(line), function="")) if line else key[1])
    if evidence.get("mended"):
        said["mended"] = [_mended(item, place) for item in evidence["mended"]]
    if consequence := _consequence(evidence, said, functions):
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


def _how_much(skipped: Sequence[Mapping[str, Any]]) -> str:
    return "all" if all(item.get("effect") == "frame skipped" for item in skipped) else "the rest"


def _block(skipped: Sequence[Mapping[str, Any]], place: Callable[[Frame], str]) -> str:
    """Name the block that keeps Dynamo from going on in the first of some functions that has one."""
    inside = (item for item in skipped if "block" in item)
    item = next(inside, None)
    if item is None:
        return ""
    return f"{item['block']} at {place(Frame(file=item['file'], line=item['block_line'], function=''))}"


def _consequence(evidence: Mapping[str, Any], said: Mapping[str, Any], functions: Mapping[str, list[str]]) -> str:
    parts = []
    if own := functions["skipped_frames"]:
        how_much = _how_much([evidence])
        reason = f", since {said['because']}" if "because" in said else ""
        parts.append(f"{how_much} of {', '.join(own)} runs in eager mode{reason}")
    if above := functions["skipped_above"]:
        reason = f", since {said['because_above']}" if "because_above" in said else ""
        how_much = _how_much(evidence["skipped_above"])
        parts.append(
            f"{how_much} of {', '.join(above)} above it {'runs' if len(above) == 1 else 'run'} in eager mode{reason}"
        )
    graphs = evidence.get("graphs", {})
    if graphs and graphs["with"] != graphs["without"] and graphs["without"]:
        parts.append(f"{plural(graphs['with'], 'graph')} instead of {graphs['without']}")
    operators = evidence.get("operators_in_graphs", {})
    if operators and (lost := operators["without"] - operators["with"]) > 0:
        parts.append(f"{plural(lost, 'operator')} that a graph would hold {'runs' if lost == 1 else 'run'} outside")
    return "; ".join(parts)
