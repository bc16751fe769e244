"""From the walk's results to the report's findings and module entries."""

from __future__ import annotations

import os.path
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from compilebisect.core.blame import has_user_stack
from compilebisect.core.break_evidence import break_evidence
from compilebisect.core.dismissed import Dismissed, DismissedFaults, followers, is_hidden, is_seen_as
from compilebisect.core.fingerprint import FaultKey, fault_key, fingerprint, reason_of, worst
from compilebisect.core.judge import LEFT_OUT
from compilebisect.core.module_tree import CodeSpan, ModuleTree
from compilebisect.core.outcome import Fault, Frame, Kind, Observation
from compilebisect.core.report import Finding, Location, ModuleEntry, Origin, Status
from compilebisect.core.unit_result import InheritedFault, IntroducedFault, UnitResult
from compilebisect.core.units import Unit
from compilebisect.core.walk import Walk
from compilebisect.core.words import plural

# A number, a short text, True, False or None; a guard may also give a condition.
_VALUE = re.compile(r"-?\d+(\.\d+)?|'[^']{0,20}'|True|False|None")
_PACKAGES = ("site-packages/", "dist-packages/")

CauseKey = tuple[FaultKey, str, tuple[str, ...]]


def cause_key(tree: ModuleTree, path: str, item: IntroducedFault) -> CauseKey:
    """Return what is the same for all modules at which one cause shows itself, `path` being one of them."""
    # A line is one cause wherever it is reached from; without a line, the class has to be the same.
    place = "" if has_user_stack(item.fault) else tree[path].class_id
    return fault_key(item.fault), place, tuple(tree[other].class_id for other in item.region)


