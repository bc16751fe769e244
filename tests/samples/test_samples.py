"""Every sample model, through the real command: exit status, findings, blame, schema and repros."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from compilebisect.core.report import report_schema

from .sample import SAMPLES_DIR, Sample, read_samples

SAMPLES = read_samples()
TIMEOUT_S = 540
# The search for smaller scripts has tests of its own; the one sample that the README shows is taken all the way.
PROOF = ("--reduce-seconds", "0", "--repro-runs", "1")
WHOLE = ("--reduce-seconds", "60", "--repro-runs", "2")
README_SAMPLE = "print_break"
# Their scripts would be those of the README's sample again: a break at a line of the model's own.
UNPROVED = ("every_layer", "item_call", "logging_break", "data_branch", "assert_break", "builtin_break")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 30)]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The processes' environment; one cache for all samples, since a fresh one costs half a minute each time."""
    cache = os.environ.get("COMPILEBISECT_CACHE_DIR") or str(tmp_path_factory.mktemp("cache"))
    # The checkout is tested, also where another copy is installed, or none.
    places = [str(SAMPLES_DIR.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "COMPILEBISECT_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(filter(None, places))}


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(s, id=s.name, marks=[pytest.mark.gpu] if s.needs_gpu else [])
        for s in SAMPLES
        if s.name != README_SAMPLE
    ],
)
def test_sample_gives_exactly_its_expected_findings(
    sample: Sample, environment: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ended = run_command(sample, environment, out, ("--no-repro",) if sample.name in UNPROVED else PROOF)
    check_report(sample, out, ended)


def place_of(finding: dict[str, Any]) -> tuple[str, str]:
    return finding["kind"], finding["module"]


def code_of(finding: dict[str, Any]) -> str:
    return finding["location"]["code"] if finding["location"] else ""


def check_report(sample: Sample, out: Path, ended: subprocess.CompletedProcess[str]) -> None:
    said = f"{ended.stdout}\n{ended.stderr}"
    assert ended.returncode == sample.expected["exit"], said
    assert "Traceback" not in ended.stderr, said

    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    jsonschema.validate(report, report_schema())
    assert report["complete"] is True
    found = sorted(
        report["findings"], key=lambda finding: (*place_of(finding), (finding["location"] or {}).get("code"))
    )
    wanted = sorted(sample.expected["expect"], key=lambda finding: (*place_of(finding), finding.get("code", "")))
    assert list(map(place_of, found)) == list(map(place_of, wanted)), said
    codes = {finding["id"]: code_of(finding) for finding in found}
    for finding, expected in zip(found, wanted, strict=True):
        check_finding(finding, expected, sample, out)
        assert codes.get(finding["evidence"].get("hidden_behind")) == expected.get("hidden_behind")
    check_blame(report["modules"], sample)


def test_readme_shows_what_the_command_prints(environment: dict[str, str], tmp_path: Path) -> None:
    sample = next(sample for sample in SAMPLES if sample.name == README_SAMPLE)
    out = tmp_path / "out"
    ended = run_command(sample, environment, out, WHOLE)
    check_report(sample, out, ended)
    (finding,) = json.loads((out / "report.json").read_text(encoding="utf-8"))["findings"]
    assert (finding["repro"]["verified"], finding["repro"]["shown"], finding["repro"]["runs"]) == (True, 2, 2)
    assert finding["repro"]["model_lines"] <= 15
    text = (SAMPLES_DIR.parent / "README.md").read_text(encoding="utf-8")
    match = re.search(r"<!-- output of: .*?-->\n```\n(.*?)```", text, flags=re.DOTALL)
    assert match is not None
    assert without_figures(match[1]) in without_figures(ended.stdout.replace(str(out), "compilebisect-out"))


def without_figures(text: str) -> str:
    """Text without what differs from run to run and from one version of the scripts' templates to the next."""
    text = re.sub(r"\d+ lines|\d+ compiles in .*|(\d+ min )?[\d.]+ s\b", "…", text)
    return re.sub(r"(?<=\S) {2,}| +(?=graphs )", "  ", text)  # columns move with the width of the seconds


def run_command(
    sample: Sample, environment: dict[str, str], out: Path, proof: tuple[str, ...] = PROOF
) -> subprocess.CompletedProcess[str]:
    file, name = sample.target
    command = [sys.executable, "-m", "compilebisect", f"{file}:{name}", "--input-spec", str(sample.spec)]
    return subprocess.run(
        [*command, *sample.expected["args"], "--out", str(out), *proof],
        env=environment,
        cwd=out.parent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def check_finding(finding: dict[str, Any], wanted: dict[str, Any], sample: Sample, out: Path) -> None:
    assert finding["also_in"] == wanted["also_in"]
    assert finding["stage"] in (wanted["stage"], *wanted.get("accept_stages", ()))
    location = finding["location"]
    if location is None:
        assert wanted.get("line_optional"), "the finding has no location"
    else:
        assert location["file"] == wanted["file"]
        line = (sample.folder / wanted["file"]).read_text(encoding="utf-8").splitlines()[location["line"] - 1]
        assert location["code"] == line.strip()
        assert wanted.get("code", "") in line
    if "region" in wanted:
        assert sorted(finding["evidence"]["region"]) == sorted(wanted["region"])
    assert finding["summary"]
    assert finding["fingerprint"]
    if sample.name in UNPROVED:
        return
    repro = finding["repro"]
    assert repro["verified"], repro
    script = (out / repro["path"]).read_text(encoding="utf-8")
    compile(script, repro["path"], "exec")


def check_blame(modules: list[dict[str, Any]], sample: Sample) -> None:
    entries = {module["path"]: module for module in modules}
    introduced = {path for path, module in entries.items() if module["origin"] == "introduced"}
    assert introduced == sample.introducing
    assert introduced.isdisjoint(sample.expected["clean"])
    ancestors = {
        ".".join(names[:depth]) for names in (path.split(".") for path in introduced) for depth in range(len(names))
    }
    inherited = {path for path, module in entries.items() if module["origin"] == "inherited"}
    assert inherited <= ancestors
    # Nothing else shows a fault, and nothing was left out.
    for path in entries.keys() - introduced - ancestors:
        assert entries[path]["status"] in ("ok", "not_called"), path
