"""Measure what compilebisect costs, as ratios within one run, and print a table.

    python benchmarks/run.py                      # everything, on the CPU
    python benchmarks/run.py --device cuda        # on the GPU
    python benchmarks/run.py start-up whole       # some of the measures

Every measure runs in processes of its own with cache folders of its own, so nothing that happened before helps.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.sizes import SAMPLES, medians, models_in, reports_of, size_of, unverified  # noqa: E402
from compilebisect.core.reduce.search import smallest_subset  # noqa: E402

MODEL = HERE / "transformer.py"
SPEC = {"ids": {"shape": [2, 64], "dtype": "int64", "high": 1000}}
# A model whose weights (about 0.6 GB) outweigh torch itself, so that copies of it show.
WIDE = {"blocks": 12, "dim": 1024, "heads": 16, "vocabulary": 8000}
START_UP_REPEATS = 5
MINIFIER_S = 300


class Row(NamedTuple):
    """One line of the table; `value` has to be at most `reach` where there is one."""

    measure: str
    value: float
    reach: float | None
    unit: str
    detail: str


class Planted(NamedTuple):
    """A run on a planted fault: seconds until its script was proved and until the end, the module named, the repro."""

    script_s: float
    seconds: float
    module: str
    repro: dict[str, Any]


class Bench:
    """Runs commands in a folder of its own, on one device."""

    def __init__(self, folder: Path, device: str, jobs: int = 1) -> None:
        self.folder = folder
        self.device = device
        self.jobs = jobs
        backend = "triton" if device.startswith("cuda") else "cpp"
        # torch's own knob for planting a fault: its ReLU then adds 1, or does not compile
        self.planted = f"torch._inductor.config.{backend}.inject_relu_bug_TESTING_ONLY"
        self.spec = folder / "shapes.json"
        self.spec.write_text(json.dumps(SPEC), encoding="utf-8")

    def environment(self, cache: str) -> dict[str, str]:
        """Return an environment whose caches lie in the subfolder `cache`."""
        place = self.folder / cache
        return {
            **os.environ,
            "PYTHONPATH": str(HERE.parent),
            "COMPILEBISECT_CACHE_DIR": str(place / "tool"),
            "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
            "TRITON_CACHE_DIR": str(place / "triton"),
        }

    def python(self, *words: str, cache: str, status: int = 0) -> tuple[float, str]:
        """Run Python with some arguments; returns the seconds and what it printed.

        Raises:
            RuntimeError: it ended with another status.
        """
        started = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, *words], env=self.environment(cache), cwd=HERE, capture_output=True, text=True
        )
        seconds = time.perf_counter() - started
        if ended.returncode != status:
            raise RuntimeError(f"{' '.join(words)} exited with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")
        return seconds, ended.stdout

    def bisect(self, init: dict[str, Any], *more: str, cache: str, status: int = 0) -> tuple[float, dict[str, Any]]:
        """Run compilebisect on the transformer; returns the seconds and the report."""
        out = self.folder / "out"
        words = ["-m", "compilebisect", f"{MODEL}:Transformer", "--input-spec", str(self.spec)]
        options = ["--init", json.dumps(init), "--device", self.device, "--out", str(out), "-q", *more]
        seconds, _ = self.python(*words, *options, cache=cache, status=status)
        return seconds, json.loads((out / "report.json").read_text(encoding="utf-8"))

    @functools.cache  # noqa: B019 - one bench lives as long as the program
    def planted_repro(self, fault: str) -> Planted:
        """Bisect the transformer with a planted ReLU fault."""
        planted = ("--config", f"{self.planted}={fault}")
        verified = threading.Event()
        with ThreadPoolExecutor(max_workers=1) as watch:
            times = watch.submit(_when_there, self.folder / "out" / "early_1.py", verified)
            seconds, report = self.bisect({"blocks": 12, "act": "relu"}, *planted, cache=f"repro-{fault}", status=1)
            verified.set()
            script_s = times.result()
        (finding,) = report["findings"]
        return Planted(seconds if script_s is None else script_s, seconds, finding["module"], finding["repro"])


def _when_there(script: Path, is_over: threading.Event) -> float | None:
    """Return after how many seconds a file was there; None if it never was before the end."""
    started = time.perf_counter()
    while not is_over.wait(0.05):
        if script.exists():
            return time.perf_counter() - started
    return None


def start_up(bench: Bench) -> Iterator[Row]:
    """`--help` and `show`, and that neither imports torch."""
    report = HERE.parent / "tests" / "render" / "golden" / "large.json.json"
    for name, words in (("--help", ["--help"]), ("show", ["show", str(report)])):
        best = min(bench.python("-m", "compilebisect", *words, cache="start")[0] for _ in range(START_UP_REPEATS))
        program = (
            "import sys; from compilebisect.cli.main import run_command_line; "
            f"run_command_line({words!r}); print(); print('torch' in sys.modules)"
        )
        _, said = bench.python("-c", program, cache="start")
        has_torch = said.splitlines()[-1] == "True"
        detail = f"best of {START_UP_REPEATS}; torch is {'' if has_torch else 'not '}imported"
        yield Row(f"{name}", best, 0.4, "s", detail)


def whole(bench: Bench) -> Iterator[Row]:
    """A whole run on 12 equal blocks against one cold compile of the whole model."""
    program = f"from transformer import whole_compile; print(whole_compile(12, {bench.device!r}))"
    plain, said = bench.python("-c", program, cache="plain")
    cold, report = bench.bisect({"blocks": 12}, cache="whole")
    warm, _ = bench.bisect({"blocks": 12}, cache="whole")
    base = (
        f"torch.compile of the whole model: {plain:.1f} s as a process, {float(said.split()[-1]):.1f} s of them compile"
    )
    compiles = report["timing"]["compiles"]
    yield Row("whole run, fresh cache", cold / plain, 2.5, "x", f"{cold:.1f} s, {compiles} compiles; {base}")
    yield Row("whole run, warm cache", warm / plain, None, "x", f"{warm:.1f} s")


def depth(bench: Bench) -> Iterator[Row]:
    """What a run on 24 blocks costs beside the compile of the root, against 6 blocks."""
    rest = {}
    for blocks in (6, 24):
        seconds, report = bench.bisect({"blocks": blocks}, cache=f"depth{blocks}")
        root = next(module for module in report["modules"] if module["path"] == "")
        rest[blocks] = seconds - root["compile_s"]
    detail = f"{rest[6]:.1f} s and {rest[24]:.1f} s"
    yield Row("24 blocks against 6, without the root's compile", rest[24] / rest[6], 1.3, "x", detail)


def memory(bench: Bench) -> Iterator[Row]:
    """The highest peak of a worker against the peak of the process that ran the model in eager mode."""
    _, report = bench.bisect(WIDE, cache="memory")
    timing = report["timing"]
    eager, worker = timing["eager_peak_bytes"], timing["worker_peak_bytes"]
    detail = f"resident memory: {worker / 2**20:.0f} MiB and {eager / 2**20:.0f} MiB"
    yield Row("peak memory of a worker against an eager run", worker / eager, 2.0, "x", detail)


def repro(bench: Bench) -> Iterator[Row]:
    """From the start of the command to the verified repro of a planted fault, against one cold whole-model compile."""
    program = f"from transformer import whole_compile; print(whole_compile(12, {bench.device!r}, 'relu'))"
    plain, _ = bench.python("-c", program, cache="repro-plain")
    reach = 1.5 if bench.device.startswith("cuda") else 2.0
    for fault in ("accuracy", "compile_error"):
        seconds, whole_s, module, script = bench.planted_repro(fault)
        proof = f"verified in {script['shown']} of {script['runs']} runs" if script["verified"] else "NOT verified"
        size = f"{script['ops']} op, {script['model_lines']} model lines of {script['lines']}"
        detail = f"{seconds:.1f} s (the run's end: {whole_s:.1f} s) and {plain:.1f} s; {module}, {size}, {proof}"
        yield Row(f"verified repro of a planted {fault}", seconds / plain, reach, "x", detail)


def values(bench: Bench) -> Iterator[Row]:
    """A probe that compares values against one that does not, for an input of 1 GiB."""
    gib = 1.0 if bench.device.startswith("cuda") else 0.125
    _, said = bench.python(str(HERE / "values.py"), bench.device, str(gib), cache="values")
    checked, plain, peak = map(float, said.split()[-3:])
    detail = f"{checked:.2f} s and {plain:.2f} s for {gib:g} GiB"
    detail += "" if math.isnan(peak) else f"; at most {peak:.1f} times that in the device's memory"
    yield Row("a probe with a check of values", checked / plain, 1.5 if gib == 1 else None, "x", detail)


def minifier(bench: Bench) -> Iterator[Row]:
    """The same for the planted divergence, against PyTorch's own minifier, which is ended after 300 s."""
    ours, _, _, script = bench.planted_repro("accuracy")
    for level in (4, 2):
        seconds, how = _minify(bench, level)
        detail = f"{ours:.1f} s, {script['lines']} lines; PyTorch's {how} ({seconds:.1f} s)"
        yield Row(f"verified repro against PyTorch's minifier, level {level}", ours / seconds, 0.05, "x", detail)


