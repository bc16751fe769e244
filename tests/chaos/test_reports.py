"""Reports of the worst sort, and places that cannot be written: a sentence, 2 or 125, never a failure of the tool."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilebisect.__main__ import main
from compilebisect.core.report import Report, report_json
from compilebisect.render import FORMATS, render
from tests.chaos.hostile import check_no_excuse, run_command
from tests.sample_reports import ENVIRONMENT, healthy_report, large_report, module

BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "seconds that are no number": lambda report: report["timing"].update(total_s=float("nan")),
    "endless seconds": lambda report: report["timing"].update(total_s=float("inf")),
    "seconds as text": lambda report: report["timing"].update(total_s="long"),
    "count as text": lambda report: report["timing"].update(compiles="many"),
    "unknown kind": lambda report: report["findings"][0].update(kind="bad luck"),
    "no findings": lambda report: report.update(findings=None),
    "modules as object": lambda report: report.update(modules={}),
    "schema as number": lambda report: report.update(schema=1),
}
ODD: dict[str, Callable[[dict[str, Any]], object]] = {
    "check as number": lambda report: report["settings"].update(check=3),
    "check as objects": lambda report: report["settings"].update(check=[{}, 1]),
    "unknown kinds": lambda report: report["settings"].update(check=["bad luck"]),
    "out as list": lambda report: report["settings"].update(out=[1]),
    "settings of all sorts": lambda report: report["settings"].update(spec=None, config=7, tolerance="x", init=[]),
    "evidence of all sorts": lambda report: report["findings"][0].update(
        evidence={"region": 3, "impact": [1], "stack": {"a": 1}, "message": None, "recompiles": "x", "user_line": 4}
    ),
    "children that are not there": lambda report: report["modules"][0].update(children=["a", "b"]),
    "findings that are not there": lambda report: report["modules"][0].update(findings=["F99"]),
    "surrogates": lambda report: report["findings"][0].update(summary="\udcff", hint="\ud800"),
    "huge count": lambda report: report["timing"].update(compiles=-(10**3000)),
    "huge line": lambda report: report["findings"][2]["location"].update(line=10**900),
    "odd file": lambda report: report["findings"][2]["location"].update(file="\x1b[31m::error::\n/\\"),
}


def written(folder: Path, change: Callable[[dict[str, Any]], object]) -> str:
    data = json.loads(report_json(large_report()))
    change(data)
    (folder / "odd.json").write_text(json.dumps(data), encoding="utf-8", errors="surrogatepass")
    (folder / "good.json").write_bytes(report_json(healthy_report()))
    return "odd.json"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_report_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(folder)
    path = written(folder, BROKEN[name])
    for words in (["show", path], ["diff", path, "good.json"], ["diff", "good.json", path]):
        assert main(words) == 2
        assert "itself failed" not in capsys.readouterr().err


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_report_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, format_name: str
) -> None:
    monkeypatch.chdir(folder)
    path = written(folder, ODD[name])
    assert main(["show", path, "--format", format_name]) == 0, capsys.readouterr().err
    assert main(["diff", path, path]) == 0
    assert main(["diff", "good.json", path]) == 1
    assert "itself failed" not in capsys.readouterr().err


def deep_report(levels: int) -> Report:
    paths = [".".join(["m"] * length) for length in range(1, levels)]
    return Report(
        target="model.py:Net",
        environment=ENVIRONMENT,
        modules=(
            module("", "Net", "error", "inherited", children=["m"]),
            *(module(path, "M", "error", "inherited", children=[f"{path}.m"]) for path in paths[:-1]),
            module(paths[-1], "M", "error", "introduced", findings=["F1"]),
        ),
        findings=(msgspec.structs.replace(large_report().findings[5], id="F1", module=paths[-1]),),
    )


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_tree_of_many_levels_is_drawn(format_name: str) -> None:
    assert "F1" in render(deep_report(1500), format_name)


@pytest.mark.parametrize("place", ["/proc/out", "file/out", "/dev/null", "/dev/full", "absent/folder"])
def test_a_place_that_cannot_be_written_is_told(folder: Path, place: str) -> None:
    (folder / "file").touch()
    words = ["model.py:Net", "--input-spec", "spec.json", "--out", place]
    if place != "absent/folder":
        end = run_command(folder, *words)
        check_no_excuse(end)
        assert end.status == 2 and "--out" in end.stderr, end.said
    end = run_command(folder, "init", "model.py:Net", "-o", place)
    check_no_excuse(end)
    assert end.status == 2 and "-o" in end.stderr, end.said


@pytest.mark.parametrize("place", ["/proc/cache", "/dev/null", "file/cache"])
def test_a_cache_folder_that_cannot_be_made_is_told(folder: Path, place: str) -> None:
    (folder / "file").touch()
    where = str(folder / place) if place.startswith("file") else place
    words = ["model.py:Net", "--input-spec", "spec.json"]
    end = run_command(folder, *words, env={"COMPILEBISECT_CACHE_DIR": where})
    check_no_excuse(end)
    assert end.status == 125 and "the cache folder cannot be written" in end.stderr, end.said
    assert "COMPILEBISECT_CACHE_DIR" in end.stderr and not (folder / "compilebisect-out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", [{"HOME": "/proc/none", "COMPILEBISECT_CACHE_DIR": ""}, {"TMPDIR": "/proc/none"}, {"HOME": ""}]
)
def test_doctor_and_init_work_without_a_home_or_a_temporary_folder(folder: Path, env: dict[str, str]) -> None:
    end = run_command(folder, "init", "model.py:Net", env=env)
    check_no_excuse(end)
    assert end.status == 0 and '"x"' in end.stdout, end.said
    end = run_command(folder, "doctor", env=env)
    check_no_excuse(end)
    assert end.status in (0, 125) and "torch" in end.stdout, end.said
