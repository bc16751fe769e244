"""The command line as a whole: commands, messages, exit statuses, what goes to which stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
import pytest

import compilebisect
from compilebisect.__main__ import main
from compilebisect.core.outcome import Kind
from compilebisect.core.report import Report, report_from_json, report_json
from compilebisect.errors import CompilebisectError, EagerFailure
from compilebisect.progress import ProgressListener
from compilebisect.settings import Settings
from tests.sample_reports import healthy_report, interrupted_report, large_report, untested_report


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a model, a spec and reports."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("")
    (tmp_path / "spec.json").write_text('{"x": [8, 3]}')
    (tmp_path / "healthy.json").write_bytes(report_json(healthy_report()))
    (tmp_path / "large.json").write_bytes(report_json(large_report()))
    return tmp_path


Scripted = Callable[[Report | BaseException], list[Settings]]


@pytest.fixture
def scripted_run(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Replace the run itself: the settings that it is called with are kept, the given report comes back."""

    def script(outcome: Report | BaseException) -> list[Settings]:
        calls: list[Settings] = []

        def run(settings: Settings, progress: ProgressListener) -> Report:
            calls.append(settings)
            progress.phase_started("starting torch")
            progress.probe_started("head", "Head", "inductor", 0, 2)
            progress.probe_finished("head", "error", 1, 2)
            progress.warned("careful")
            if isinstance(outcome, BaseException):
                raise outcome
            for finding in outcome.findings:
                progress.finding_made(finding)
            return outcome

        # in place of the real module, which would load the whole machinery
        api = types.ModuleType("compilebisect.api")
        monkeypatch.setattr(api, "run", run, raising=False)
        monkeypatch.setitem(sys.modules, "compilebisect.api", api)
        return calls

    return script


def settings_of(scripted_run: Scripted, *options: str) -> Settings:
    calls = scripted_run(healthy_report())
    assert main(["model.py:Net", *options]) == 0
    return calls[0]


