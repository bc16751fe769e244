"""Cases of an optimizer's step: the script is written, run in a fresh process, and shows the fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from compilebisect.core.outcome import Fault, Kind, Stage
from compilebisect.repro.verify import Proof
from compilebisect.runtime.optimizer import OptimizerSteps
from compilebisect.runtime.optimizer_case import optimizer_case
from tests.repro.proving import Prove

PARAMETERS = {"up.weight": torch.randn(4, 3), "up.bias": torch.zeros(4), "unused": torch.ones(2)}
GRADIENTS = {"up.weight": torch.randn(4, 3), "up.bias": torch.randn(4)}


@pytest.mark.parametrize("is_saved", [False, True])
def test_other_values_after_some_steps(tmp_path: Path, prover: Prove, is_saved: bool) -> None:
    # Compiled, Adam counts its steps in float32, so that no tolerance at all shows a difference.
    steps = OptimizerSteps({"name": "adam", "lr": 0.01, "betas": [0.8, 0.99]})
    fault = Fault(kind=Kind.DIVERGENCE, type="values", message="update of up.weight: differs", stage=Stage.DYNAMO)
    file = tmp_path / "t.safetensors" if is_saved else None
    case = optimizer_case(
        steps, PARAMETERS, GRADIENTS, fault, backend="aot_eager", tolerance=(0.0, 0.0), tensor_file=file
    )
    repro, runs = prover([case], tmp_path)
    assert repro.verified, runs[-1].tail
    text = (tmp_path / repro.path).read_text()
    assert "torch.optim.Adam([weight_0, weight_1, weight_2], lr=0.01, betas=[0.8, 0.99])" in text
    assert "torch.compile(model.step" in text and "weight_2.grad" not in text
    assert ("load_file(" in text) == is_saved
    healthy = optimizer_case(steps, PARAMETERS, GRADIENTS, fault, backend="aot_eager", tolerance=(1e-3, 1e-4))
    repro, runs = prover([healthy], tmp_path)
    assert not repro.verified and runs[-1].proof is Proof.GONE


def test_a_graph_break_of_a_step(tmp_path: Path, prover: Prove) -> None:
    fault = Fault(
        kind=Kind.GRAPH_BREAK,
        type="Unsupported Tensor.item() call with capture_scalar_outputs=False",
        stage=Stage.DYNAMO,
    )
    case = optimizer_case(OptimizerSteps({"name": "adafactor"}), PARAMETERS, GRADIENTS, fault)
    repro, runs = prover([case], tmp_path)
    assert repro.verified, runs[-1].tail
    other = optimizer_case(OptimizerSteps({"name": "sgd"}), PARAMETERS, GRADIENTS, fault)
    repro, runs = prover([other], tmp_path)
    assert runs[-1].proof is Proof.GONE, "a break that torch makes on purpose is none"
