"""What lies behind graph breaks, what they cost, and which switches cure them, with the `eager` backend."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

from compilebisect.core.fingerprint import fault_key
from compilebisect.core.messages import ProbeOrder
from compilebisect.core.outcome import Fault, Kind, Observation
from compilebisect.runtime import break_rounds, torch_internals
from compilebisect.runtime.behind_breaks import probe_behind_breaks
from compilebisect.runtime.changed_code import CannotChange, changed_code
from compilebisect.runtime.golden import CallLog, Capture, watch_calls
from compilebisect.runtime.torch_internals import without_disable
from tests.runtime import breaking_modules


def look(module: nn.Module, folder: Path, **order: object) -> Observation:
    torch.manual_seed(0)
    args = (torch.randn(2, 4),)
    log = CallLog()
    with watch_calls(module, log.note), torch.no_grad():
        module(*args)
    capture = Capture(module, {"": {0}}, folder)
    with watch_calls(module, capture.note), torch.no_grad():
        module(*args)
    order_ = ProbeOrder(path="", folder=str(folder), calls=tuple(log.calls[""]), backend="eager", **order)
    seen, is_usable = probe_behind_breaks(module, order_, on_phase=lambda phase: None, root_inputs=lambda: (args, {}))
    assert is_usable
    assert all(fault.kind is Kind.GRAPH_BREAK for fault in seen.faults)
    return seen


@pytest.fixture(scope="module")
def in_loop(tmp_path_factory: pytest.TempPathFactory) -> Observation:
    return look(breaking_modules.InLoop(), tmp_path_factory.mktemp("in_loop"))


def code(fault: Fault) -> str:
    assert fault.location is not None
    return fault.location.code


def hidden(seen: Observation) -> dict[str, str]:
    """Return the line of each hidden break, with that of the one that hid it."""
    return {
        code(fault): fault.evidence["hidden_behind"][3].partition(":")[2]
        for fault in seen.faults
        if "hidden_behind" in fault.evidence
    }


def test_all_breaks_of_a_loop_are_met_each_behind_the_one_before(in_loop: Observation) -> None:
    seen = in_loop
    assert hidden(seen) == {
        "if x.sum() > 0:": 'print("a shape", x.shape)',
        "places = x.flatten().nonzero()": "if x.sum() > 0:",
        "x = x + x.max().item() + places.shape[0]": "places = x.flatten().nonzero()",
    }
    assert [fault.type for fault in seen.faults][1:3] == ["Data-dependent branching", "Dynamic shape operator"]
    for fault in seen.faults:
        assert fault.evidence["effect"] == "frame skipped"
        assert fault.evidence["graphs"] == {"with": 0, "without": 1}
        counts = fault.evidence["operators_in_graphs"]
        assert counts["with"] == 0 < counts["without"]
        (frame,) = fault.evidence["skipped_frames"]
        assert (frame["function"], frame["block"]) == ("forward", "`for` loop")


@pytest.mark.parametrize(
    ("module", "behind"),
    [
        (breaking_modules.InTry(), "x = x * x.min().item()"),
        (breaking_modules.Decorated(), "if x.sum() > limit:"),
        (breaking_modules.Mangled(), "x = x * x.mean().item()"),
    ],
)
def test_code_of_every_form_is_mended(tmp_path: Path, module: nn.Module, behind: str) -> None:
    assert list(hidden(look(module, tmp_path))) == [behind]


def test_both_parts_of_a_test_are_found(tmp_path: Path) -> None:
    seen = look(breaking_modules.InWhile(), tmp_path)
    assert {fault.type.split(" call")[0] for fault in seen.faults} == {
        "Data-dependent branching",
        "Unsupported Tensor.item()",
    }


def test_nothing_is_found_behind_a_break_that_hides_nothing(tmp_path: Path) -> None:
    seen = look(breaking_modules.OnlyOne(), tmp_path)
    assert [code(fault) for fault in seen.faults] == ['print("only one")']
    assert not hidden(seen) and not seen.notes


def test_what_cannot_be_mended_is_said(tmp_path: Path) -> None:
    seen = look(breaking_modules.NoValue(), tmp_path)
    assert not hidden(seen)
    (note,) = seen.notes
    assert note.startswith("what lies behind `with contextlib.redirect_stdout(None):` was not looked at")


def test_what_lies_behind_a_break_below_is_found_and_that_one_left_to_its_module(tmp_path: Path) -> None:
    line = inspect.getsource(breaking_modules).splitlines().index('        print("in a child")') + 1
    place = str(Path(breaking_modules.__file__)), f'{line}:print("in a child")'
    below = (Kind.GRAPH_BREAK.value, "Failed to trace builtin operator", *place)
    seen = look(breaking_modules.Parent(), tmp_path, breaks_below=(below,))
    assert hidden(seen) == {"x = x * x.amax().item()": 'print("in a child")'}
    assert len(seen.faults) == 1


def test_switches_are_tried_and_said_to_help_only_where_they_do(in_loop: Observation) -> None:
    by_line = {code(fault): fault for fault in in_loop.faults}
    item = by_line["x = x + x.max().item() + places.shape[0]"]
    assert item.evidence["cures"] == [
        {"cure": "torch._dynamo.config.capture_scalar_outputs = True", "helps": True, "graphs": 1}
    ]
    assert "this module has 1 graph, with its other breaks mended (tried)" in item.hint
    # A print of anything but tensors and plain text cannot be moved behind the graph.
    moved, dropped = by_line['print("a shape", x.shape)'].evidence["cures"]
    assert (moved["helps"], dropped["helps"]) == (False, True)


def test_a_function_that_is_kept_out_is_tried_without_its_decorator(tmp_path: Path) -> None:
    seen = look(breaking_modules.KeptOut(), tmp_path)
    assert all("<function" in fault.message and " at 0x" not in fault.message for fault in seen.faults)
    cures = {code(fault): fault.evidence["cures"] for fault in seen.faults}
    assert cures["x = kept_out(x * 2)"] == [
        {"cure": "kept_out without torch.compiler.disable", "helps": True, "graphs": 1}
    ]
    assert [cure["helps"] for cure in cures["x = kept_out_for_a_reason(x)"]] == [False]  # a print in its place
    assert cures["return self.twice(x)"] == [
        {"cure": "twice without torch.compiler.disable", "helps": True, "graphs": 1}
    ]


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_decorators_of_what_is_called_are_tried_and_leave_it_as_it_was(tmp_path: Path) -> None:
    for _ in range(2):
        copied, searched = (fault.evidence["cures"] for fault in look(breaking_modules.Copies(), tmp_path).faults)
        assert [(cure["cure"], cure["helps"]) for cure in copied] == [
            ("torch._dynamo.dont_skip_tracing(copy)", False),
            ("torch.compiler.allow_in_graph(copy)", True),
        ]
        assert copied[1]["graphs"] == 1
        assert not any(cure["helps"] for cure in searched)  # its result is no tensor


def test_the_module_runs_its_own_code_again_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = breaking_modules.InTry()
    before = type(module).forward.__code__
    look(module, tmp_path)
    assert type(module).forward.__code__ is before
    assert not [name for name in vars(breaking_modules) if name.startswith("compilebisect")]
    capsys.readouterr()
    module(torch.ones(2))
    assert capsys.readouterr().out == "first\n"


def test_the_look_ends_when_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(break_rounds, "BUDGET_S", 0.0)
    seen = look(breaking_modules.InLoop(), tmp_path)
    assert not seen.faults
    assert "too long" in seen.notes[0]


def test_code_that_is_not_what_its_file_says_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "edited.py"
    file.write_text("def f():\n    return 1\n")
    space: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    file.write_text("def f():\n    return 3\n\n\n# edited since\n")
    with (
        pytest.raises(CannotChange, match=r"what runs is not what edited\.py says"),
        changed_code({str(file): lambda tree: tree}, {}),
    ):
        pass


def test_only_a_function_that_has_the_decorator_loses_it() -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        return breaking_modules.kept_out(x)

    around = functools.wraps(breaking_modules.kept_out)(other)  # takes the mark over
    assert without_disable(breaking_modules.kept_out) is breaking_modules.kept_out.__wrapped__
    assert without_disable(breaking_modules.KeptOut().twice) is not None
    assert [without_disable(value) for value in (around, len, "".join, torch.sin, None)] == [None] * 5


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_break_that_is_there_only_because_another_one_cut_the_graph_follows_from_it(tmp_path: Path) -> None:
    if torch_internals.dynamo_config_value("trace_autograd_ops") is None:
        pytest.skip("this torch cannot trace autograd.grad")
    with torch_internals.dynamo_config({"trace_autograd_ops": True}):
        seen = look(breaking_modules.CutBeforeGradient(), tmp_path)
    follows = {code(fault): fault.evidence.get("follows_from") for fault in seen.faults}
    (first,) = [fault for fault in seen.faults if code(fault).startswith("print")]
    assert follows[code(first)] is None
    others = {line: cause for line, cause in follows.items() if line != code(first)}
    assert others == {"(slope,) = torch.autograd.grad(loss, self.weight)": list(fault_key(first))}


def test_a_break_that_is_gone_because_nothing_gets_there_any_more_follows_from_none(tmp_path: Path) -> None:
    seen = look(breaking_modules.CalledOnlyByTheBreak(), tmp_path)
    assert [code(fault) for fault in seen.faults if code(fault).startswith("print")]
    assert not any("follows_from" in fault.evidence for fault in seen.faults)
