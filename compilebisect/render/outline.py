"""The module tree as it is drawn: healthy subtrees folded, equal siblings grouped. Data only, no drawing."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set

import msgspec

from compilebisect.core.outcome import Kind
from compilebisect.core.report import Finding, ModuleEntry, Report
from compilebisect.core.words import plural
from compilebisect.render.wording import modules_of, number_ranges, one_line

# States that need no attention: the statuses, and two that only drawing knows. `implied` is ok without a compile
# of its own; a `container` is never called itself but holds modules that are, like every ModuleList. A module that is
# untested and that no other one covers has a state of its own, which is none of these.
QUIET = ("ok", "implied", "container", "not_called", "skipped", "untested")
UNCOVERED = "uncovered"
_ASIDES = {"implied": "implied", "not_called": "not called", "skipped": "skipped", "untested": "untested"}
# With these alone nothing inside of a module ran and was judged.
_IDLE = ("not_called", "skipped", "untested")
# With more healthy children than this beside a faulty one they share one line, so that the fault stands out.
HEALTHY_LINES = 4


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the outline: a module, several equal siblings, or a folded healthy subtree.

    `entry` is the module that stands for all; None for a line that sums up healthy siblings. `count` is the
    number of siblings, `tally` how many modules of each state the line and its folded subtrees hold.
    `findings` are the ids of what the module introduces, `breaks` how many of them are graph breaks. `graphs` and
    `recompiles` are those of one sibling, seconds those of all of them; `eager_s` and `compiled_s` are 0 where they
    were not measured. What is folded below the line is not in them.
    """

    label: str
    entry: ModuleEntry | None
    count: int = 1
    tally: dict[str, int]
    findings: tuple[str, ...] = ()
    breaks: int = 0
    graphs: int = 0
    recompiles: int = 0
    compile_s: float = 0.0
    eager_s: float = 0.0
    compiled_s: float = 0.0
    children: tuple[Node, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing at or below this line needs attention."""
        return not self.findings and all(state in QUIET for state in self.tally)

    @property
    def has_judged(self) -> bool:
        """Whether modules of it ran and were judged, one at least."""
        return any(self.tally.get(state) for state in ("ok", "implied"))

    @property
    def is_uncovered(self) -> bool:
        """Whether nothing is known of the module itself."""
        return self.entry is not None and self.entry.status == "untested" and bool(self.tally.get(UNCOVERED))

    @property
    def is_judged(self) -> bool:
        """Whether modules of it ran, and none of these was skipped."""
        return (self.has_judged or bool(self.tally.get("container"))) and not self.tally.get("skipped")

    @property
    def can_be_folded(self) -> bool:
        """Whether one mark says all: nothing needs attention, and not some was judged while some was skipped."""
        return self.is_quiet and not (self.has_judged and self.tally.get("skipped"))

    def quiet_words(self) -> str:
        """Say what a healthy line holds: `24 modules (12 implied)`; empty for one compiled module."""
        total = sum(self.tally.values())
        asides = ", ".join(
            word if self.tally[state] == total else f"{self.tally[state]} {word}"
            for state, word in _ASIDES.items()
            if self.tally.get(state)
        )
        if total == self.count and self.entry is not None:
            return asides
        return f"{plural(total, 'module')} ({asides})" if asides else plural(total, "module")


def outline(report: Report) -> Node | None:
    """Return the outline of a report's modules, None where it has none."""
    if not report.modules:
        return None
    entries = {entry.path: entry for entry in report.modules}
    if "" not in entries:
        # limited to a part of the tree: hang what is there below a root that was not looked at
        cls = report.target.rpartition(":")[2] or "model"
        entries = {"": ModuleEntry(path="", cls=cls, status="skipped"), **entries}
    below = _children_by_parent(entries)
    introduced: dict[str, list[Finding]] = {}
    for finding in report.findings:
        for path in modules_of(finding):
            introduced.setdefault(path, []).append(finding)
    return _node_of_root(entries[""], below, introduced, {part.path for part in report.uncovered})


def _children_by_parent(entries: dict[str, ModuleEntry]) -> dict[str, list[ModuleEntry]]:
    """Sort entries under their nearest listed ancestor, in the order that the parent names its children in."""
    below: dict[str, list[ModuleEntry]] = {}
    for path, entry in entries.items():
        parent = path
        while parent:
            parent = parent.rpartition(".")[0]
            if parent in entries:
                below.setdefault(parent, []).append(entry)
                break
    for parent, children in below.items():
        named = [name.rpartition(".")[2] for name in entries[parent].children]
        order = {name: position for position, name in enumerate(named)}
        children.sort(key=lambda child: order.get(child.path.rpartition(".")[2], len(order)))
    return below


def _node_of_root(
    root: ModuleEntry,
    below: dict[str, list[ModuleEntry]],
    introduced: dict[str, list[Finding]],
    uncovered: Set[str],
) -> Node:
    order = [(root, "")]
    for entry, _ in order:  # it grows meanwhile: parents come before their children
        order += [(child, entry.path) for child in below.get(entry.path, ())]
    looks = _Looks()
    nodes: dict[str, Node] = {}
    for entry, parent in reversed(order):
        children = [nodes.pop(child.path) for child in below.get(entry.path, ())]
        nodes[entry.path] = _node(entry, parent, children, introduced, uncovered, looks)
    return nodes[root.path]


def _node(
    entry: ModuleEntry,
    parent: str,
    children: list[Node],
    introduced: dict[str, list[Finding]],
    uncovered: Set[str],
    looks: _Looks,
) -> Node:
    label = entry.cls if not entry.path else entry.path[len(parent) + 1 if parent else 0 :]
    inner = _sum_tallies(child.tally for child in children)
    state = UNCOVERED if entry.path in uncovered else _state(entry, inner)
    tally = _sum_tallies([{state: 1}, inner])
    own = introduced.get(entry.path, ())
    is_timed = entry.eager_s is not None and entry.compiled_s is not None
    node = Node(
        label=one_line(label),
        entry=entry,
        tally=tally,
        findings=tuple(finding.id for finding in own),
        breaks=sum(finding.kind is Kind.GRAPH_BREAK for finding in own),
        graphs=entry.graphs,
        recompiles=entry.recompiles,
        compile_s=entry.compile_s,
        eager_s=entry.eager_s or 0.0 if is_timed else 0.0,
        compiled_s=entry.compiled_s or 0.0 if is_timed else 0.0,
    )
    if node.can_be_folded and all(child.can_be_folded for child in children):
        return node
    return msgspec.structs.replace(node, children=tuple(_gathered(_grouped(children, looks))))


def _state(entry: ModuleEntry, inner: dict[str, int]) -> str:
    if entry.status == "not_called" and any(state not in _IDLE for state in inner):
        return "container"
    return "implied" if entry.status == "ok" and entry.implied else entry.status


def _sum_tallies(tallies: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for tally in tallies:
        for state, count in tally.items():
            total[state] = total.get(state, 0) + count
    return total


def _grouped(nodes: Sequence[Node], looks: _Looks) -> list[Node]:
    """Join neighbours that show the same."""
    runs: list[list[Node]] = []
    for node in nodes:
        if runs and looks.of(runs[-1][0]) == looks.of(node):
            runs[-1].append(node)
        else:
            runs.append([node])
    joined = [_joined(run) for run in runs]
    for node in joined:
        looks.of(node)  # those of its children are known, and of these it is made
    return joined


class _Looks:
    """Numbers all that is drawn of a node but its own name, so that equal looks have equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, tuple[Node, int]] = {}  # by the node's id, which it keeps as long as it is held here

    def of(self, node: Node) -> int:
        """Return the number for a node, whose children were asked for before."""
        if id(node) not in self._known:
            entry = node.entry
            look = (
                entry and (entry.cls, entry.status, entry.origin, entry.implied, entry.shared_with),
                node.count,
                tuple(sorted(node.tally.items())),
                node.findings,
                node.graphs,
                node.recompiles,
                tuple((child.label, self.of(child)) for child in node.children),
            )
            self._known[id(node)] = node, self._numbers.setdefault(look, len(self._numbers))
        return self._known[id(node)][1]


def _joined(run: list[Node]) -> Node:
    if len(run) == 1:
        return run[0]
    return msgspec.structs.replace(
        run[0],
        label=joined_labels([node.label for node in run]),
        count=len(run),
        tally=_sum_tallies(node.tally for node in run),
        **_seconds_of(run),
    )


def _seconds_of(nodes: Sequence[Node]) -> dict[str, float]:
    return {
        "compile_s": sum(node.compile_s for node in nodes),
        "eager_s": sum(node.eager_s for node in nodes if node.compiled_s),
        "compiled_s": sum(node.compiled_s for node in nodes),
    }


def joined_labels(labels: Sequence[str]) -> str:
    """Return one name for several siblings: `layers.0…11`, or `q, k, v`."""
    stems = {label.rpartition(".")[0] for label in labels}
    ends = [label.rpartition(".")[2] for label in labels]
    if len(stems) == 1 and all(end.isdecimal() for end in ends):
        stem = stems.pop()
        return f"{stem}.{number_ranges(map(int, ends))}" if stem else number_ranges(map(int, ends))
    if len(labels) <= 3:
        return ", ".join(labels)
    return f"{labels[0]}, …, {labels[-1]}"


def _gathered(nodes: list[Node]) -> list[Node]:
    """Put the healthy children on one line where there are many, and so those that nobody looked at; both come last."""
    gathered: list[Node] = []
    for is_of_skipped in (False, True):
        quiet = [node for node in nodes if node.can_be_folded and bool(node.tally.get("skipped")) is is_of_skipped]
        if len(quiet) <= HEALTHY_LINES:
            continue
        rest = Node(
            label=", ".join(node.label for node in quiet),
            entry=None,
            count=sum(node.count for node in quiet),
            tally=_sum_tallies(node.tally for node in quiet),
        )
        gathered.append(msgspec.structs.replace(rest, **_seconds_of(quiet)))
        gone = {id(node) for node in quiet}
        nodes = [node for node in nodes if id(node) not in gone]
    return [*nodes, *gathered]
