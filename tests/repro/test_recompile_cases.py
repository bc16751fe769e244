"""Scripts of recompiles: they show the recompile that they are about, and no other counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from compilebisect.core.guard_text import Cause, parse_guard
from compilebisect.core.outcome import Fault, Kind
from compilebisect.core.recompile import RecompileEvent, judge_recompiles
from compilebisect.core.repro_case import ReproCase
from compilebisect.repro.script import place_code, write_script
from compilebisect.repro.verify import Proof, judge
from compilebisect.runtime.module_source import module_case
from compilebisect.search.script_runner import ScriptRunner
from tests.repro.faults import fault_at
from tests.repro.proving import Prove
from tests.repro.test_reduced_cases import reduce, shown

LENGTH = "0/1: len(self.kept) == 1"
SIZE = "0/1: tensor 'x' size mismatch at index 1. expected 6, actual 9"


def place(source: object, text: str) -> Fault:
    return fault_at(source, text, type="")


def recompile(reason: str, where: Fault, *, count: int = 3, in_variants: bool = False) -> Fault:
    """Make a fault of some failures of a guard, as the probe does."""
    guard = parse_guard(reason)
    assert where.location is not None
    event = RecompileEvent(
        frame=where.location,
        cause=guard.cause,
        subject=guard.source,
        dim=guard.dim,
        before=guard.expected,
        is_attribute=guard.source.startswith("self."),
        frames=where.frames,
        marks=guard.marks,
        guard=guard.text,
    )
    (fault,) = judge_recompiles([event] * count, can_turn_dynamic=True, limit=8, in_variants=in_variants).faults
    return fault


def sizes(*shapes: tuple[int, ...]) -> list[tuple[tuple[torch.Tensor, ...], dict[str, object]]]:
    return [((torch.ones(*shape),), {}) for shape in shapes]


def keeps_all(faulty: ModuleType) -> ReproCase:
    fault = recompile(LENGTH, place(faulty.KeepsAll, "self.kept.append(y)"))
    return module_case(faulty.KeepsAll().eval(), (torch.ones(2, 4),), {}, fault)


def loops_over_size(faulty: ModuleType) -> ReproCase:
    fault = recompile(SIZE, place(faulty.LoopsOverSize, "range(x.shape[1])"), count=1, in_variants=True)
    calls = sizes((3, 6, 4), (5, 9, 4))
    return module_case(faulty.LoopsOverSize().eval(), (torch.ones(2, 4, 4),), {}, fault, further_calls=calls)


def test_the_smallest_script_of_a_size_is_not_about_a_size_of_one(
    faulty: ModuleType, runner: ScriptRunner, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    case = loops_over_size(faulty)
    reduced, is_finished = reduce(case, runner, tmp_path)
    assert is_finished
    golden("loops_over_size.py.txt", reduced.text)
    assert shown(case, runner, tmp_path / "small.py", reduced.text).proof is Proof.SHOWN


def test_a_list_that_grows_shows(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    repro, (run,) = prover([keeps_all(faulty)], tmp_path)
    assert repro.verified and not repro.imports_user_code, run.tail


def test_a_recompile_for_another_reason_is_not_the_one(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    fault = recompile("0/1: len(self.other) == 1", place(faulty.KeepsAll, "self.kept.append(y)"))
    _, (run,) = prover([module_case(faulty.KeepsAll().eval(), (torch.ones(2, 4),), {}, fault)], tmp_path)
    assert (run.proof, run.exit_status) == (Proof.GONE, 0)
    assert "none of them this one" in run.line


def test_sizes_that_dynamo_makes_dynamic_show_nothing(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    reason = "0/1: tensor 'x' size mismatch at index 0. expected 6, actual 9"
    fault = recompile(reason, place(faulty.Relu, "def forward"), count=1, in_variants=True)
    module = faulty.Relu().eval()
    calls = sizes((3, 4), (5, 4), (1, 4))  # a size of one is made apart, which is another recompile
    _, (run,) = prover([module_case(module, (torch.ones(2, 4),), {}, fault, further_calls=calls)], tmp_path)
    assert run.proof is Proof.GONE, run.tail


def test_a_number_that_dynamo_makes_dynamic_shows_nothing(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    # The list grows as well, so that code is made for each call, and older code does not fit for the number.
    fault = recompile("0/1: scale == 2.0", place(faulty.KeepsAll, "* scale"), count=2, in_variants=True)
    assert fault.evidence["cause"] == Cause.VALUE.value
    x = torch.ones(2, 4)
    calls = [((x, scale), {}) for scale in (2.0, 3.0, 4.0)]
    case = module_case(faulty.KeepsAll().eval(), (x, 1.0), {}, fault, further_calls=calls)
    _, (run,) = prover([case], tmp_path)
    assert run.proof is Proof.GONE, run.tail


def test_the_verdict_counts_where_the_model_printed_before_it(runner: ScriptRunner, tmp_path: Path) -> None:
    script = tmp_path / "prints.py"
    line = 'FAULT SHOWN: expected e; observed error "E"; torch 2'
    script.write_text(f"print('step', end=' ')\nprint({line!r})\nraise SystemExit(1)\n", encoding="utf-8")
    seen = judge(runner.run(script, timeout_s=60), Fault(kind=Kind.ERROR, type="E"))
    assert (seen.proof, seen.line) == (Proof.SHOWN, line)


def test_the_place_is_a_line_of_the_script(faulty: ModuleType, tmp_path: Path) -> None:
    case = keeps_all(faulty)
    write_script(case, tmp_path / "repro.py")
    assert place_code(case) == "self.kept.append(y)"
    assert "for args, kwargs in calls:" in (tmp_path / "repro.py").read_text()
