from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compilebisect
from compilebisect.core.outcome import Kind, Stage
from compilebisect.core.report import (
    Environment,
    Finding,
    Location,
    ModuleEntry,
    Report,
    Repro,
    Timing,
    report_from_json,
    report_json,
    report_schema,
)
from compilebisect.errors import UsageError
from tests.sample_reports import healthy_report, interrupted_report, large_report

VALIDATOR = jsonschema.Draft202012Validator(report_schema())
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNT = st.integers(0, 10**6)
FLOAT = st.floats(0, 1e9)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
LOCATIONS = st.builds(Location, file=TEXT, line=COUNT, function=TEXT, code=TEXT)
REPROS = st.builds(
    Repro, path=TEXT, verified=st.booleans(), ops=COUNT, lines=COUNT, imports_user_code=st.booleans(), note=TEXT
)
FINDINGS = st.builds(
    Finding,
    id=TEXT,
    kind=st.sampled_from(Kind),
    module=TEXT,
    also_in=TEXTS,
    stage=st.none() | st.sampled_from(Stage),
    summary=TEXT,
    location=st.none() | LOCATIONS,
    fingerprint=TEXT,
    evidence=OBJECT,
    hint=TEXT,
    repro=st.none() | REPROS,
)
MODULES = st.builds(
    ModuleEntry,
    path=TEXT,
    cls=TEXT,
    status=st.sampled_from(["ok", "not_called", "skipped", *(kind.value for kind in Kind)]),
    origin=st.sampled_from([None, "introduced", "inherited"]),
    children=TEXTS,
    findings=TEXTS,
    same_as=st.none() | TEXT,
    shared_with=TEXTS,
    implied=st.booleans(),
    calls=COUNT,
    compile_s=FLOAT,
    graphs=COUNT,
    notes=TEXTS,
)
REPORTS = st.builds(
    Report,
    complete=st.booleans(),
    target=TEXT,
    environment=st.builds(Environment, compilebisect=TEXT, torch=st.none() | TEXT, device=TEXT),
    settings=OBJECT,
    modules=st.lists(MODULES, max_size=3).map(tuple),
    findings=st.lists(FINDINGS, max_size=2).map(tuple),
    timing=st.builds(Timing, total_s=FLOAT, compiles=COUNT),
    notes=TEXTS,
)


@settings(max_examples=50)
@given(REPORTS)
def test_report_survives_the_way_through_json_and_fits_its_schema(report: Report) -> None:
    data = report_json(report)
    assert report == report_from_json(data)
    VALIDATOR.validate(json.loads(data))


def test_published_schema_is_up_to_date(golden_file: Callable[[Path, str], None]) -> None:
    path = Path(str(resources.files(compilebisect) / "report.schema.json"))
    golden_file(path, json.dumps(report_schema(), indent=2) + "\n")


@pytest.mark.parametrize("report", [healthy_report(), large_report(), interrupted_report()])
def test_hand_made_reports_fit_the_schema(report: Report) -> None:
    jsonschema.Draft202012Validator.check_schema(report_schema())
    VALIDATOR.validate(json.loads(report_json(report)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "compilebisect-report/2"),
        (("modules", 0, "status"), "fine"),
        (("modules", 0, "origin"), "elsewhere"),
        (("findings", 0, "kind"), "typo"),
        (("findings", 0, "location"), {"file": "a.py"}),
        (("complete",), "yes"),
    ],
)
def test_schema_and_reader_reject_the_same_faults(path: tuple[str | int, ...], value: object) -> None:
    data = json.loads(report_json(large_report()))
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(data)
    with pytest.raises(UsageError) as caught:
        report_from_json(json.dumps(data).encode())
    assert caught.value.where.startswith(str(path[0]))


def test_json_is_pretty_utf8_and_uses_the_contracts_names() -> None:
    data = report_json(large_report())
    assert data.endswith(b"}\n")
    value = json.loads(data)
    assert list(value)[:3] == ["schema", "complete", "target"]
    assert {"path", "class", "status", "origin"} <= set(value["modules"][0])
    assert "\\u00" not in json.dumps(value["target"])


def test_what_json_cannot_say_is_written_as_text() -> None:
    evidence = {"error": float("inf"), "ratio": float("nan"), 3: (1, 2), "odd": 1j, "name": "\udc80"}
    finding = msgspec.structs.replace(large_report().findings[0], evidence=evidence)
    report = msgspec.structs.replace(large_report(), findings=(finding,))
    read = report_from_json(report_json(report)).findings[0].evidence
    assert read == {"error": "inf", "ratio": "nan", "3": [1, 2], "odd": "1j", "name": "\udc80"}


def test_fields_of_later_versions_are_ignored() -> None:
    data = json.loads(report_json(healthy_report()))
    data["modules"][0]["later"] = data["later"] = 1
    assert report_from_json(json.dumps(data).encode()) == healthy_report()


@pytest.mark.parametrize(
    ("data", "where", "what"),
    [
        (b"", "", "no JSON"),
        (b"\xff\xfe\x00", "", "no JSON"),
        (b"{", "", "no JSON"),
        (b"[" * 200_000, "", "no JSON"),
        (b"[]", "", "no compilebisect report"),
        (b"3", "", "no compilebisect report"),
        (b'{"schema": 1}', "", "no compilebisect report"),
        (b'{"schema": "compilebisect-report/9"}', "schema", "unknown report version"),
        (b'{"schema": "compilebisect-report/1"}', "", "missing required field `target`"),
        (b'{"schema": "compilebisect-report/1", "target": 3}', "target", "expected `str`"),
    ],
)
def test_garbage_is_answered_with_the_place_and_the_fault(data: bytes, where: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        report_from_json(data)
    assert caught.value.where == where
    assert what in caught.value.what
    assert caught.value.fix


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_garbage_raises_anything_else(data: bytes) -> None:
    with pytest.raises(UsageError):
        report_from_json(data)
