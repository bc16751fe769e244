"""How reliable the verdict on numbers is: plants hundreds of faults one by one and counts how many are found.

    python -m tests.quality.mutations [--only TEXT] [--device cuda] [--jobs 8] [--list]

A fault counts as found if the module whose operator is wrong, and no other one, introduces a divergence. The first
fault of each operator is sought by a walk over the whole model, further ones in their module alone, since to tell a
module's fault from its parents' does not depend on its size. Each model is also walked over as it is: whatever that
finds is a false alarm. The table goes to standard output, what went wrong to
standard error.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import torch

from compilebisect.core.outcome import Kind, Observation
from compilebisect.core.tolerance import FLOORS
from compilebisect.core.unit_result import Probe
from tests.quality.in_process import Bench, introduced
from tests.quality.planted import BACKEND, PLANTED, Fault

#: Inputs of each model.
SPECS: dict[str, Any] = {
    "MlpNet": {"x": [4, 5, 16]},
    "AttentionNet": {"x": [3, 8, 16]},
    "ConvNet": {"x": [4, 3, 8, 8]},
    "EmbeddingNet": {"tokens": {"shape": [4, 6], "dtype": "int64", "high": 32}},
    "RecurrentNet": {"x": [5, 3, 8]},
    "StatefulNet": {"x": [3, 6, 16]},
}


class Case(NamedTuple):
    """A model in one dtype and mode, and how many faults are planted at each of its operators."""

    model: str
    dtype: str
    train: bool
    faults_per_place: int

    @property
    def name(self) -> str:
        return f"{self.model} {self.dtype} {'train' if self.train else 'eval'}"


CASES = [
    *(Case(model, "float32", train, 2) for model in SPECS for train in (False, True)),
    *(Case(model, "bfloat16", False, 1) for model in SPECS),
    *(Case(model, "bfloat16", True, 1) for model in ("MlpNet", "AttentionNet", "RecurrentNet")),
    *(Case(model, "float16", False, 1) for model in SPECS),
]


class Result(NamedTuple):
    """What one planted fault led to: `found` at the right module alone, or what was said instead.

    `effect` of one that was not found is how much it changes of what leaves the module, in multiples of the floor.
    """

    case: Case
    fault: Fault
    found: bool
    said: str
    is_whole_walk: bool
    effect: float = 0.0

    @property
    def is_hidden(self) -> bool:
        """Whether no more of it leaves the module than rounding may bring, as behind a softmax that it shifts."""
        return not self.found and self.effect <= 1.0


def sizes_of(dtype: str) -> list[float]:
    """Relative sizes from 0.1 down to four times the dtype's floor."""
    floor = 4 * FLOORS[dtype].largest * FLOORS[dtype].eps
    return [size for size in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5) if size > floor] + [floor]