@pytest.mark.usefixtures("folder")
class TestRun:
    def test_defaults_are_those_of_the_contract(self, scripted_run: Scripted) -> None:
        settings = settings_of(scripted_run, "--input-spec", "spec.json")
        assert settings == Settings(target="model.py:Net", spec={"x": [8, 3]}, spec_dir=".")

    def test_run_may_be_named_and_options_may_stand_first(self, scripted_run: Scripted) -> None:
        for words in (["run", "model.py:Net", "--seed", "3"], ["--seed", "3", "model.py:Net"]):
            calls = scripted_run(healthy_report())
            assert main(words) == 0
            assert calls == [Settings(target="model.py:Net", seed=3)]

    def test_every_option_reaches_the_settings(self, scripted_run: Scripted) -> None:
        words = """--inputs model.py:make --init {"hidden":64} --device cuda:1 --dtype bfloat16 --backend eager
            --mode max-autotune --no-dynamic --train --check error,graph-break --config torch._inductor.config.a=false
            --config torch._dynamo.config.b=(1,2) --config torch._dynamo.config.c=some/text --only enc.* --only head
            --skip *.drop --timeout 2.5 --workers 3 --out there --baseline healthy.json --fail-on crash --seed 7
            --tolerance 1e-3,1e-5 --no-repro --no-cache --all-modules --strategies --context -v
            --optimizer {"name":"sgd","lr":0.1}"""
        assert settings_of(scripted_run, *words.split()) == Settings(
            target="model.py:Net",
            inputs="model.py:make",
            init={"hidden": 64},
            device="cuda:1",
            dtype="bfloat16",
            backend="eager",
            mode="max-autotune",
            dynamic=False,
            train=True,
            check=(Kind.ERROR, Kind.GRAPH_BREAK),
            config=(
                ("torch._inductor.config.a", False),
                ("torch._dynamo.config.b", (1, 2)),
                ("torch._dynamo.config.c", "some/text"),
            ),
            only=("enc.*", "head"),
            skip=("*.drop",),
            timeout_s=2.5,
            workers=3,
            out="there",
            baseline="healthy.json",
            fail_on=(Kind.CRASH,),
            seed=7,
            tolerance=(1e-3, 1e-5),
            repro=False,
            cache=False,
            all_modules=True,
            strategies=True,
            context=True,
            optimizer={"name": "sgd", "lr": 0.1},
            verbose=True,
        )

    def test_an_optimizer_may_be_given_by_its_name_alone(self, scripted_run: Scripted) -> None:
        assert settings_of(scripted_run, "--train", "--optimizer", "adamw").optimizer == {"name": "adamw"}

    @pytest.mark.parametrize(
        ("text", "said"),
        [("{'name': 1}", "is no JSON"), ('{"lr": 1}', "has no 'name'"), ("adam w", "names no optimizer")],
    )
    def test_an_optimizer_of_another_form_is_refused(
        self, text: str, said: str, scripted_run: Scripted, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["model.py:Net", "--train", "--optimizer", text]) == 2
        assert said in capsys.readouterr().err

    def test_an_optimizer_without_training_is_refused_before_torch_is_started(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["model.py:Net", "--input-spec", "spec.json", "--optimizer", "adamw"]) == 2
        assert "--train" in capsys.readouterr().err

    def test_spec_comes_from_standard_input(self, scripted_run: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
        with open("spec.json") as file:
            monkeypatch.setattr("sys.stdin", file)
            assert settings_of(scripted_run, "--input-spec", "-").spec == {"x": [8, 3]}

    def test_paths_in_a_spec_are_relative_to_its_folder(self, scripted_run: Scripted, folder: Path) -> None:
        (folder / "sub").mkdir()
        (folder / "sub" / "spec.json").write_bytes(b"\xef\xbb\xbf[]")
        settings = settings_of(scripted_run, "--input-spec", "sub/spec.json")
        assert (settings.spec, settings.spec_dir) == ([], "sub")

    def test_standard_output_of_json_is_the_report_alone(
        self, scripted_run: Scripted, capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        scripted_run(large_report())
        assert main(["model.py:Net", "--format", "json"]) == 1
        out, err = capfdbinary.readouterr()
        assert large_report() == report_from_json(out)
        assert b"F3: graph break in vision.layers.0.mlp and 11 more at vlm.py:31" in err

    def test_progress_is_plain_lines_without_a_terminal_and_nothing_with_q(
        self, scripted_run: Scripted, capsys: pytest.CaptureFixture[str]
    ) -> None:
        scripted_run(healthy_report())
        main(["model.py:Net"])
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == "starting torch …"
        assert lines[1].startswith("[1/2] head Head: error (")
        assert lines[2:] == ["warning: careful"]
        main(["model.py:Net", "-q"])
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize(
        ("report", "options", "status"),
        [
            (healthy_report(), [], 0),
            (large_report(), [], 1),
            (large_report(), ["--fail-on", "slowdown"], 0),
            (large_report(), ["--baseline", "large.json"], 0),
            (large_report(), ["--baseline", "healthy.json"], 1),
            (untested_report(), [], 125),
            (untested_report(), ["--baseline", "healthy.json"], 125),
            (interrupted_report(), [], 130),
            (interrupted_report(), ["--baseline", "large.json"], 130),
        ],
    )
    def test_exit_status(self, scripted_run: Scripted, report: Report, options: list[str], status: int) -> None:
        scripted_run(report)
        assert status == main(["model.py:Net", *options])

    def test_the_last_line_names_what_could_not_be_tested(
        self, scripted_run: Scripted, capsys: pytest.CaptureFixture[str]
    ) -> None:
        scripted_run(untested_report())
        assert main(["-q", "model.py:Net"]) == 125
        out, err = capsys.readouterr()
        assert "healthy" not in out and "NOT ALL WAS TESTED" in out
        assert err.startswith("error: no verdict on Net (fails in eager mode") and "nor on 1 more module" in err

    def test_error_of_the_run_is_a_message_and_its_status(
        self, scripted_run: Scripted, capsys: pytest.CaptureFixture[str]
    ) -> None:
        error = EagerFailure("the model fails in eager mode", where="head", fix="Mend it.", detail="ValueError: no")
        scripted_run(error)
        assert main(["-q", "model.py:Net"]) == 125
        out, err = capsys.readouterr()
        assert (out, err) == ("", "error: head: the model fails in eager mode\nMend it.\n\nValueError: no\n")

    def test_interrupt_before_there_is_a_report_exits_130(self, scripted_run: Scripted) -> None:
        scripted_run(KeyboardInterrupt())
        assert main(["model.py:Net"]) == 130

    def test_sigterm_ends_a_run_as_an_interrupt_does(self) -> None:
        program = (
            "import os, signal\n"
            "import compilebisect.__main__ as entry, compilebisect.cli.main as command_line\n"
            "command_line.run_command_line = lambda words: os.kill(os.getpid(), signal.SIGTERM)\n"
            "raise SystemExit(entry.main([]))"
        )
        root = Path(compilebisect.__file__).parents[1]
        ended = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
        assert (ended.returncode, ended.stderr) == (130, "interrupted\n")

    def test_internal_error_is_short_and_has_its_traceback_only_with_v(
        self, scripted_run: Scripted, capsys: pytest.CaptureFixture[str]
    ) -> None:
        scripted_run(ZeroDivisionError("odd"))
        assert main(["model.py:Net"]) == 125
        err = capsys.readouterr().err
        assert "compilebisect itself failed: ZeroDivisionError: odd" in err
        assert "Please report this" in err
        assert "Traceback" not in err
        assert main(["model.py:Net", "-v"]) == 125
        assert "Traceback" in capsys.readouterr().err

    def test_wrong_baseline_is_told_before_the_run(self, scripted_run: Scripted) -> None:
        calls = scripted_run(healthy_report())
        assert main(["model.py:Net", "--baseline", "spec.json"]) == 2
        assert not calls


BAD_COMMANDS = [
    ([], "Usage:"),
    (["shwo", "large.json"], "unknown command 'shwo'; did you mean 'show'?"),
    (["model.py"], "names no module"),
    (["model.py:"], "names no module"),
    (["model.py:Net()"], "'Net()' is no Python name"),
    (["modle.py:Net"], "Did you mean 'model.py'?"),
    (["nowhere/model.py:Net"], "there is no file 'nowhere/model.py'"),
    (["model.py:Net", "--devcie", "cpu"], "No such option"),
    (["model.py:Net", "--device", "gpu"], "unknown device 'gpu'"),
    (["model.py:Net", "--device", "cud"], "did you mean 'cuda'?"),
    (["model.py:Net", "--dtype", "bfloat61"], "did you mean 'bfloat16'?"),
    (["model.py:Net", "--mode", "max-autotun"], "did you mean 'max-autotune'?"),
    (["model.py:Net", "--format", "htlm"], "did you mean 'html'?"),
    (["model.py:Net", "--check", "graph_braek"], "did you mean 'graph_break'?"),
    (["model.py:Net", "--fail-on", ","], "names no kind"),
    (["model.py:Net", "--config", "epilogue_fusion"], "not of the form KEY=VALUE"),
    (["model.py:Net", "--config", "a=1"], "is no torch config"),
    (["model.py:Net", "--init", "{"], "is no JSON"),
    (["model.py:Net", "--init", "[1]"], "must be a JSON object"),
    (["model.py:Net", "--timeout", "0"], "no number of seconds above 0"),
    (["model.py:Net", "--timeout", "nan"], "no number of seconds above 0"),
    (["model.py:Net", "--workers", "0"], "'0' is no whole number of at least 1"),
    (["model.py:Net", "--seed", "-1"], "'-1' is no whole number of at least 0"),
    (["model.py:Net", "--tolerance", "1,2,3"], "is not RTOL[,ATOL]"),
    (["model.py:Net", "--tolerance", "-1"], "is not RTOL[,ATOL]"),
    (["model.py:Net", "extra"], "unexpected extra argument"),
    (["model.py:Net", "--input-spec", "spec.json", "--inputs", "model.py:f"], "exclude each other"),
    (["model.py:Net", "--inputs", "model.py"], "names no function"),
    (["model.py:Net", "--input-spec", "spce.json"], "Did you mean 'spec.json'?"),
    (["model.py:Net", "--input-spec", "."], "cannot read the input spec"),
    (["model.py:Net", "--input-spec", "bad.json"], "bad.json:2:3: the input spec is no JSON"),
    (["model.py:Net", "--input-spec", "twice.json"], "the key 'x' stands twice"),
    (["model.py:Net", "--input-spec", "nan.json"], "NaN is not allowed"),
    (["model.py:Net", "--input-spec", "latin.json"], "no UTF-8 text"),
    (["model.py:Net", "--baseline", "none.json"], "cannot read the report"),
    (["show"], "Missing argument 'REPORT.json'"),
    (["show", "none.json"], "cannot read the report"),
    (["show", "spec.json"], "spec.json: this JSON is no compilebisect report"),
    (["show", "wrong.json"], "wrong.json: findings[0].kind: "),
    (["diff", "large.json"], "Missing argument 'NEW.json'"),
    (["diff", "-", "-"], "only one of the reports"),
]


@pytest.mark.parametrize(("words", "message"), BAD_COMMANDS)
def test_wrong_command_is_one_message_and_status_2(
    words: list[str], message: str, folder: Path, scripted_run: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.json").write_text("{\n  x: 1}")
    (folder / "twice.json").write_text('{"x": 1, "x": 2}')
    (folder / "nan.json").write_text('{"x": NaN}')
    (folder / "latin.json").write_bytes(b'{"\xe4": 1}')
    report = json.loads(report_json(large_report()))
    report["findings"][0]["kind"] = "typo"
    (folder / "wrong.json").write_text(json.dumps(report))
    calls = scripted_run(healthy_report())
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert err.count("error:") == (0 if not words else 1)
    assert not calls


@pytest.mark.usefixtures("folder")
def test_show_prints_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    for format_name, start in [
        ("tree", "models/vlm.py"), ("markdown", "## "), ("html", "<!DOCTYPE html>"), ("junit", "<?xml"),
        ("sarif", "{"), ("github", "::error"), ("json", "{"),
    ]:  # fmt: skip
        assert main(["show", "large.json", "--format", format_name]) == 0
        assert capsys.readouterr().out.startswith(start)


def test_show_says_where_the_repros_lie(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "sub").mkdir()
    (folder / "large.json").rename(folder / "sub" / "report.json")
    main(["show", "sub/report.json"])
    assert "sub/repro_F3.py" in capsys.readouterr().out


def test_diff_shows_each_group_and_exits_1_only_for_new_findings(
    folder: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    findings = list(large_report().findings)
    findings[2] = msgspec.structs.replace(findings[2], module="vision.layers.1.mlp")
    findings[5] = msgspec.structs.replace(findings[5], fingerprint="another")
    later = msgspec.structs.replace(large_report(), findings=tuple(findings[1:]))
    (folder / "later.json").write_bytes(report_json(later))
    assert main(["diff", "large.json", "later.json"]) == 0
    golden("diff.txt", capsys.readouterr().out)
    assert main(["diff", "later.json", "large.json"]) == 1
    assert "1 new, 0 fixed, 2 changed, 5 unchanged" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["run", "--help"], ["show", "--help"], ["--version"]])
def test_help_goes_to_standard_output(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "compilebisect" in out and not err


def test_every_command_loads_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    from compilebisect.cli.main import command_line

    context = click.Context(command_line)
    for name in command_line.list_commands(context):
        assert main([name, "--help"]) == 0
        assert "Usage:" in capsys.readouterr().out


def test_every_error_says_its_exit_status() -> None:
    def below(kind: type[CompilebisectError]) -> list[type[CompilebisectError]]:
        return [kind, *(inner for sub in kind.__subclasses__() for inner in below(sub))]

    assert {kind.exit_status for kind in below(CompilebisectError)} == {2, 125}


# Works whether the package is installed or not.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(compilebisect.__file__).parent.parent)}


def program(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, timeout=120, env={**ENVIRONMENT, **environment}
    )


@pytest.mark.usefixtures("folder")
class TestProcess:
    def test_no_command_but_run_imports_torch_or_the_run(self) -> None:
        code = (
            "import sys; from compilebisect.__main__ import main; status = main(sys.argv[1:]);"
            "assert not {'torch', 'numpy', 'networkx', 'compilebisect.api'} & set(sys.modules), sorted(sys.modules);"
            "sys.exit(status)"
        )
        for words in (["--help"], ["run", "--help"], ["show", "large.json"], ["diff", "large.json", "large.json"]):
            done = program("-c", code, *words)
            assert done.returncode == 0, done.stderr.decode()

    def test_run_itself_leaves_torch_to_its_workers(self) -> None:
        done = program("-c", "import sys, compilebisect.api; assert 'torch' not in sys.modules, 'torch is loaded'")
        assert done.returncode == 0, done.stderr.decode()

    def test_reader_that_goes_away_is_no_error(self) -> None:
        command = f"{sys.executable} -m compilebisect show large.json --format json | head -c 10"
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, timeout=60, env=ENVIRONMENT
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b'{\n  "schem', b"")

    def test_poor_encoding_gets_plain_characters(self) -> None:
        done = program("-m", "compilebisect", "show", "large.json", PYTHONIOENCODING="ascii")
        assert done.returncode == 0, done.stderr.decode()
        assert b"EncoderBlock x12" in done.stdout

    def test_json_is_utf8_whatever_the_encoding_of_the_terminal(self, folder: Path) -> None:
        report = msgspec.structs.replace(healthy_report(), target="mödel.py:Net")
        (folder / "named.json").write_bytes(report_json(report))
        done = program("-m", "compilebisect", "show", "named.json", "--format", "json", PYTHONIOENCODING="latin-1")
        assert report == report_from_json(done.stdout)
