"""Which parts of a model were really compiled and compared: a run that found nothing is healthy only if all were."""

from __future__ import annotations

from compilebisect.core.module_tree import moved_path
from compilebisect.core.report import Uncovered
from compilebisect.core.walk import Walk


def uncovered_parts(walk: Walk) -> tuple[Uncovered, ...]:
    """Return the modules that nothing is known of, in the order of the tree.

    A module whose own check gave no verdict is covered where one above it was compiled as the user would, with it
    inside, ran to its end and was compared. That the modules below it are healthy is not enough: what it does itself
    was compiled with none of them. What `--only` and `--skip` leave out is nobody's loss.
    """
    found = []
    for path in walk.tree:
        unit = walk.unit_of.get(path)
        why = walk.results[unit.id].why_untested(path) if unit is not None else ""
        if why and not any(_covers(walk, above, path) for above in walk.tree.ancestors(path)):
            found.append(Uncovered(path=path, reason=why))
    return tuple(found)


def _covers(walk: Walk, above: str, path: str) -> bool:
    unit = walk.unit_of.get(above)
    if unit is None or walk.results[unit.id].why_untested(above):
        return False
    for kept_out in walk.results[unit.id].kept_out:
        eager = {moved_path(other, unit.path, above) for other in kept_out}
        if not eager.intersection((path, *walk.tree.ancestors(path))):
            return True
    return False
