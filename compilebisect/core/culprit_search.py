"""What it takes inside a module for a fault that it shows: its own code, some of its children, or one of them alone.

Pure search, a part of the judge's.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Sequence

from compilebisect.core.fingerprint import fault_key
from compilebisect.core.module_tree import ModuleTree
from compilebisect.core.outcome import Fault, Kind, Observation
from compilebisect.core.reduce.search import smallest_subset
from compilebisect.core.shown_faults import may_be_rounding, shown_by
from compilebisect.core.unit_result import IntroducedFault, Probe
from compilebisect.core.units import Unit


class CulpritSearch:
    """Looks inside modules; only modules in `checked` can be named."""

    def __init__(self, tree: ModuleTree, checked: Container[str]) -> None:
        self._tree, self._checked = tree, checked

    def region(
        self, unit: Unit, place: str, fault: Fault, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, tuple[str, ...]]:
        """Find the smallest set of children whose interplay brings a fault; empty if the module's own code does."""
        children = [path for path in self._tree.called_children(place) if path not in fenced]
        if not children:
            return ()
        alone = Probe(unit=unit.id, path=place, fenced=(*fenced, *children), purpose="region")
        if (yield from shows(fault, alone)):
            return ()
        if fault.kind is Kind.TIMEOUT or len(children) == 1:
            return tuple(children)
        search = smallest_subset(children)
        try:
            kept = next(search)
            while True:
                away = tuple(path for path in children if path not in kept)
                probe = Probe(unit=unit.id, path=place, fenced=(*fenced, *away), purpose="region")
                kept = search.send((yield from shows(fault, probe)))
        except StopIteration as stop:
            return tuple(stop.value)

    def wrong_alone(
        self, unit: Unit, item: IntroducedFault, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, tuple[str | None, tuple[str, ...]]]:
        """Find the innermost module of a region that brings a divergence while all around it runs in eager mode.

        By itself it is within its tolerance, which can be wider than that of the module above it. Returned with it are
        the instances of the module above in which it does so.
        """
        found: str | None = None
        places = tuple(dict.fromkeys((item.path, *item.instances)))
        candidates: Sequence[str] = item.region
        while candidates:
            for path in candidates:
                if path in fenced or path not in self._checked:
                    continue
                seen = yield Probe(
                    unit=unit.id,
                    path=item.path,
                    compiles_only=path,
                    fenced=fenced,
                    purpose="alone inside",
                    instances=places[1:],
                )
                showing = shown_by(seen, places, item.path).instances.get(fault_key(item.fault), ())
                if item.path in showing:
                    found, candidates = path, self._tree.called_children(path)
                    places = tuple(place for place in places if place in showing)
                    break
            else:
                break
        return found, places

    def only_adds_up(
        self, unit: Unit, item: IntroducedFault, child: str | None, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, bool]:
        """Return whether a small divergence takes several modules, and so may be their rounding taken together.

        `child` is the one below that brings it alone, with all that is in it.
        """
        if not may_be_rounding(item.fault):
            return False
        if child is None:
            return bool(item.region)
        below = tuple(path for path in self._tree.called_children(child) if path not in fenced)
        if not below:
            return False
        fenced = (*fenced, *below)
        own = Probe(unit=unit.id, path=item.path, compiles_only=child, fenced=fenced, purpose="alone inside")
        return not (yield from shows(item.fault, own))


def shows(fault: Fault, probe: Probe) -> Generator[Probe, Observation, bool]:
    """Return whether a probe shows a fault."""
    seen = yield probe
    return fault_key(fault) in {fault_key(other) for other in seen.faults}
