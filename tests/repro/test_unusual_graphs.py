"""Graphs that hold more than plain operators: the script shows the fault of an operator in or beside them."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from compilebisect.core.outcome import Fault, Kind, Stage
from compilebisect.core.repro_case import TensorValue
from compilebisect.runtime.graph_source import graph_case
from compilebisect.runtime.module_source import CannotMakeCase
from tests.repro.proving import Prove
from tests.repro.test_graph_cases_run import captured
from tests.repro.test_module_cases_run import proved

FAULT = Fault(kind=Kind.ERROR, type="RuntimeError", message="view size is not compatible", stage=Stage.RUNTIME)


@pytest.fixture(scope="module")
def unusual(faulty: ModuleType) -> ModuleType:
    return importlib.import_module("unusual")


# Dynamo itself makes such an object.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Cond", "torch.ops.higher_order.cond("),
        ("Checkpointed", "torch.utils.checkpoint.checkpoint("),
        ("OwnGradient", "outputs_and_saved = fwd_body_0(x)"),
        ("Loop", "torch.ops.higher_order.while_loop("),
        ("Attention", "torch.ops.unusual.turned"),
        ("Several", "return (y, "),
        ("Constants", "torch.tensor([0.5, 1.5, 2.5, 3.5])"),
        ("Sized", "x.size(0)"),
    ],
)
def test_a_script_comes_out_that_shows_the_fault(
    unusual: ModuleType, prover: Prove, tmp_path: Path, name: str, said: str
) -> None:
    module = getattr(unusual, name)()
    x = torch.randn(3, 4, requires_grad=name == "OwnGradient")
    if name == "Sized":
        torch._dynamo.mark_dynamic(x, 0)
    gm, inputs = captured(module, x, grad=name == "OwnGradient")
    case = graph_case(gm, inputs, FAULT, module=module, backend="aot_eager")
    assert case.dynamic is (True if name == "Sized" else None)
    repro, _ = proved(prover, [case], tmp_path)
    text = (tmp_path / repro.path).read_text()
    assert said in text
    assert "import unusual" not in text  # the operator's definition is in the script


def test_a_function_of_torch_that_dynamo_takes_only_as_such_becomes_an_input(unusual: ModuleType) -> None:
    module = unusual.Attention()
    gm, inputs = captured(module, torch.randn(3, 4))
    case = graph_case(gm, inputs, FAULT, module=module)
    assert case.graph is not None
    assert not any("flex_attention" in operator.target for operator in case.graph.operators)
    cut = next(item for item in case.graph.inputs if item.name not in ("x", "bias"))
    assert isinstance(cut.value, TensorValue)
    assert cut.value.shape == (1, 1, 3, 4)


def test_a_graph_with_a_triton_kernel_leaves_the_fault_to_the_modules_source() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(
        torch.ops.higher_order.triton_kernel_wrapper_mutation, (), {"kernel_idx": 0, "kwargs": {"x": x}}
    )
    graph.output((graph.call_method("relu", (x,)),))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    with pytest.raises(CannotMakeCase, match="process that captured it"):
        graph_case(gm, [torch.randn(2)], FAULT)
