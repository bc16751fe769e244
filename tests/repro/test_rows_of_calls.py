"""Scripts about a later call, or a further variant of the inputs: they make the calls that it takes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch

from compilebisect.core.outcome import Fault, Kind, Stage
from compilebisect.repro.script import script_text
from compilebisect.runtime.module_source import module_case
from tests.repro.proving import Prove

IN_ROW = Fault(kind=Kind.DIVERGENCE, type="values", stage=Stage.DYNAMO, evidence={"call_in_row": 3})
OF_VARIANT = Fault(
    kind=Kind.DIVERGENCE, type="values", stage=Stage.DYNAMO, evidence={"in_variants": True, "variant": 2}
)


def test_a_script_makes_the_calls_up_to_the_one_that_is_wrong(
    faulty: ModuleType, tmp_path: Path, prover: Prove
) -> None:
    case = module_case(faulty.CountsWrong().eval(), (torch.ones(2, 4),), {}, IN_ROW, row=3, backend="eager")
    assert "[((x,), {})] * 3" in script_text(case, script_dir=tmp_path)
    repro, (run,) = prover([case], tmp_path)
    assert repro.verified, run.tail
    too_few = module_case(faulty.CountsWrong().eval(), (torch.ones(2, 4),), {}, IN_ROW, row=2, backend="eager")
    repro, _ = prover([too_few], tmp_path)
    assert not repro.verified


def test_a_script_feeds_the_variants_that_it_takes(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    case = module_case(
        faulty.CountsWrong().eval(),
        (torch.ones(2, 4),),
        {},
        OF_VARIANT,
        further_calls=[((torch.ones(2, 8),), {})],
        backend="eager",
    )
    repro, (run,) = prover([case], tmp_path)
    assert repro.verified, run.tail


def test_rows_of_training_and_of_errors_are_written(faulty: ModuleType, tmp_path: Path) -> None:
    case = module_case(faulty.CountsWrong(), (torch.ones(2, 4),), {}, IN_ROW, row=3, train=True)
    compile(script_text(case, script_dir=tmp_path), "script.py", "exec")
    error = Fault(kind=Kind.ERROR, type="RuntimeError", evidence={"call_in_row": 3})
    text = script_text(module_case(faulty.CountsWrong(), (torch.ones(2, 4),), {}, error, row=3), script_dir=tmp_path)
    compile(text, "script.py", "exec")
    assert "for args, kwargs in calls:" in text and "import copy" in text
