"""To which module a fault belongs, read from its stack and from what the modules below show."""

from __future__ import annotations

from collections.abc import Container

from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.module_tree import CodeSpan, ModuleTree
from compilebisect.core.outcome import Fault, Frame, Kind


def has_user_stack(fault: Fault) -> bool:
    """Return whether the fault names the Python code that brings it, as graph breaks and tracing errors do."""
    return bool(fault.frames) and fault.kind in (Kind.GRAPH_BREAK, Kind.ERROR, Kind.RECOMPILE)


def owner_below(tree: ModuleTree, path: str, fault: Fault, healthy: Container[str] = ()) -> str | None:
    """Return the module below `path` whose call the stack of `fault` ends in, None where that is `path` itself.

    The frames are followed from the outermost inwards, from module to module: a frame in the `forward` of a module
    below (or in a decorator around it) enters that module; a frame in any other function stays in the module that
    was entered last. Of several instances of one class, the nearest one that is called at this line and is not known
    to be `healthy` is taken.
    """
    current = path
    entered: set[CodeSpan] = set()
    previous: Frame | None = None
    for frame in fault.frames:
        caller, previous = previous, frame
        spans = [span for span in tree[current].methods if span.holds(frame.file, frame.line)]
        new_entries = [span for span in spans if span.is_entry and span not in entered]
        if new_entries or any(not span.is_entry for span in spans):
            entered.update(new_entries)
            continue
        following = _entered_by(tree, current, frame, caller, healthy)
        if following is not None:
            current = following
            entered = {span for span in tree[current].methods if span.holds(frame.file, frame.line)}
    return None if current == path else current


def _entered_by(tree: ModuleTree, path: str, frame: Frame, caller: Frame | None, healthy: Container[str]) -> str | None:
    nearest = tree.called_children(path)
    candidates = [
        other
        for other in [*nearest, *(p for p in tree.descendants(path) if p not in nearest)]
        if any(span.is_entry and span.holds(frame.file, frame.line) for span in tree[other].methods)
    ]

    def rank(other: str) -> tuple[bool, bool]:
        sites = [call.call_site for call in tree[other].calls if call.call_site is not None]
        is_called_here = caller is not None and any(
            (site.file, site.line) == (caller.file, caller.line) for site in sites
        )
        return not is_called_here, other in healthy

    return min(candidates, key=rank, default=None)


def owner_of(tree: ModuleTree, path: str, fault: Fault, healthy: Container[str] = ()) -> str | None:
    """Return the module below `path` that a fault belongs to, None where that is `path` itself or nothing tells."""
    if fault.owners:
        return None if fault.owners[0] == path else fault.owners[0]
    return owner_below(tree, path, fault, healthy) if has_user_stack(fault) else None


def is_same_as_child(tree: ModuleTree, path: str, fault: Fault, shown_below: dict[str, set[FaultKey]]) -> bool | None:
    """Return whether a fault that a module shows is one that a module below introduces.

    `shown_below` maps paths below to the keys of the faults that they introduce. True: it is theirs. False: nothing
    below shows it. None: something below shows the same, but the stack does not tell whether this module brings it
    as well, so that only a probe with those modules kept eager can tell.
    """
    key = fault_key(fault)
    showing = [other for other, keys in shown_below.items() if key in keys]
    if not showing:
        return False
    if not has_user_stack(fault) and not fault.owners:
        return None
    owner = owner_of(tree, path, fault)
    if owner is not None and any(tree[owner].class_id == tree[other].class_id for other in showing):
        return True
    # A child from torch itself has no frames of its own: its fault shows at the line that calls it.
    called_here = any(
        call.call_site is not None
        and fault.location is not None
        and (call.call_site.file, call.call_site.line) == (fault.location.file, fault.location.line)
        for other in showing
        if not tree[other].methods
        for call in tree[other].calls
    )
    return True if called_here else None
