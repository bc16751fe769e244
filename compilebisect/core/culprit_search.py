"""What it takes inside a module for a fault that it shows: its own code, some of its children, or one of them alone.

Pure search, a part of the judge's.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Sequence

from compilebisect.core.module_tree import ModuleTree
from compilebisect.core.outcome import Fault, Kind, Observation
from compilebisect.core.reduce.search import smallest_subset
from compilebisect.core.shown_faults import is_like, may_be_rounding
from compilebisect.core.unit_result import IntroducedFault, Probe
from compilebisect.core.units import Unit

# Of fewer modules rounding does not add up to what is beyond the tolerance: a fault near it may hide in parts of them.
MANY = 8


class CulpritSearch:
    """Looks inside modules; only modules in `checked` can be named."""

    def __init__(self, tree: ModuleTree, checked: Container[str], is_exact: Callable[[str], bool]) -> None:
        """`is_exact` says whether a module by itself gives nothing that is beyond the floor of its dtype."""
        self._tree, self._checked, self._is_exact = tree, checked, is_exact

    def region(
        self, unit: Unit, item: IntroducedFault, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Find the smallest set of children whose interplay brings a fault; empty if the module's own code does.

        Returned with it are the instances in which it is so.
        """
        places = places_of(item)
        children = [path for path in self._tree.called_children(item.path) if path not in fenced]
        if not children:
            return (), places

        def without(away: Sequence[str], instances: tuple[str, ...] = ()) -> Probe:
            return Probe(
                unit=unit.id,
                path=item.path,
                fenced=(*fenced, *away),
                purpose="region",
                instances=instances,
                in_row=item.fault.is_in_row,
            )

        own = showing((yield without(children, places[1:])), item, places)
        if item.path in own:
            return (), own
        region = tuple(children)
        if item.fault.kind is not Kind.TIMEOUT and len(children) > 1:
            search = smallest_subset(children)
            try:
                kept = next(search)
                while True:
                    seen = yield without([path for path in children if path not in kept])
                    kept = search.send(bool(showing(seen, item, places[:1])))
            except StopIteration as stop:
                region = tuple(stop.value)
        if len(region) < len(children) and len(places) > 1:
            seen = yield without([path for path in children if path not in region], places[1:])
            places = (item.path, *(place for place in showing(seen, item, places) if place != item.path))
        return region, tuple(place for place in places if place not in own)

    def wrong_alone(
        self, unit: Unit, item: IntroducedFault, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, tuple[str | None, tuple[str, ...]]]:
        """Find the innermost module of a region that brings a divergence while all around it runs in eager mode.

        By itself it is within its tolerance, which can be wider than that of the module above it. Returned with it are
        the instances of the module above in which it does so; where there is none, those in which no other one does.
        """
        found: str | None = None
        places = places_of(item)
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
                    in_row=item.fault.is_in_row,
                )
                bringing = showing(seen, item, places)
                if item.path in bringing:
                    found, places, candidates = path, bringing, self._tree.called_children(path)
                    break
                places = tuple(place for place in places if place not in bringing)
            else:
                break
        return found, places

    def why_rounding(
        self, unit: Unit, item: IntroducedFault, child: str | None, fenced: tuple[str, ...]
    ) -> Generator[Probe, Observation, str]:
        """Say why a small divergence is rounding and no fault: empty where it is one.

        `child` is the one below that brings it alone, with all that is in it.
        """
        if not may_be_rounding(item.fault):
            return ""
        if child is not None and self._is_exact(child):
            return f"enlarged rounding: what {child} gives by itself is within the floor of its dtype"
        together = item.region if child is None else self._tree.called_children(child)
        below = tuple(path for path in together if path not in fenced)
        if sum(1 + len(self._tree.descendants(path)) for path in below) < MANY:
            return ""
        if child is not None:
            fenced = (*fenced, *below)
            own = Probe(
                unit=unit.id,
                path=item.path,
                compiles_only=child,
                fenced=fenced,
                purpose="alone inside",
                in_row=item.fault.is_in_row,
            )
            if showing((yield own), item, (item.path,)):
                return ""
        return "accumulated rounding: it is small, and many modules bring it only together"


def places_of(item: IntroducedFault) -> tuple[str, ...]:
    """Return the module that shows a fault and, where values differ, the other instances that do, each once."""
    others = item.instances if item.fault.kind is Kind.DIVERGENCE else ()
    return tuple(dict.fromkeys((item.path, *others)))


def showing(seen: Observation, item: IntroducedFault, places: Sequence[str]) -> tuple[str, ...]:
    """Return which of `places_of(item)` show its fault in an observation for which the first one was compiled."""

    def faults_of(place: str) -> Sequence[Fault]:
        if item.fault.kind is Kind.DIVERGENCE and not item.fault.is_in_row and seen.faults_by_instance:
            return seen.faults_by_instance.get(place, ())
        return seen.faults if place == places[0] else ()

    return tuple(place for place in places if any(is_like(item.fault, other) for other in faults_of(place)))