def _minify(bench: Bench, level: int) -> tuple[float, str]:
    """Run PyTorch's minifier; returns its seconds and what came of it."""
    folder = bench.folder / f"minifier{level}"
    folder.mkdir()
    program = (
        f"import torch._inductor.config; {bench.planted} = 'accuracy'; "
        f"from transformer import whole_compile; whole_compile(12, {bench.device!r}, 'relu')"
    )
    environment = {
        **bench.environment(f"minifier-cache{level}"),
        "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}",
        "TORCHDYNAMO_REPRO_AFTER": "aot",
        "TORCHDYNAMO_REPRO_LEVEL": str(level),
    }
    started = time.perf_counter()
    how = "ended"
    try:
        subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=folder, capture_output=True, timeout=MINIFIER_S
        )
        launchers = sorted(folder.rglob("minifier_launcher.py"))
        left = MINIFIER_S - (time.perf_counter() - started)
        if launchers:
            command = [sys.executable, str(launchers[0])]
            subprocess.run(command, env=environment, cwd=folder, capture_output=True, timeout=left)
        else:
            how = "wrote no launcher"
    except subprocess.TimeoutExpired:
        how = f"was stopped after {MINIFIER_S} s"
    found = [path for path in sorted(folder.rglob("repro.py")) if "def forward" in path.read_text(encoding="utf-8")]
    lines = f"{len(found[0].read_text(encoding='utf-8').splitlines())} lines" if found else "no script"
    return time.perf_counter() - started, f"{how} with {lines}"


