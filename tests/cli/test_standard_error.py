"""What goes to standard error: texts of the user steer neither a terminal nor the log of a CI job."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given

import compilebisect.api
from compilebisect.__main__ import main
from compilebisect.cli.progress import PlainProgress
from compilebisect.core.outcome import Kind
from compilebisect.core.report import Finding, Location, Repro
from compilebisect.errors import EagerFailure
from tests.hostile_texts import TEXTS, hostile_text

PACKAGE = Path(compilebisect.__file__).parent
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def check(said: str) -> None:
    assert not CONTROL.search(said)
    assert not re.search(r"^[^\S\n]*::|##\w*\[", said, re.MULTILINE)


@given(hostile_text())
def test_progress_is_lines_that_nobody_obeys(text: str) -> None:
    stream = io.StringIO()
    told = PlainProgress(stream, is_verbose=True)
    location = Location(file=text, line=1, function=text, code=text)
    finding = Finding(id=text, kind=Kind.ERROR, module=text, summary=text, location=location, fingerprint=text)
    told.phase_started(text)
    told.probe_started(text, text, text, 0, 1)
    told.probe_finished(text, "ok", 1, 1)
    told.proof_went_on(text)
    told.script_made(text, Repro(path=text, note=text))
    told.finding_made(finding)
    told.warned(text)
    check(stream.getvalue())
    assert stream.getvalue().count("\n") == 7


@pytest.mark.parametrize("text", [*TEXTS, "\n::error::x", "##[error]x"], ids=range(len(TEXTS) + 2))
def test_messages_of_errors_are_lines_that_nobody_obeys(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").touch()
    (tmp_path / "spec.json").write_text("{}")
    words = [f"{tmp_path / 'model.py'}:Net", "--input-spec", str(tmp_path / "spec.json")]
    for error in (EagerFailure(text, where=text, fix=text, detail=f"{text}\n{text}"), ZeroDivisionError(text)):

        def run(*args: object, error: Exception = error, **options: object) -> None:
            raise error

        monkeypatch.setattr(compilebisect.api, "run", run)
        for more in ([], ["-v"]):
            assert main([*words, *more]) == 125
            check(capsys.readouterr().err)


@pytest.mark.parametrize(
    "words",
    [["--format", "\x1b[31m"], ["\x1b]0;x\x07"], ["show", "\n::error::x"], ["--\n::error::x"], ["verify", "##[x]"]],
    ids=range(5),
)
def test_messages_about_options_are_lines_that_nobody_obeys(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    check(capsys.readouterr().err)


def test_what_a_model_prints_while_init_loads_it_is_not_obeyed(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("print('\\x1b[31mred\\n::error::x')\nfrom torch import nn\nclass Net(nn.Linear): pass\n")
    command = [sys.executable, "-m", "compilebisect", "init", f"{model}:Net", "--init", '{"in_features": 2}']
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "red" in done.stderr
    check(done.stderr)


def test_nothing_else_writes_to_standard_error() -> None:
    """Only the door does, the entry for what goes wrong with everything else, and progress, which is tested above."""
    doors = {"cli/output.py", "cli/progress.py", "__main__.py"}
    found = []
    for path in [*PACKAGE.glob("*.py"), *PACKAGE.glob("cli/*.py"), *PACKAGE.glob("search/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_print = isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "click.echo", "click.secho")
            if is_print and path.relative_to(PACKAGE).as_posix() not in doors:
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    assert not found, "Remedy: say it with cli.output.tell.\n" + "\n".join(found)
