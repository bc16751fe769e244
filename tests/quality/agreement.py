"""Compare the graph breaks of a report with those that torch's own log shows for the whole model.

    python -m tests.quality.agreement                       # the sample models
    python -m tests.quality.agreement --library opt bart    # models of tests/quality/real_models.py
    python -m tests.quality.agreement --device cuda --jobs 8
    python -m tests.quality.agreement MY/MODELS             # folders of models: model.py, shapes.json, a JSON file

The whole model is compiled cold in a process of its own, as a user would, with the log of graph breaks on; a second one
runs the command. Every line that the log names has to be in the report (where it names one of torch's own, the line
that leads there), and no cause may be there twice. The report may name more: what the whole model hides, modules show
that are compiled alone. Exits 1 where the two do not agree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1500
_PLACE = re.compile(r"Graph break(?: \(.*?\))? in user code at (.+):(\d+)$", re.MULTILINE)
_FRAME = re.compile(r'File "(.+?)", line (\d+)')
# Where a function is given up, its comprehensions are compiled as frames of their own, which fail on the iterator
# that they are handed: that follows from the break in the function, and is gone with it.
_HANDED_ITERATOR = re.compile(r"name=__next__.*in <(listcomp|setcomp|dictcomp|genexpr)>\n[^\n]*\n[ ^]*\s*\Z", re.DOTALL)
_TORCH = "/site-packages/torch/"
# Loads the model and its inputs as a worker does, which takes no part in what is compared.
_WHOLE_MODEL = """
import json, logging, sys
import torch
from compilebisect.runtime.session import Session
from compilebisect.settings import Settings
target, spec, init, train, spec_dir, device = json.loads(sys.argv[1])
session = Session(Settings(target=target, spec=spec, spec_dir=spec_dir, init=init, train=train, device=device))
args, kwargs = session.inputs()
texts, log = [], logging.Handler()
log.emit = lambda record: texts.append(record.getMessage())
torch._logging.set_logs(graph_breaks=True)
for name in ("torch", "torch._dynamo"):
    logging.getLogger(name).handlers = [log]
torch.compiler.reset()
try:
    with torch.set_grad_enabled(train):
        torch.compile(session.model, backend="eager")(*args, **kwargs)
except Exception as error:
    print(f"ends with {type(error).__name__}", file=sys.stderr)
print("@" + json.dumps(texts))
"""


class Model(NamedTuple):
    """How the command is told of a model."""

    name: str
    target: str
    spec: Path
    init: dict[str, Any]
    train: bool
    args: tuple[str, ...]


def models_in(folder: Path) -> Iterator[Model]:
    """Yield the models of a folder and of those right below it."""
    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        file = next((file for file in (place / "expected.json", place / "case.json") if file.exists()), None)
        if file is None:
            continue
        says = json.loads(file.read_text(encoding="utf-8"))
        kinds = {expected["kind"] for expected in says.get("expect", ())}
        if says.get("gpu") or says.get("exit", 0) not in (0, 1) or kinds & {"crash", "timeout", "error"}:
            continue  # where compiling ends otherwise, the log ends too
        target, args = says.get("target", "model.py:build"), tuple(says.get("args", ()))
        path, _, name = target.rpartition(":")
        spec = place / says.get("input_spec", "shapes.json")
        yield Model(place.name, f"{(place / path).resolve()}:{name}", spec.resolve(), {}, "--train" in args, args)


def library_model(name: str, folder: Path) -> Model:
    """Return one of the library models, in training mode, in which they have more breaks."""
    from tests.quality import real_models

    spec = folder / f"{name}.json"
    spec.write_text(json.dumps(real_models.MODELS[name].spec), encoding="utf-8")
    return Model(name, f"{Path(real_models.__file__).resolve()}:build", spec, {"name": name}, True, ("--train",))


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def lines_in_log(model: Model, device: str) -> set[tuple[str, int]]:
    """Return the lines at which torch's log shows a break of the whole model, by the file's name."""
    spec = json.loads(model.spec.read_text(encoding="utf-8"))
    told = json.dumps([model.target, spec, model.init, model.train, str(model.spec.parent), device])
    ended = _run(["-c", _WHOLE_MODEL, told])
    said = [line for line in ended.stdout.splitlines() if line.startswith("@")]
    if not said:
        raise RuntimeError(f"{model.name} could not be compiled:\n{ended.stderr[-2000:]}")
    texts = [text for text in json.loads(said[-1][1:]) if not _HANDED_ITERATOR.search(text)]
    found = [_outside_torch(match, text) for text in texts for match in _PLACE.finditer(text)]
    return {(Path(file).name, line) for file, line in filter(None, found)}


def _outside_torch(match: re.Match[str], text: str) -> tuple[str, int] | None:
    """Return the place of a break; for one inside torch that of the line which leads there, if the log shows it."""
    if _TORCH not in match[1]:
        return match[1], int(match[2])
    frames = [frame for frame in _FRAME.finditer(text) if _TORCH not in frame[1]]
    return (frames[-1][1], int(frames[-1][2])) if frames else None


def causes_in_report(model: Model, device: str, out: Path) -> Counter[tuple[str, int, str]]:
    """Return file, line and type of the graph breaks that the command finds, and how often each is there."""
    words = ["-m", "compilebisect", model.target, "--input-spec", str(model.spec), "--init", json.dumps(model.init)]
    words += [*model.args, "--device", device, "--check", "graph_break", "--backend", "eager"]
    words += ["--no-repro", "-q", "--out", str(out)]
    ended = _run(words)
    if not (out / "report.json").exists():
        raise RuntimeError(f"{model.name} has no report:\n{ended.stderr[-2000:]}")
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return Counter(
        (Path(finding["location"]["file"]).name, finding["location"]["line"], finding["summary"])
        for finding in report["findings"]
        if finding["kind"] == "graph_break" and finding["location"]
    )


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="folders, or names with --library")
    parser.add_argument("--library", action="store_true", help="names of models in tests/quality/real_models.py")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--jobs", type=int, default=1, help="models side by side")
    options = parser.parse_args(words)
    are_agreed = True
    print("| model | lines in torch's log | missing in the report | twice in the report | only in the report |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(prefix="agreement-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        place = Path(folder)
        if options.library:
            models = [library_model(name, place) for name in options.models]
        else:
            folders = [Path(name) for name in options.models] or [ROOT / "sample_models"]
            models = [model for path in folders for model in models_in(path)]
        for line, is_agreed in pool.map(lambda model: compare(model, options.device, place), models):
            are_agreed &= is_agreed
            print(line, flush=True)
    return 0 if are_agreed else 1


def compare(model: Model, device: str, place: Path) -> tuple[str, bool]:
    """Return the model's line of the table, and whether log and report agree."""
    try:
        logged, causes = lines_in_log(model, device), causes_in_report(model, device, place / "out" / model.name)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return f"| {model.name} | {str(error).splitlines()[-1][:200]} | | | |", False
    reported = {(file, line) for file, line, _ in causes}
    missing, twice = logged - reported, [cause for cause, count in causes.items() if count > 1]
    cells = [_text(part) for part in (logged, missing, twice, reported - logged)]
    return f"| {model.name} | {' | '.join(cells)} |", not missing and not twice


def _text(places: Sequence[tuple[Any, ...]] | set[tuple[str, int]]) -> str:
    return ", ".join(f"{place[0]}:{place[1]}" for place in sorted(places))


if __name__ == "__main__":
    sys.exit(main())
