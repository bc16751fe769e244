"""Scripts of each kind of fault, made as small as they get, word for word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from compilebisect.core.outcome import Fault, Kind, Stage
from compilebisect.core.repro_case import ReproCase
from compilebisect.repro.script import place_code, write_script, write_text
from compilebisect.repro.verify import Proof, Verification, judge
from compilebisect.runtime.graph_source import graph_case
from compilebisect.runtime.module_source import module_case
from compilebisect.search.reducing import Reduced, Reduction
from compilebisect.search.script_runner import ScriptRunner
from tests.repro.faults import ITEM, PRINT, fault_at
from tests.repro.test_graph_cases_run import PLANTED, captured

MakeCase = Callable[[ModuleType], ReproCase]


def print_break(faulty: ModuleType) -> ReproCase:
    module = faulty.PrintBreak(faulty.BlockConfig(hidden=6), not_known_later=1).eval()
    fault = fault_at(faulty.PrintBreak, "print(", type=PRINT)
    return module_case(module, (torch.randn(3, 6),), {"mask": None}, fault)


def item_call(faulty: ModuleType) -> ReproCase:
    fault = fault_at(faulty.ItemCall, ".item()", type=ITEM)
    return module_case(faulty.ItemCall().eval(), (torch.randn(3, 5),), {}, fault)


def tracing_error(faulty: ModuleType) -> ReproCase:
    fault = fault_at(faulty.FailsWhenCompiled, "view(-1, 7)", kind=Kind.ERROR, type="TorchRuntimeError")
    return module_case(faulty.FailsWhenCompiled().eval(), (torch.randn(2, 4),), {}, fault, backend="eager")


def wrong_values(faulty: ModuleType) -> ReproCase:
    module = faulty.Relu().eval()
    gm, inputs = captured(module, torch.randn(3, 4))
    fault = Fault(kind=Kind.DIVERGENCE, type="values", message="differs", stage=Stage.INDUCTOR)
    return graph_case(gm, inputs, fault, module=module, module_path="mlp", config=((PLANTED, '"accuracy"'),))


def lost_mutation(faulty: ModuleType) -> ReproCase:
    fault = Fault(kind=Kind.DIVERGENCE, type="mutation", message="differs", stage=Stage.AOT_AUTOGRAD)
    return module_case(faulty.LostMutation().eval(), (torch.randn(2, 4),), {}, fault, backend="aot_eager")


def abort(faulty: ModuleType) -> ReproCase:
    fault = Fault(kind=Kind.CRASH, type="SIGABRT", message="died", stage=Stage.DYNAMO)
    return module_case(faulty.AbortingFakeKernel().eval(), (torch.randn(2, 2),), {}, fault)


CASES: list[MakeCase] = [print_break, item_call, tracing_error, wrong_values, lost_mutation, abort]


def reduce(case: ReproCase, runner: ScriptRunner, folder: Path, *, budget_s: float = 300.0) -> tuple[Reduced, bool]:
    first = shown(case, runner, folder / "first.py")
    assert first.proof is Proof.SHOWN, first.tail
    reduction = Reduction(case, first, runner, folder, budget_s=budget_s, environment={}, polish_s=budget_s)
    is_finished = reduction.run()
    return reduction.best(), is_finished


def shown(case: ReproCase, runner: ScriptRunner, script: Path, text: str | None = None) -> Verification:
    write_script(case, script) if text is None else write_text(case, text, script)
    end = runner.run(script, timeout_s=160)
    return judge(end, case.fault, place_code(case))


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_the_smallest_script_of_each_kind(
    faulty: ModuleType, runner: ScriptRunner, tmp_path: Path, golden: Callable[[str, str], None], make: MakeCase
) -> None:
    case = make(faulty)
    reduced, is_finished = reduce(case, runner, tmp_path)
    assert is_finished
    golden(f"{make.__name__}.py.txt", reduced.text)
    assert shown(case, runner, tmp_path / "small.py", reduced.text).proof is Proof.SHOWN


def test_the_script_of_a_hang(
    faulty: ModuleType, runner: ScriptRunner, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    # Every smaller script that shows a hang costs its deadline, so this one is left as it was written.
    fault = Fault(kind=Kind.TIMEOUT, type="timeout", message="no end within 5 s", stage=Stage.DYNAMO)
    module = faulty.HangingFakeKernel().eval()
    torch.manual_seed(0)  # the script says how the values are distributed, and four that are positive look uniform
    case = module_case(module, (torch.randn(2, 2),), {}, fault, backend="eager", deadline_s=5)
    seen = shown(case, runner, tmp_path / "hang.py")
    assert seen.proof is Proof.SHOWN, seen.tail
    golden("hang.py.txt", (tmp_path / "hang.py").read_text(encoding="utf-8"))


def test_a_hang_shrinks_and_has_its_deadline_again(faulty: ModuleType, runner: ScriptRunner, tmp_path: Path) -> None:
    fault = Fault(kind=Kind.TIMEOUT, type="timeout", message="no end within 300 s", stage=Stage.DYNAMO)
    case = module_case(faulty.HangingFakeKernel().eval(), (torch.randn(2, 2),), {}, fault, deadline_s=6)
    reduced, _ = reduce(case, runner, tmp_path, budget_s=13.0)
    assert "DEADLINE_S = 6" in reduced.text
    assert shown(case, runner, tmp_path / "small.py", reduced.text).proof is Proof.SHOWN


def test_a_difference_that_shrinks_to_rounding_is_no_progress(
    faulty: ModuleType, runner: ScriptRunner, tmp_path: Path
) -> None:
    case = wrong_values(faulty)
    first = shown(case, runner, tmp_path / "first.py")
    reduction = Reduction(case, first, runner, tmp_path, budget_s=0.0, environment={})
    line = 'FAULT SHOWN: expected x; observed divergence "values" (largest difference {} of 1); torch 2'
    assert reduction._is_faint(Verification(proof=Proof.SHOWN, line=line.format("1e-6")))
    assert not reduction._is_faint(Verification(proof=Proof.SHOWN, line=line.format("0.5")))
