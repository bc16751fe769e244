"""The module tree: what the eager run told about each module, and the order in which the tree is walked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import networkx as nx

from compilebisect.core.call import CallContext
from compilebisect.core.outcome import Frame

#: Where the tree holds the optimizer: below no module, and under a name that no attribute has.
OPTIMIZER_PATH = "<optimizer>"
#: Why calls are not kept whose arguments are gone with the caller's transform or trace. To compile a module inside such
#: a one that runs in eager mode is something else than to compile the whole, so it is not looked at in place either.
IN_TRANSFORM = "not captured: its arguments exist only inside a function transform (torch.func), whose caller covers it"
IN_TRACE = "not captured: its arguments stand for others and have no values (fake tensors); its caller covers it"


class CodeSpan(msgspec.Struct, frozen=True):
    """The lines that a method of a module's class takes up: `first` to `last`, both included.

    `is_entry` marks `forward`, and the functions of decorators around it. `owner` is the class that defines the method.
    """

    file: str
    first: int
    last: int
    name: str
    is_entry: bool = False
    owner: str = ""

    def holds(self, file: str, line: int) -> bool:
        """Return whether a line of a file lies in this method."""
        return self.file == file and self.first <= line <= self.last


class GoldenCall(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one module that share a signature; `index` is the number of the first (from 0), `last` of the last.

    They compile alike, but what they compute differs: the first one's state is often all zeros, which hides much.
    `signature` describes the arguments: structure, shapes, dtypes, strides, devices and Python values.
    `input_bytes` is the size of all tensors in the arguments. `call_site` is the innermost frame outside torch
    that made the call. `uncaptured` says why its values cannot be kept, nothing where they can.
    """

    index: int
    signature: str
    count: int
    context: CallContext
    call_site: Frame | None = None
    input_bytes: int = 0
    last: int | None = None
    uncaptured: str = ""

    @property
    def indices(self) -> tuple[int, ...]:
        """The numbers of the calls whose values are compared: the first, and where there are more, the last."""
        return (self.index,) if self.last is None else (self.index, self.last)

    def at(self, index: int) -> GoldenCall:
        """Return one of the calls in place of the first; an index of no such call gives the first."""
        return msgspec.structs.replace(self, index=index, last=None) if index in self.indices else self


class ModuleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one module after the eager run.

    `class_id` is `module:qualname` of its class. `config` sums up everything besides its children and calls that
    decides what it compiles to (see `runtime.describe`). `children` are the paths of its direct submodules in order;
    a module that sits at several places is named by its first path, and `aliases` holds the others. `definition` is
    the line that defines its `forward`, None for torch's own classes. `other_methods` names methods besides `forward`
    that ran.
    """

    path: str
    class_name: str
    class_id: str
    config: str
    children: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    calls: tuple[GoldenCall, ...] = ()
    dropped_signatures: int = 0
    other_methods: tuple[str, ...] = ()
    methods: tuple[CodeSpan, ...] = ()
    definition: Frame | None = None
    is_traceable: bool = True

    @property
    def golden_calls(self) -> tuple[GoldenCall, ...]:
        """The calls whose values can be kept."""
        return tuple(call for call in self.calls if not call.uncaptured)

    @property
    def uncaptured(self) -> str:
        """Why not a single call can be kept; nothing where one can, or where there was none."""
        return self.calls[0].uncaptured if self.calls and not self.golden_calls else ""

    @property
    def shows_in_place(self) -> bool:
        """Whether a module of which no call can be kept can be compiled where it stands."""
        return any(call.uncaptured not in ("", IN_TRANSFORM, IN_TRACE) for call in self.calls)

    @property
    def golden_indices(self) -> tuple[int, ...]:
        """The numbers of the calls that are kept."""
        return tuple(index for call in self.golden_calls for index in call.indices)

    @property
    def call_count(self) -> int:
        """How often the module was called in the eager run."""
        return sum(call.count for call in self.calls)


class ModuleTree:
    """Modules by path, over a directed graph from parent to child. The root's path is the empty string."""

    def __init__(self, records: Iterable[ModuleRecord]) -> None:
        self.records = {record.path: record for record in records}
        self.graph = nx.DiGraph()
        self.graph.add_nodes_from(self.records)
        for record in self.records.values():
            self.graph.add_edges_from((record.path, child) for child in record.children)

    def __getitem__(self, path: str) -> ModuleRecord:
        return self.records[path]

    def __iter__(self) -> Iterator[str]:
        """Iterate over paths, parents before children, as `named_modules()` orders them."""
        return iter(self.records)

    def descendants(self, path: str) -> list[str]:
        """Return the paths below `path`, in tree order."""
        below = nx.descendants(self.graph, path)
        return [other for other in self.records if other in below]

    def ancestors(self, path: str) -> list[str]:
        """Return the paths above `path`, in tree order; a shared module has those of all its places."""
        above = nx.ancestors(self.graph, path)
        return [other for other in self.records if other in above]

    def called_children(self, path: str) -> list[str]:
        """Return the nearest modules below `path` that are called, looking through containers that are not."""
        found: list[str] = []
        for child in self.records[path].children:
            candidates = [child] if self.records[child].calls else self.called_children(child)
            found.extend(candidate for candidate in candidates if candidate not in found)
        return found

    def called_parents(self, path: str) -> list[str]:
        """Return the nearest modules above `path` that are called."""
        found: list[str] = []
        for parent in self.graph.predecessors(path):
            candidates = [parent] if self.records[parent].calls else self.called_parents(parent)
            found.extend(candidate for candidate in candidates if candidate not in found)
        return found

    def weight(self, path: str) -> int:
        """Count the distinct called modules from `path` down: a rough measure of what its graph holds."""
        return sum(bool(self.records[other].calls) for other in [path, *self.descendants(path)])


def moved_path(path: str, old: str, new: str) -> str:
    """Return where the module at `path` is found when seen from `new` instead of `old`, which is it or above it.

    A module that does not sit below `old` is shared with another place and stays where it is.
    """
    if path == old:
        return new
    prefix = f"{old}." if old else ""
    if not path.startswith(prefix):
        return path
    rest = path[len(prefix) :]
    return f"{new}.{rest}" if new else rest