class Verdicts:
    """Findings in tree order, and the entries of all modules, made from a walk that may have been cut short."""

    def __init__(self, walk: Walk, root_dir: str, kinds: Collection[Kind] = tuple(Kind)) -> None:
        """Args: the walk, the folder of the target, and the kinds that are told of, which may be less than all."""
        self.walk = walk
        self._kinds = kinds
        self.tree: ModuleTree = walk.tree
        self.root_dir = root_dir
        self._order = {path: position for position, path in enumerate(self.tree)}
        # A report is made anew with each fault that is met, so no finding may take a search of the whole tree.
        self._methods: dict[tuple[str, str], dict[CodeSpan, str]] = {}
        for path in self.tree:
            for span in self.tree[path].methods:
                self._methods.setdefault((span.file, span.name), {}).setdefault(span, path)
        self._skipping = {unit.id: _skipping(walk.results[unit.id].observation) for unit in walk.units}
        self._unjudged = walk.unjudged_faults()
        self._groups = self._grouped()
        self._dismissed: list[Dismissed] = []
        self.findings: list[Finding] = []
        self.faults: dict[str, IntroducedFault] = {}
        self._make()

    def dismiss(self, reasons: Mapping[str, str]) -> None:
        """Take findings back, by their ids, and number the others anew: they become notes, with these reasons."""
        if not reasons:
            return
        taken = {id(self.faults[number]): reason for number, reason in reasons.items()}
        gone = [Dismissed(item, tuple(paths), taken[id(item)]) for item, paths in self._groups if id(item) in taken]
        self._dismissed = [*self._dismissed, *gone]
        self._groups = [(item, paths) for item, paths in self._groups if id(item) not in taken]
        self._make()

    def hidden(self) -> list[str]:
        """Return the ids of findings that no run of the model shows as it is, but only one without another fault."""
        return [number for number, item in self.faults.items() if self._is_hidden(item.fault)]

    def shows_above(self, number: str) -> bool:
        """Return whether the check of a module above showed the fault too, which has it from no other finding."""
        item, paths = self.faults[number], self._paths_of(number)
        others = [
            path
            for other, found in self.faults.items()
            if other != number and is_seen_as(item.fault, found.fault)
            for path in self._paths_of(other)
        ]
        above = {above for path in paths for above in self.tree.ancestors(path) if above in self.walk.unit_of}
        return any(
            any(is_seen_as(item.fault, inherited.fault) for inherited in self.walk.results[unit.id].inherited)
            for path in above
            if not any(path in (other, *self.tree.ancestors(other)) for other in others)
            for unit in [self.walk.unit_of[path]]
        )

    def _paths_of(self, number: str) -> Sequence[str]:
        return next(paths for item, paths in self._groups if item is self.faults[number])

    def _make(self) -> None:
        following = followers([item.fault for item, _ in self._groups])
        groups = [(item, paths) for item, paths in self._groups if fault_key(item.fault) not in following]
        self._ids = {fault_key(item.fault): f"F{number}" for number, (item, _) in enumerate(groups, start=1)}
        gone = [Dismissed(item, tuple(p), "") for item, p in self._groups if fault_key(item.fault) in following]
        self._aside = DismissedFaults([*self._dismissed, *gone], self._ids, self._said)
        self.faults = {f"F{number}": item for number, (item, _) in enumerate(groups, start=1)}
        self.findings = [self._finding(f"F{number}", *group) for number, group in enumerate(groups, start=1)]

    def _is_hidden(self, fault: Fault) -> bool:
        if not is_hidden(fault):
            return False
        seen = (result.observation for result in self.walk.results.values() if result.observation is not None)
        return not any(fault_key(other) == fault_key(fault) for one in seen for other in one.faults)

    def _said(self, fault: Fault) -> str:
        frame = fault.location if fault.frames else None
        where = f" at {self._place(frame)}" if frame is not None else ""
        return f"{fault.kind.value.replace('_', ' ')}{where} ({fault.type})"

    def _grouped(self) -> list[tuple[IntroducedFault, list[str]]]:
        """Put the same fault of several modules together; the first of them in the tree stands for all."""
        groups: dict[CauseKey, list[tuple[str, IntroducedFault]]] = {}
        for unit in self.walk.units:
            for item in self._unjudged.get(unit.id) or self.walk.results[unit.id].introduced:
                if item.fault.kind not in self._kinds:
                    continue
                for path in self._showing(unit, item):
                    groups.setdefault(cause_key(self.tree, path, item), []).append((path, item))
        found = []
        for members in groups.values():
            members.sort(key=lambda member: self._order[member[0]])
            found.append((members[0][1], list(dict.fromkeys(path for path, _ in members))))
        # What only shows behind another one comes last, so that the others keep their numbers where it is taken back.
        return sorted(
            found,
            key=lambda group: (
                self._is_hidden(group[0].fault),
                group[0].fault.kind.severity,
                self._order[group[1][0]],
            ),
        )

    def _showing(self, unit: Unit, item: IntroducedFault) -> Sequence[str]:
        if item.instances:
            return item.instances
        return unit.paths if item.path == unit.path else [item.path]

    def _finding(self, number: str, item: IntroducedFault, paths: list[str]) -> Finding:
        fault, module = item.fault, paths[0]
        evidence = dict(fault.evidence)
        if any(item in items for items in self._unjudged.values()):
            evidence["not_judged"] = "the run ended before it was known for sure that no other module brings it"
        if item.region:
            evidence["region"] = list(item.region)
        if item.seen_in is not None and item.seen_in != module:
            evidence["only_inside"] = item.seen_in
        if fault.kind is Kind.GRAPH_BREAK:
            evidence["skipped_above"] = self._skipped_above(fault, module)
            evidence = break_evidence(evidence, place=self._place, function=self._qualified, hiders=self._ids)
        if (line := self._user_line(item, module)) is not None:
            evidence["user_line"] = f"{self._place(line)} in {self._qualified(line)}: {line.code}"
        evidence |= self._aside.evidence_of(fault)
        evidence["message"] = fault.message[:4000]
        if fault.frames:
            evidence["stack"] = [
                f"{self.file_name(frame)}:{frame.line} in {frame.function}: {frame.code}" for frame in fault.frames
            ]
        return Finding(
            id=number,
            kind=fault.kind,
            module=module,
            also_in=tuple(paths[1:]),
            stage=fault.stage,
            summary=summary_of(fault, self.tree[module].class_name, inside=evidence.get("only_inside")),
            location=self.location(fault.location or self._place_of(module)),
            fingerprint=fingerprint(fault, self.tree[module].class_name),
            evidence=evidence,
            hint=fault.hint,
        )

    def _skipped_above(self, fault: Fault, module: str) -> list[dict[str, Any]]:
        """Return the functions of modules above that Dynamo gives up on for a graph break of one below."""
        key = fault_key(fault)
        seen = [(item["file"], item["line"]) for item in fault.evidence.get("skipped_frames", ())]
        found = []
        for path in self.tree.ancestors(module):
            unit = self.walk.unit_of.get(path)
            for other in self._skipping[unit.id].get(key, ()) if unit is not None else ():
                for item in other.evidence["skipped_frames"]:
                    if (item["file"], item["line"]) not in seen:
                        seen.append((item["file"], item["line"]))
                        found.append({**item, "effect": other.evidence.get("effect", "")})
        return found

    def _user_line(self, item: IntroducedFault, module: str) -> Frame | None:
        """Return the user's line that leads to a fault in library code, None where the fault's own line is theirs."""
        fault = item.fault
        if fault.location is None or not fault.frames or not is_library_file(fault.location.file):
            return None
        above = [module]
        while above[-1]:  # nearest first, by the paths: calls of a shared module are the same at all its places
            above.append(above[-1].rpartition(".")[0])
        sites = [call.call_site for path in above if path in self.tree.records for call in self.tree[path].calls]
        frames = [*reversed(fault.frames), *(site for site in sites if site is not None)]
        return next((frame for frame in frames if not is_library_file(frame.file)), None)

    def _place(self, frame: Frame) -> str:
        return f"{self.file_name(frame)}:{frame.line}"

    def _place_of(self, module: str) -> Frame | None:
        """Return where a module's code begins, or where it is called from if it has none of the user's."""
        record = self.tree[module]
        return record.definition or next((call.call_site for call in record.calls), None)

    def location(self, frame: Frame | None) -> Location | None:
        """Return a frame as the report shows it."""
        if frame is None:
            return None
        return Location(file=self.file_name(frame), line=frame.line, function=self._qualified(frame), code=frame.code)

    def _qualified(self, frame: Frame) -> str:
        """Return a method's name with that of its class, as `MLP.forward`; other functions keep theirs."""
        for span, path in self._methods.get((frame.file, frame.function), {}).items():
            if span.holds(frame.file, frame.line):
                return f"{span.owner or self.tree[path].class_name}.{span.name}"
        return frame.function

    def file_name(self, frame: Frame) -> str:
        """Return the file of a frame relative to the target's folder, or to the folder of installed packages."""
        root = os.path.join(self.root_dir, "")
        if frame.file.startswith(root):
            return frame.file[len(root) :]
        for mark in _PACKAGES:
            if mark in frame.file:
                return frame.file.rsplit(mark, 1)[1]
        return os.path.basename(frame.file)

    def modules(self) -> list[ModuleEntry]:
        """Return an entry for every module of the tree."""
        introduced: dict[str, list[str]] = {}
        for finding in self.findings:
            for path in (finding.module, *finding.also_in):
                introduced.setdefault(path, []).append(finding.id)
        kinds = {finding.id: finding.kind for finding in self.findings}
        return [self._entry(path, introduced.get(path, []), kinds) for path in self.tree]

    def _entry(self, path: str, findings: list[str], kinds: Mapping[str, Kind]) -> ModuleEntry:
        record = self.tree[path]
        unit = self.walk.unit_of.get(path)
        result = self.walk.results[unit.id] if unit else UnitResult()
        inherited = [item for item in result.inherited if item.is_shown_by(path) and item.fault.kind in self._kinds]
        status, origin = self._status(path, unit, result, [kinds[number] for number in findings], inherited)
        observation = result.observation
        notes = list(result.notes)
        if result.is_left_out:
            notes.append(LEFT_OUT)
        if why := result.why_untested(path):
            notes.append(f"untested: {why}")
        elif not record.uncaptured:
            notes.extend(f"call {call.index} was {call.uncaptured}" for call in record.calls if call.uncaptured)
        for item in inherited:
            if item.is_of_left_out:
                notes.append(f"shows a fault ({item.fault.kind.value}) of modules {LEFT_OUT}")
        if unit is None and record.other_methods:
            notes.append(f"never called itself; its {', '.join(record.other_methods)} ran as part of another module")
        if record.dropped_signatures:
            notes.append(f"{record.dropped_signatures} further kinds of call were not checked")
        notes += self._aside.notes_of(path)
        return ModuleEntry(
            path=path,
            cls=record.class_name,
            status=status,
            origin=origin,
            children=record.children,
            findings=tuple(findings),
            same_as=unit.path if unit and unit.path != path else None,
            shared_with=record.aliases,
            implied=result.is_implied,
            calls=record.call_count,
            compile_s=round(observation.compile_s, 3) if observation and unit and unit.path == path else 0.0,
            graphs=observation.graphs if observation else 0,
            recompiles=result.recompiles,
            **self._times(path, result),
            notes=tuple(dict.fromkeys(notes)),
        )

    def _times(self, path: str, result: UnitResult) -> dict[str, float | None]:
        """Return what was timed of a module, for one run of the model."""
        timing = result.timing
        if timing is None or not timing.calls:
            return {}
        # Instances of a unit are called alike, so that the first one's seconds are each one's.
        whole = self.walk.results[self.walk.unit_of[""].id].timing if "" in self.walk.unit_of else None
        return {
            "eager_s": round(timing.eager_s, 9),
            "compiled_s": round(timing.compiled_s, 9) if timing.is_of_compiled else None,
            "time_share": round(timing.eager_s / whole.eager_s, 4) if whole is not None and whole.calls else None,
        }

    def _status(
        self, path: str, unit: Unit | None, result: UnitResult, own: list[Kind], inherited: list[InheritedFault]
    ) -> tuple[Status, Origin | None]:
        kind = worst([*own, *(item.fault.kind for item in inherited)])
        if kind is not None:
            return kind.value, "introduced" if own else "inherited"
        if unit is None:
            return "not_called", None
        if result.is_left_out or not result.is_done:
            return "skipped", None
        if result.why_untested(path):
            return "untested", None
        return "ok", None


