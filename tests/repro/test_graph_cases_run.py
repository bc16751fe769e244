"""Graph cases: captured graphs as scripts that show faults planted behind Dynamo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from compilebisect.core.outcome import Fault, Kind, Stage
from compilebisect.runtime.graph_source import graph_case
from tests.repro.proving import Prove
from tests.repro.test_module_cases_run import proved

PLANTED = "torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY"


def captured(
    module: torch.nn.Module, *args: Any, dynamic: bool | None = None, grad: bool = False
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The first graph that Dynamo hands over, and its inputs."""
    found: list[tuple[torch.fx.GraphModule, list[Any]]] = []

    def keep(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append((gm, list(inputs)))
        return gm.forward

    torch.compiler.reset()
    with torch.set_grad_enabled(grad):
        torch.compile(module, backend=keep, dynamic=dynamic)(*args)
    return found[0]


def test_planted_compile_error(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    module = faulty.Relu().eval()
    gm, inputs = captured(module, torch.randn(3, 4))
    fault = Fault(kind=Kind.ERROR, type="CppCompileError", message="C++ compile error", stage=Stage.CPP)
    case = graph_case(gm, inputs, fault, module=module, module_path="mlp", config=((PLANTED, '"compile_error"'),))
    repro, _ = proved(prover, [case], tmp_path)
    text = (tmp_path / repro.path).read_text()
    assert repro.ops == 3
    assert "def forward(self, first_weight, first_bias, x, second_weight, second_bias):" in text
    assert f'{PLANTED} = "compile_error"' in text


def test_planted_wrong_values(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    module = faulty.Relu().eval()
    gm, inputs = captured(module, torch.randn(3, 4), dynamic=True)
    fault = Fault(kind=Kind.DIVERGENCE, type="values", message="differs", stage=Stage.INDUCTOR)
    case = graph_case(gm, inputs, fault, module=module, config=((PLANTED, '"accuracy"'),), train=True)
    proved(prover, [case], tmp_path)


def test_wrong_fake_kernel_of_the_users_operator(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    gm, inputs = captured(faulty.WrongFakeKernel().eval(), torch.randn(2, 2))
    fault = Fault(kind=Kind.ERROR, type="AssertionError", message="expected size", stage=Stage.RUNTIME)
    case = graph_case(gm, inputs, fault)
    repro, _ = proved(prover, [case], tmp_path)
    assert "_wrong_fake" in (tmp_path / repro.path).read_text()
    assert not repro.imports_user_code


@pytest.mark.parametrize("has_file", [False, True])
def test_a_script_that_shows_nothing_is_kept_unverified(
    faulty: ModuleType, tmp_path: Path, prover: Prove, has_file: bool
) -> None:
    module = faulty.Relu().eval()
    gm, inputs = captured(module, torch.randn(3, 4))
    fault = Fault(kind=Kind.ERROR, type="CppCompileError", message="C++ compile error", stage=Stage.CPP)
    file = tmp_path / "work" / "t.safetensors" if has_file else None
    case = graph_case(gm, inputs, fault, module=module, backend="eager", tensor_file=file)
    repro, _ = prover([case], tmp_path)
    assert not repro.verified
    assert "gone" in repro.note
    assert (tmp_path / "repro_F1.py").exists()
    assert (tmp_path / "repro_F1.safetensors").exists() == has_file
