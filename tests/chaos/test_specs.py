"""Specs and options of the worst sort: exit 2, the place in the JSON, and no word of the tool having failed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from compilebisect.__main__ import main
from compilebisect.cli import files

_DEEP = 40_000

SPECS = {
    "huge value": ('{"x": {"value": 1' + "0" * 400 + "}}", "x.value"),
    "endless integer": ('{"x": {"value": [1, -' + "9" * 20_000 + "]}}", "x.value[1]"),
    "huge size": ('{"x": [99999999999999999999999]}', "x[0]"),
    "too many elements": ('{"x": [1000000, 1000000, 1000]}', "x"),
    "too many elements by dims": ('{"args": [["n", "n", "n"]], "dims": {"n": [4, 2097151]}}', "args[0]"),
    "infinite": ('{"x": {"value": 1e999}}', "x.value"),
    "no number": ('{"x": {"value": NaN}}', "NaN"),
    "lone surrogate": ('{"x": {"value": "\\ud800"}}', "x.value"),
    "lone surrogate in a key": ('{"x": {"value": {"\\udfff": 1}}}', "x.value"),
    "null": ("null", "null"),
    "null leaf": ('{"x": null}', "x"),
    "near section": ('{"agrs": [[2, 4]]}', "did you mean 'args'"),
    "near section of sizes": ('{"dms": {"n": [2]}, "x": ["n"]}', "did you mean 'dims'"),
    "near leaf key": ('{"x": {"shpe": [2]}}', "did you mean 'shape'"),
    "twice": ('{"x": [2], "x": [3]}', "stands twice"),
    "deep": ('{"x": ' + "[" * _DEEP + "]" * _DEEP + "}", "nested"),
    "deeper than anybody writes": ('{"x": ' + '{"list": [' * 300 + "]}" * 300 + "}", "nested"),
    "deep constant": ('{"x": {"value": ' + "[" * 200 + "]" * 200 + "}}", "nested"),
    "negative zero size": ('{"x": [-0.0]}', "x[0]"),
    "bool size": ('{"x": [true]}', "x[0]"),
    "no bytes of text": ("\udcff\udcfe", "no UTF-8"),
    "nothing": ("", "empty"),
    "blanks": (" \n\t", "empty"),
    "zeros": ("\0" * 100, "no JSON"),
    "number": ("3", "number 3"),
    "string": ('"x"', "string"),
    "empty name": ('{"": [2]}', '[""]'),
    "huge low": ('{"x": {"shape": [2], "dtype": "int64", "low": -99999999999999999999}}', "x.low"),
    "huge stride": ('{"x": {"shape": [2, 2], "stride": [9223372036854775807, 9223372036854775807]}}', "x"),
    "tolerance": ('{"args": [[2]], "tolerances": {"*": 1e999}}', "tolerances"),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_of_the_worst_sort_is_told_by_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text, place = SPECS[name]
    monkeypatch.chdir(folder)
    Path("bad.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["model.py:Net", "--input-spec", "bad.json"]) == 2
    said = capsys.readouterr().err
    assert place in said and "itself failed" not in said and len(said) < 2000, said[:3000]
    assert not (folder / "compilebisect-out").exists()


@pytest.mark.parametrize("option", ["--init", "--optimizer"])
@pytest.mark.parametrize(
    "value",
    ['{"name": 1e999}', '{"name": "\\ud800"}', '{"name": NaN}', '{"name": %s}' % ("9" * 5000), "null", "[1]", '"x'],
)
def test_an_option_of_the_worst_sort_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    monkeypatch.chdir(folder)
    assert main(["model.py:Net", "--input-spec", "spec.json", "--train", option, value]) == 2
    said = capsys.readouterr().err
    assert option in said and "itself failed" not in said, said


@pytest.mark.parametrize("value", ["9" * 5000, "1e999", '{"a": "\\ud800"}', "[" * 10_000])
def test_a_config_of_the_worst_sort_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.chdir(folder)
    words = ["model.py:Net", "--config", f"torch._inductor.config.x={value}", "--input-spec", "absent.json"]
    assert main(words) == 2
    assert "itself failed" not in capsys.readouterr().err


@pytest.mark.parametrize("command", [["model.py:Net", "--input-spec"], ["show"], ["diff", "report.json"]])
@pytest.mark.parametrize(
    "path", ["/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "pipe", "folder", "a\0b", "x" * 300]
)
def test_what_is_no_plain_file_is_refused(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    path: str,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(files, "_PIPE_PATIENCE_S", 0.1)
    monkeypatch.setattr(files, "_MOST_BYTES", 1 << 20)
    os.mkfifo("pipe")
    Path("folder").mkdir()
    assert main([*command, path]) == 2
    said = capsys.readouterr().err
    assert "itself failed" not in said and said.startswith("error: "), said


def test_a_pipe_that_somebody_writes_to_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    os.mkfifo("pipe")
    writer = threading.Thread(target=Path("pipe").write_text, args=('{"x": [2, -1]}',))
    writer.start()
    assert main(["model.py:Net", "--input-spec", "pipe"]) == 2
    writer.join()
    assert "x[1]" in capsys.readouterr().err