def variants_of(dtype: str, graph: str) -> list[tuple[str, float]]:
    """All faults of one operator, small and large ones by turns."""
    sized = [(how, size) for size in sizes_of(dtype) for how in ("scaled", "one element", "shifted")]
    whole = [
        (how, 0.0) for how in ("truncated", "transposed", "stale value", "last row zeroed", "moved by one", "zeroed")
    ]
    smallest_first = sized[::-1]
    mixed = itertools.zip_longest(smallest_first, whole * (1 + len(sized) // len(whole)))
    found = [variant for pair in mixed for variant in pair if variant is not None]
    return list(dict.fromkeys(found))


def faults_of(case: Case, places: list[tuple[str, str, str]]) -> Iterator[Fault]:
    """Spread the kinds and sizes of fault over the operators of a model."""
    number = 0
    for graph, cls, target in places:
        if graph == "dynamo":
            yield Fault(graph, cls, target, "dropped write")
            if target not in ("setitem", "copy_"):
                yield Fault(graph, cls, target, "stale buffer")
            continue
        variants = variants_of(case.dtype, graph)
        for _ in range(case.faults_per_place):
            how, size = variants[number % len(variants)]
            yield Fault(graph, cls, target, how, size)
            number += 1
        if graph == "forward" and case.dtype == "float32" and cls in ("Gelu", "Silu", "Pool", "GroupNorm"):
            yield Fault(graph, cls, target, "other strides")


class Lab:
    """One model, its healthy walk, and the walks with faults."""

    def __init__(self, case: Case, device: str = "cpu") -> None:
        self.case = case
        PLANTED.fault = None
        PLANTED.met.clear()
        self._bench = Bench(
            f"tests.quality.models:{case.model}",
            SPECS[case.model],
            backend=BACKEND,
            device=device,
            dtype=case.dtype,
            train=case.train,
        )
        self._healthy: dict[Probe, Observation] = {}
        self.false_alarms = introduced(self._bench.walk(self._observe_healthy))
        self.places = sorted(PLANTED.met)
        self._walked: set[tuple[str, ...]] = set()

    def _observe_healthy(self, wanted: Probe) -> Observation:
        self._healthy[wanted] = self._observe(wanted)
        assert self._healthy[wanted].graphs, f"{wanted.path} was not compiled: {self._healthy[wanted]}"
        return self._healthy[wanted]

    def _observe(self, wanted: Probe) -> Observation:
        PLANTED.root = self._bench.tree[wanted.compiles_only or wanted.path].class_name
        return self._bench.observe(wanted)

    def plant(self, fault: Fault) -> Result | None:
        """Look for one fault; None if no graph has the operator in a form to be wronged."""
        expected = self._bench.path_of[fault.cls]
        place = fault[:3]

        def observe(wanted: Probe) -> Observation:
            """Modules that do not hold the faulty one have the graphs of the healthy walk."""
            holds = wanted.path == "" or f"{expected}.".startswith(f"{wanted.path}.")
            seen = None if holds else self._healthy.get(wanted)
            return seen or self._observe(wanted)

        PLANTED.fault, PLANTED.planted = fault, 0
        try:
            if place in self._walked:
                alone = next(probe for probe in self._healthy if probe.path == expected and not probe.fenced)
                kinds = [seen.kind for seen in self._observe(alone).faults]
                found = {expected: kinds} if kinds else {}
            else:
                found = introduced(self._bench.walk(observe))
            is_right = found == {expected: [Kind.DIVERGENCE]}
            effect = 0.0 if is_right else self._effect(expected)
        finally:
            PLANTED.fault = None
        if not PLANTED.planted:
            return None
        is_whole_walk = place not in self._walked
        self._walked.add(place)
        said = "" if is_right else (str({path: [k.value for k in kinds] for path, kinds in found.items()}) or "nothing")
        return Result(self.case, fault, is_right, said, is_whole_walk, effect)

    def _effect(self, path: str) -> float:
        """Measure by how much compiled code differs from eager, be it rounding or not, in multiples of the floor."""
        floor = FLOORS[self.case.dtype]
        alone = next(probe for probe in self._healthy if probe.path == path and not probe.fenced)
        PLANTED.root = self._bench.tree[path].class_name
        seen = self._bench.observe(alone, tolerance=(0.0, 0.0))
        differences = [item for fault in seen.faults for item in fault.evidence.get("differences", ())]
        figures = [item["figures"]["difference"] for item in differences if "figures" in item]
        if len(figures) < len(differences):
            return math.inf
        return max(
            (max(one["largest"] / floor.largest, one["rms"] / floor.rms) / floor.eps for one in figures), default=0.0
        )


def plant_all(case: Case, device: str, lists_found: bool) -> tuple[list[Result], list[str]]:
    """Plant all faults of one case; returns what each led to, and the false alarms in the model as it is."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    lab = Lab(case, device)
    results: list[Result] = []
    for fault in faults_of(case, lab.places):
        result = lab.plant(fault)
        if result is None:
            continue
        results.append(result)
        if lists_found or not result.found:
            text = "found" if result.found else f"NOT FOUND, said {result.said}, effect {result.effect:.3g}"
            print(f"{case.name}: {tuple(fault)}: {text}", file=sys.stderr, flush=True)
    print(f"{case.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return results, [f"{case.name}: {path} {kinds}" for path, kinds in lab.false_alarms.items()]


def main() -> None:
    """Plant all faults and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="Cases whose name holds this text.")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--jobs", type=int, default=1, help="Cases side by side, each in a process of its own.")
    parser.add_argument("--list", action="store_true", help="Print each fault and what it led to.")
    chosen = parser.parse_args()
    cases = [case for case in CASES if chosen.only in case.name]
    # a process per case, as torch keeps what it has compiled, and a forked one could not use a GPU
    with ProcessPoolExecutor(
        chosen.jobs, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        done = list(pool.map(plant_all, cases, itertools.repeat(chosen.device), itertools.repeat(chosen.list)))
    results = [result for of_case, _ in done for result in of_case]
    print(table(results, [alarm for _, alarms in done for alarm in alarms], chosen.device))


def table(results: list[Result], alarms: list[str], device: str = "cpu") -> str:
    """Write the result as Markdown."""
    lines: list[str] = []
    hidden = [result for result in results if result.is_hidden]
    planted, results = len(results), [result for result in results if not result.is_hidden]
    total, found = len(results), sum(result.found for result in results)
    lines.append(f"{planted} faults planted; {len(hidden)} change what leaves the module by no more than rounding may.")
    lines.append(f"{found} of the other {total} found at their module ({100 * found / max(1, total):.1f} %).")
    lines.append(f"{sum(result.is_whole_walk for result in results)} of them were sought in the whole model.")
    lines.append(f"{len(alarms)} false alarms in the models as they are. torch {torch.__version__}, {device}.")
    for alarm in alarms:
        lines.append(f"false alarm: {alarm}")
    columns = {
        "by what is wrong": lambda result: f"{result.fault.how}, {result.fault.graph} graph",
        "by size": lambda result: (
            f"{result.fault.size:.2g} in {result.case.dtype}" if result.fault.size else "whole values"
        ),
        "by model": lambda result: result.case.name,
    }
    for title, key in columns.items():
        all_of, found_of = Counter(map(key, results)), Counter(key(result) for result in results if result.found)
        lines += ["", f"| {title} | planted | found |", "| --- | --- | --- |"]
        lines += [f"| {name} | {all_of[name]} | {found_of[name]} |" for name in all_of]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