def questions(bench: Bench) -> Iterator[Row]:
    """How often the search for culprits asks, in the worst of 200 random choices among 1024 members."""
    for culprits, reach in ((1, 25), (4, 80), (8, 130)):
        worst = 0
        for seed in range(200):
            needed = set(random.Random(seed).sample(range(1024), culprits))
            search, asked = smallest_subset(range(1024)), 0
            try:
                candidate = next(search)
                while True:
                    asked += 1
                    candidate = search.send(needed <= set(candidate))
            except StopIteration as stop:
                if set(stop.value) != needed:
                    raise RuntimeError(f"the search found {stop.value} in place of {needed}") from None
            worst = max(worst, asked)
        yield Row(f"tests needed for {culprits} of 1024", worst, reach, "", "the most of 200 random choices")


def sizes(bench: Bench) -> Iterator[Row]:
    """How small the scripts of the sample models come out."""
    options = ["--device", bench.device]
    reports = [report for _, report, _ in reports_of(models_in([SAMPLES], bench.device), None, options, bench.jobs)]
    found = [size_of(finding["repro"]) for report in reports for finding in report["findings"]]
    yield Row("scripts of sample models that did not verify", unverified(found), 0, "", f"of {len(found)}")
    for median in medians(found):
        yield Row(f"median of {median.what}", median.value, median.reach, "", ", ".join(map(str, median.values)))


MEASURES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "start-up": start_up,
    "whole": whole,
    "depth": depth,
    "memory": memory,
    "repro": repro,
    "values": values,
    "minifier": minifier,
    "questions": questions,
    "sizes": sizes,
}


def main() -> int:
    """Run the chosen measures; exits 1 where one is out of reach."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"of {', '.join(MEASURES)}; all by default")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--jobs", type=int, default=1, help="sample models side by side, on a machine with many cores")
    options = parser.parse_args()
    if unknown := set(options.measures) - MEASURES.keys():
        parser.error(f"unknown measure {', '.join(sorted(unknown))} (choose from {', '.join(MEASURES)})")
    is_within_reach = True
    print("| measure | value | reach | detail |\n| --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(prefix="compilebisect-bench-") as folder:
        bench = Bench(Path(folder), options.device, options.jobs)
        for name in options.measures or MEASURES:
            for row in MEASURES[name](bench):
                reach = "" if row.reach is None else f"at most {row.reach:g} {row.unit}"
                print(f"| {row.measure} | {row.value:.2f} {row.unit} | {reach} | {row.detail} |", flush=True)
                is_within_reach &= row.reach is None or row.value <= row.reach
    return 0 if is_within_reach else 1


if __name__ == "__main__":
    sys.exit(main())
