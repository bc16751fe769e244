"""Which modules are one unit: they would compile to the same code, so that one compile stands for all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import msgspec

from compilebisect.core.module_tree import ModuleTree


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Modules that compile to the same code. The first of `paths` is probed; the others follow in tree order.

    Those whose golden calls could not be kept come last, so that they stand for the unit only where all are like that.
    """

    id: int
    paths: tuple[str, ...]

    @property
    def path(self) -> str:
        """The path of the instance that stands for all."""
        return self.paths[0]


def units_of(tree: ModuleTree, *, with_methods: bool = False) -> list[Unit]:
    """Group the called modules of a tree into units, leaves first.

    Two modules are one unit where their class, configuration, golden-call signatures and all of their children agree.
    Modules that were never called belong to no unit, unless `with_methods` asks for those of which other methods ran:
    each is a unit of its own.
    """
    keys: dict[str, str] = {}

    def key_of(path: str) -> str:
        if path not in keys:
            record = tree[path]
            calls = "|".join(f"{call.signature}/{call.context}" for call in record.calls)
            # A child at several places is one object; where it sits is told apart by its name under the parent.
            children = "|".join(f"{_name(child, path)}:{key_of(child)}" for child in record.children)
            text = "\x1f".join([record.class_id, record.config, calls, children])
            keys[path] = hashlib.sha256(text.encode()).hexdigest()
        return keys[path]

    groups: dict[str, list[str]] = {}
    for path in leaves_first(tree):
        if tree[path].calls:
            groups.setdefault(key_of(path), []).append(path)
        elif with_methods and tree[path].other_methods:
            groups[f"methods of {path}"] = [path]
    order = {path: position for position, path in enumerate(tree)}
    return [
        Unit(id=number, paths=tuple(sorted(paths, key=lambda path: (bool(tree[path].uncaptured), order[path]))))
        for number, paths in enumerate(groups.values())
    ]


def split_units(units: Iterable[Unit], is_wanted: Callable[[str], bool]) -> list[Unit]:
    """Split each unit into the modules that are wanted and the others, so that either all of a unit are or none."""
    groups = [
        group
        for unit in units
        for group in ([p for p in unit.paths if is_wanted(p)], [p for p in unit.paths if not is_wanted(p)])
        if group
    ]
    return [Unit(id=number, paths=tuple(group)) for number, group in enumerate(groups)]


def leaves_first(tree: ModuleTree) -> list[str]:
    """Return all paths so that each module stands behind everything below it."""
    done: dict[str, None] = {}

    def visit(path: str) -> None:
        if path in done:
            return
        for child in tree[path].children:
            visit(child)
        done[path] = None

    for path in tree:
        visit(path)
    return list(done)


def _name(child: str, parent: str) -> str:
    prefix = f"{parent}." if parent else ""
    return child.removeprefix(prefix)
