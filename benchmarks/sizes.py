"""Run compilebisect on models with known faults and print how small its scripts come out.

    python benchmarks/sizes.py                      # all sample models with findings
    python benchmarks/sizes.py MY/CASES MY/MODEL    # these folders too: of models, or of folders of models
    python benchmarks/sizes.py --only MY/MODEL      # these folders alone

A model's folder holds `model.py`, `shapes.json` and what is expected of it, `expected.json` or `case.json`, of which
`target`, `input_spec`, `args`, `gpu` and `expect` are read: see sample_models/README.md. Exits 1 where a script did not
verify or a median is out of reach.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_models"
# Medians: operators of a script that holds a graph, lines of the model in one that holds source.
MOST_OPERATORS, MOST_MODEL_LINES = 3, 15


class Model(NamedTuple):
    """A model's folder, and what its JSON file says of it."""

    folder: Path
    says: dict[str, Any]


class Size(NamedTuple):
    """How large the script of one finding is."""

    operators: int
    model_lines: int
    lines: int
    is_verified: bool


def models_in(folders: Sequence[Path], device: str) -> list[Model]:
    """Return the models of some folders and of the folders right below them that are expected to have findings."""
    found = []
    for folder in folders:
        for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
            file = next((file for file in (place / "expected.json", place / "case.json") if file.exists()), None)
            if file is not None:
                says = json.loads(file.read_text(encoding="utf-8"))
                if says.get("expect") and (device.startswith("cuda") or not says.get("gpu")):
                    found.append(Model(place.resolve(), says))
    return found


def report_of(model: Model, out: Path, options: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Run the command on a model; returns its report and the seconds it took.

    Raises:
        RuntimeError: it wrote no report.
    """
    file, _, name = model.says["target"].rpartition(":")
    command = [sys.executable, "-m", "compilebisect", f"{model.folder / file}:{name}"]
    command += ["--input-spec", str(model.folder / model.says["input_spec"])]
    command += [*model.says.get("args", ()), "--out", str(out), "-q", *options]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    started = time.perf_counter()
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    report = out / "report.json"
    if not report.exists():
        raise RuntimeError(f"{' '.join(command)} wrote no report:\n{ended.stderr}")
    return json.loads(report.read_text(encoding="utf-8")), time.perf_counter() - started


def size_of(repro: dict[str, Any] | None) -> Size | None:
    """Return how large a finding's script is; None where none was written."""
    if not repro or not repro["path"]:
        return None
    return Size(repro["ops"], repro["model_lines"], repro["lines"], repro["verified"])


class Median(NamedTuple):
    """The middle of all scripts of one sort."""

    what: str
    value: float
    reach: int
    values: list[int]


def medians(sizes: Sequence[Size | None]) -> Iterator[Median]:
    """Yield the medians of scripts that hold a graph, and of those that hold source."""
    written = [size for size in sizes if size is not None]
    for what, values, reach in (
        ("operators of graph cases", [size.operators for size in written if size.operators], MOST_OPERATORS),
        ("model lines of source cases", [size.model_lines for size in written if not size.operators], MOST_MODEL_LINES),
    ):
        if values:
            yield Median(what, statistics.median(values), reach, sorted(values))


def unverified(sizes: Sequence[Size | None]) -> int:
    """Return how many findings have no script, or none that verified."""
    return sum(size is None or not size.is_verified for size in sizes)


def reports_of(
    models: Sequence[Model], keep: Path | None, options: Sequence[str], jobs: int
) -> Iterator[tuple[Model, dict[str, Any], float]]:
    """Yield each model with its report and the seconds that it took; reports and scripts stay in `keep`, if given."""
    with tempfile.TemporaryDirectory(prefix="sizes-") as scratch, ThreadPoolExecutor(jobs) as pool:
        outs = [(keep or Path(scratch)) / model.folder.name for model in models]
        for model, (report, seconds) in zip(models, pool.map(report_of, models, outs, repeat(options)), strict=True):
            yield model, report, seconds


def main() -> int:
    """Print the table and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--only", action="store_true", help="leave the sample models out")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep reports and scripts there")
    parser.add_argument("--seconds", type=float, help="what one script's reduction may take; the command's by default")
    parser.add_argument("--jobs", type=int, default=1, help="models side by side, on a machine with many cores")
    options = parser.parse_args()
    more = ["--device", options.device]
    more += ["--reduce-seconds", str(options.seconds)] if options.seconds is not None else []
    sizes: list[Size | None] = []
    print("| model | finding | operators | model lines | lines | verified | seconds of the run |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    models = models_in([*([] if options.only else [SAMPLES]), *options.folders], options.device)
    for model, report, seconds in reports_of(models, options.keep, more, options.jobs):
        for finding in report["findings"]:
            size = size_of(finding["repro"])
            sizes.append(size)
            shown = (
                "no script | | |" if size is None else f"{size.operators or ''} | {size.model_lines} | {size.lines} |"
            )
            proof = "yes" if size and size.is_verified else "NO"
            what = f"{finding['kind']} in {finding['module'] or 'the root'}"
            print(f"| {model.folder.name} | {what} | {shown} {proof} | {seconds:.0f} |", flush=True)
    print(f"\nverified: {len(sizes) - unverified(sizes)} of {len(sizes)}")
    is_within = not unverified(sizes)
    for median in medians(sizes):
        print(f"median of {median.what}: {median.value:g} of {median.values}, reach {median.reach}")
        is_within &= median.value <= median.reach
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
