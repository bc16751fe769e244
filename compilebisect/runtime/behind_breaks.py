"""A probe that mends the graph breaks of a module: what lies behind them, what each costs, and whether a switch or a
decorator is cure enough. It tells of graph breaks alone: what a mended module computes does not count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from compilebisect.core.break_cures import Cure, CureCheck, Switch, checked_hint, cure_of, evidence_of
from compilebisect.core.fingerprint import FaultKey, fault_key
from compilebisect.core.messages import ProbeOrder
from compilebisect.core.module_tree import GoldenCall
from compilebisect.core.outcome import Fault, Observation
from compilebisect.core.quoting import source_lines
from compilebisect.error_text import error_text
from compilebisect.runtime import torch_internals
from compilebisect.runtime.break_rounds import BreakRounds, OutOfTime, RunFailed, Traced
from compilebisect.runtime.changed_code import file_text
from compilebisect.runtime.decorated import decorated, named
from compilebisect.runtime.mending import Mend
from compilebisect.runtime.probe import RootInputs, compiled_run, fences, oracle_for
from compilebisect.runtime.state import StateSnapshot

_TOO_LONG = "not all graph breaks could be looked behind: it takes too long"


def probe_behind_breaks(
    model: nn.Module, order: ProbeOrder, *, on_phase: Callable[[str], None], root_inputs: RootInputs
) -> tuple[Observation, bool]:
    """Carry out the probe and return what it saw, and whether the process can go on with others after it.

    The faults are the graph breaks of the module that `order.breaks_below` does not hold, with further evidence; those
    that only show once others are mended have `hidden_behind`, the key of one of these.
    """
    module = model.get_submodule(order.path)
    pristine = StateSnapshot(module)
    faults: dict[FaultKey, Fault] = {}
    notes: list[str] = []
    is_usable = True
    for call in order.calls:
        look = _Look(model, order, call, root_inputs, on_phase)
        for fault in look.faults():
            faults.setdefault(fault_key(fault), fault)
        notes += look.notes
        is_usable = look.is_usable
        if not is_usable:
            break
        pristine.restore()
    torch.compiler.reset()
    return Observation(faults=tuple(faults.values()), notes=tuple(dict.fromkeys(notes))), is_usable


class _Look:
    """One golden call of one module, its breaks mended."""

    def __init__(
        self,
        model: nn.Module,
        order: ProbeOrder,
        call: GoldenCall,
        root_inputs: RootInputs,
        on_phase: Callable[[str], None],
    ) -> None:
        module = model.get_submodule(order.path)
        oracle = oracle_for(module, order, order.path, call, root_inputs)
        self._known_below = frozenset(order.breaks_below)
        self._call = call
        self.notes: list[str] = []
        self.is_usable = True

        def compile_and_run(backend: str) -> Any:
            with fences(model, order.fenced):
                with_backend = msgspec.structs.replace(order, backend=backend)
                return compiled_run(module, with_backend, oracle, on_phase=on_phase)

        self._rounds = BreakRounds(compile_and_run, lambda: oracle.run(module), call)

    def faults(self) -> list[Fault]:
        """Return the breaks that are the module's own or were hidden, with what was seen of each."""
        rounds = self._rounds
        is_whole = self._guarded(rounds.run)
        found = []
        for key, (fault, hider) in rounds.met.items():
            if key in self._known_below:
                continue
            if key in rounds.unmended:
                self.notes.append(f"what lies behind `{_code(fault)}` was not looked at: {rounds.unmended[key]}")
            alone = None
            if is_whole and rounds.is_mended(key):
                alone = self._alone(key)
                if alone is not None and key not in alone.faults:
                    if hider is not None:
                        continue  # it only follows from another one that was hidden with it
                    alone = None
                    if (cause := self._cause(key)) is not None:
                        evidence = {**fault.evidence, "follows_from": list(cause)}
                        fault = msgspec.structs.replace(fault, evidence=evidence)
            if alone is not None:
                fault = self._with_costs(alone.faults[key], alone)
            if hider is not None:
                hidden = {"hidden_behind": list(fault_key(hider)), "mended": self._mended_texts(key)}
                fault = msgspec.structs.replace(fault, evidence={**fault.evidence, **hidden})
            found.append(self._with_cure(fault, key, can_try=alone is not None))
        return found

    def _guarded(self, run: Callable[[], Any]) -> bool:
        """Run something, and return whether it came to its end."""
        try:
            run()
        except OutOfTime:
            self.notes.append(_TOO_LONG)
        except RunFailed as failed:
            self.notes.append(f"a look behind its graph breaks failed: {error_text(failed)}")
            self.is_usable = not torch_internals.is_device_failure(failed.error)
        else:
            return True
        return False

    def _alone(self, key: FaultKey, config: Mapping[str, Any] | None = None) -> Traced | None:
        """Trace the module with this break alone, None where that fails."""
        if config is None and not self._rounds.mends(without=[key]):
            return self._rounds.first
        return self._traced(lambda: self._rounds.traced_with(key, config)) if self.is_usable else None

    def _traced(self, trace: Callable[[], Traced]) -> Traced | None:
        traced: list[Traced] = []
        return traced[0] if self._guarded(lambda: traced.append(trace())) else None

    def _cause(self, key: FaultKey) -> FaultKey | None:
        """Return the break without which this one does not show either, though the model still gets to its line."""
        for other in self._rounds.first.faults:
            if other == key or not self.is_usable or not self._rounds.is_gone_without_trace(other):
                continue
            seen = self._traced(functools.partial(self._rounds.traced_without, other))
            if seen is None:
                return None
            # a break that is met only now may hide this one
            if seen.faults.keys() <= self._rounds.first.faults.keys() - {key} and self._rounds.runs(key, other):
                return other
        return None

    def _with_costs(self, fault: Fault, alone: Traced) -> Fault:
        """Add what the break costs: graphs and operators in graphs, with it alone and without any."""
        last = self._rounds.last
        costs = {
            "graphs": {"with": alone.graphs, "without": last.graphs},
            "operators_in_graphs": {"with": alone.operators, "without": last.operators},
        }
        return msgspec.structs.replace(fault, evidence={**fault.evidence, "call": self._call.index, **costs})

    def _with_cure(self, fault: Fault, key: FaultKey, *, can_try: bool) -> Fault:
        cure = cure_of(fault)
        checks: list[CureCheck] = []
        for check in self._tried(cure, key) if can_try else ():
            checks.append(check)
            if check.helps:
                break
        has_others = bool(self._rounds.mends(without=[key]))
        return msgspec.structs.replace(
            fault,
            hint=checked_hint(cure.hint, checks, has_others=has_others),
            evidence={**fault.evidence, **evidence_of(checks)},
        )

    def _tried(self, cure: Cure, key: FaultKey) -> Iterator[CureCheck]:
        for switches in cure.switches:
            config = _config(switches)
            seen = self._alone(key, config) if config is not None else None
            if seen is not None:
                yield CureCheck("; ".join(switch.text for switch in switches), self._is_gone(seen), seen.graphs)
        callee = self._rounds.call_at(key) if cure.decorators and self.is_usable else None
        if callee is None:
            return
        function = callee.values[0]
        for decorator in cure.decorators:
            other = decorated(function, decorator)
            if other is None:
                continue
            callee.values = [other] * len(callee.values)
            text = decorator.text(getattr(function, "__name__", "it"))
            try:
                seen = self._rounds.traced_with(key, callee=callee)
            except RunFailed as failed:
                yield CureCheck(text, False, 0)
                if torch_internals.is_device_failure(failed.error):
                    self.is_usable = False
                    return
            except OutOfTime:
                self.notes.append(_TOO_LONG)
                return
            else:
                yield CureCheck(text, self._is_gone(seen), seen.graphs)

    def _is_gone(self, seen: Traced) -> bool:
        """Say whether a cure helps: another break in its place, or one that the cure brings, is none."""
        return set(seen.faults) <= set(self._rounds.last.faults)

    def _mended_texts(self, key: FaultKey) -> list[dict[str, Any]]:
        """Describe what stands in for the other breaks, as text that a script can hold."""
        texts = [_mended_text(mend) for mend in self._rounds.mends(without=[key])]
        return [text for text in texts if text is not None]


def _config(switches: Sequence[Switch]) -> dict[str, Any] | None:
    """Return the settings as Python objects, None where this torch has no such config."""
    settings: dict[str, Any] = {}
    for switch in switches:
        value = torch_internals.dynamo_config_value(switch.name)
        if value is None:
            return None
        settings[switch.name] = {*value, *map(named, switch.functions)} if switch.functions else True
    return settings


def _mended_text(mend: Mend) -> dict[str, Any] | None:
    text = mend.text()
    if text is None:
        return None
    site = msgspec.to_builtins(mend.site)
    return {
        "file": mend.file,
        "code": source_lines(file_text(mend.file))[mend.site.line - 1],
        "site": site,
        "text": text,
    }


def _code(fault: Fault) -> str:
    return fault.location.code if fault.location else fault.type