def _skipping(seen: Observation | None) -> dict[FaultKey, list[Fault]]:
    """Return, by what they are, the faults for which Dynamo gave up on functions."""
    found: dict[FaultKey, list[Fault]] = {}
    for fault in seen.faults if seen is not None else ():
        if fault.evidence.get("skipped_frames"):
            found.setdefault(fault_key(fault), []).append(fault)
    return found


def is_library_file(file: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return any(mark in file for mark in _PACKAGES)


def summary_of(fault: Fault, class_name: str, *, inside: str | None = None) -> str:
    """Say a fault in one line; `inside` is the path of the module whose results show it, where it is not its own."""
    first = next((line.strip() for line in fault.message.splitlines() if line.strip()), "")
    if fault.kind is Kind.GRAPH_BREAK:
        code = f" at `{fault.location.code}`" if fault.location else ""
        hidden = " (hidden by another one)" if fault.evidence.get("hidden_behind") else ""
        operator = f" ({fault.failed_operator})" if fault.failed_operator else ""
        return f"graph break{code}: {fault.type}{operator}{hidden}"
    if fault.kind is Kind.DIVERGENCE:
        if inside is not None:
            return f"compiled {class_name} makes {inside or 'the model'} differ from eager: {first}"
        where = ", only in place" if fault.evidence.get("only_in_place") else ""
        return f"compiled {class_name} differs from eager{where}: {first}"
    if fault.kind is Kind.RECOMPILE:
        return f"{class_name} is compiled again: {fault.type}" + _how_often(fault)
    if fault.kind is Kind.CRASH:
        return f"the process dies when {class_name} is compiled: {fault.type}"
    if fault.kind is Kind.SLOWDOWN:
        return f"{class_name} is slower when it is compiled: {first}"
    if fault.kind is Kind.TIMEOUT:
        return f"compiling {class_name} did not finish: {first}"
    reason = reason_of(fault.message) or first
    return f"{fault.type} when {class_name} is compiled: {_shortened(reason)}"


def _how_often(fault: Fault) -> str:
    text = f" changes{_from_to(fault)}" if "differs" not in fault.type else ""
    if fault.evidence.get("limit_hit"):
        text += f"; after {fault.evidence['limit']} compiled versions it runs in eager mode"
    return text


def _from_to(fault: Fault) -> str:
    """Say from what to what a value changes, where both are known as values."""
    events = fault.evidence.get("recompiles", ())
    before, after = (str(events[0].get(name, "")) for name in ("before", "after")) if events else ("", "")
    if not (_VALUE.fullmatch(before) and _VALUE.fullmatch(after)):
        return ""
    more = fault.evidence.get("count", len(events)) - 1
    return f" from {before} to {after}" + (f", and {plural(more, 'time')} more" if more else "")


def _shortened(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
