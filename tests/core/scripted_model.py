"""A model that exists only as data: a tree, planted faults, and what a probe of any module would see."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from compilebisect.core.call import CallContext
from compilebisect.core.fingerprint import fault_key
from compilebisect.core.module_tree import CodeSpan, GoldenCall, ModuleRecord, ModuleTree, moved_path
from compilebisect.core.outcome import Fault, Frame, Kind, Observation, Rung, Stage
from compilebisect.core.unit_result import Probe
from compilebisect.core.units import units_of
from compilebisect.core.walk import Walk

LINES_PER_CLASS = 10


class Planted:
    """A fault in the code of `path`, or in the interplay of several modules (`together`).

    With `only_in_place` it needs the rest of the model around it, and with `only_inside` that module, be it compiled or
    not. By itself it is then beyond the floor, unless it `is_exact`.
    """

    def __init__(
        self,
        kind: Kind,
        path: str = "",
        together: Iterable[str] = (),
        type_name: str = "planted",
        lowest_rung: Rung | None = None,
        only_in_place: bool = False,
        only_inside: str | None = None,
        evidence: dict[str, float] | None = None,
        is_exact: bool = False,
        stage: Stage | None = None,
    ) -> None:
        self.kind = kind
        self.path = path
        self.together = tuple(together)
        self.type = type_name
        self.lowest_rung = lowest_rung
        self.only_in_place = only_in_place
        self.only_inside = only_inside
        self.evidence = evidence or {}
        self.is_exact = is_exact
        self.stage = stage


class ScriptedModel:
    """`children` maps each path to its children's paths; every module has its own class unless `classes` says so."""

    def __init__(
        self,
        children: dict[str, list[str]],
        planted: Iterable[Planted] = (),
        *,
        classes: dict[str, str] | None = None,
        uncalled: Iterable[str] = (),
        blind: Iterable[str] = (),
    ) -> None:
        self.children = children
        self.planted = list(planted)
        self.classes = classes or {}
        self.uncalled = set(uncalled)
        self.blind = set(blind)
        self.probes: list[Probe] = []
        self.tree = ModuleTree(self._record(path, number) for number, path in enumerate(self._paths("")))

    def _paths(self, path: str) -> list[str]:
        return [path, *(below for child in self.children.get(path, []) for below in self._paths(child))]

    def class_of(self, path: str) -> str:
        return self.classes.get(path, f"Class_{path or 'root'}")

    def _first_line(self, path: str) -> int:
        names = list(dict.fromkeys(self.class_of(other) for other in self._paths("")))
        return names.index(self.class_of(path)) * LINES_PER_CLASS + 1

    def _record(self, path: str, number: int) -> ModuleRecord:
        first = self._first_line(path)
        span = CodeSpan("model.py", first, first + LINES_PER_CLASS - 1, "forward", True)
        call = GoldenCall(index=0, signature="f32[2]", count=1, context=CallContext())
        return ModuleRecord(
            path=path,
            class_name=self.class_of(path),
            class_id=f"model:{self.class_of(path)}",
            config="",
            children=tuple(self.children.get(path, [])),
            calls=() if path in self.uncalled else (call,),
            methods=(span,),
        )

    def frames(self, probed: str, owner: str) -> tuple[Frame, ...]:
        """The stack from the module that was compiled down to the line of the fault."""
        chain = [owner]
        while chain[0] != probed:
            chain.insert(0, next(parent for parent, below in self.children.items() if chain[0] in below))
        called = [path for path in chain if path not in self.uncalled]
        return tuple(Frame("model.py", self._first_line(path) + 3, "forward", f"line of {path}") for path in called)

    def observe(self, probe: Probe) -> Observation:
        self.probes.append(probe)
        by_instance: dict[str, tuple[Fault, ...]] = {}
        observation = self._observe(probe)
        for path in (probe.path, *probe.instances):
            fenced = tuple(moved_path(other, probe.path, path) for other in probe.fenced)
            alone = probe.compiles_only and moved_path(probe.compiles_only, probe.path, path)
            seen = self._observe(msgspec.structs.replace(probe, path=path, fenced=fenced, compiles_only=alone))
            if differing := [fault for fault in seen.faults if fault.kind is Kind.DIVERGENCE]:
                by_instance[path] = tuple(
                    msgspec.structs.replace(fault, evidence={**fault.evidence, "instance": path}) for fault in differing
                )
        if not observation.completed:
            return observation
        of_code = [fault for fault in observation.faults if fault.kind is not Kind.DIVERGENCE]
        of_values = {fault_key(fault): fault for faults in reversed(by_instance.values()) for fault in faults}
        return msgspec.structs.replace(
            observation, faults=(*of_code, *of_values.values()), faults_by_instance=by_instance
        )

    def _observe(self, probe: Probe) -> Observation:
        inside = self._compiled_paths(probe.compiles_only or probe.path, set(probe.fenced))
        running = self._paths(probe.path)
        faults: list[Fault] = []
        for planted in self.planted:
            members = planted.together or (planted.path,)
            if not all(member in inside for member in members):
                continue
            if planted.only_in_place and not probe.in_place:
                continue
            if planted.only_inside is not None and planted.only_inside not in running:
                continue
            if (
                planted.lowest_rung
                and probe.rung
                and list(Rung).index(probe.rung) < list(Rung).index(planted.lowest_rung)
            ):
                continue
            faults.append(self._fault(planted, probe.path))
        fatal = [fault for fault in faults if fault.kind in (Kind.CRASH, Kind.TIMEOUT, Kind.ERROR)]
        if fatal:
            faults = fatal[:1]
        return Observation(
            faults=tuple(faults),
            completed=not fatal,
            graphs=1,
            frames_compiled=1,
            is_blind=probe.path in self.blind,
            has_excused=any(
                planted.only_inside is not None
                and not planted.is_exact
                and inside.intersection(planted.together or [planted.path])
                for planted in self.planted
            ),
            impact={"text": f"of {probe.path}"} if probe.in_place else {},
        )

    def _compiled_paths(self, path: str, fenced: set[str]) -> set[str]:
        if path in fenced:
            return set()
        return {path}.union(*(self._compiled_paths(child, fenced) for child in self.children.get(path, [])))

    def _fault(self, planted: Planted, probed: str) -> Fault:
        if planted.kind is Kind.GRAPH_BREAK:
            frames = self.frames(probed, planted.path)
            return Fault(kind=planted.kind, type=planted.type, stage=Stage.DYNAMO, frames=frames, location=frames[-1])
        if planted.kind is Kind.RECOMPILE:
            return Fault(kind=planted.kind, type=planted.type, stage=Stage.DYNAMO, owners=(planted.path,))
        return Fault(kind=planted.kind, type=planted.type, evidence=planted.evidence, stage=planted.stage)

    def walk(self, **options: object) -> Walk:
        """Run the whole walk, checking after each step what must always hold."""
        units = units_of(self.tree, with_methods=bool(options.get("context")))
        walk = Walk(self.tree, units, **options)  # type: ignore[arg-type]
        while not walk.is_finished():
            probe = walk.next_probe()
            assert probe is not None, "the walk has units left and asks for nothing"
            before = walk.remaining()
            walk.record(probe, self.observe(probe))
            assert walk.remaining() <= before
            assert len(self.probes) < 40 * len(self.tree.records), "the walk does not end"
        assert walk.next_probe() is None
        return walk


def introduced(walk: Walk) -> list[tuple[str, str]]:
    """Return (module, kind) of everything that the walk says is introduced."""
    return sorted((item.path, item.fault.kind.value) for result in walk.results.values() for item in result.introduced)
