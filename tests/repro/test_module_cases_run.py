"""Source cases of each kind: the script is written, run in a fresh process, and shows the fault."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch

from compilebisect.core.call import CallContext
from compilebisect.core.messages import CaptureOrder, ProbeOrder, ReproOrder
from compilebisect.core.outcome import Fault, Kind, Stage
from compilebisect.core.report import Repro
from compilebisect.core.repro_case import ReproCase
from compilebisect.repro.verify import Proof, Verification
from compilebisect.runtime.module_source import module_case
from compilebisect.runtime.repro_cases import cases_of
from compilebisect.runtime.session import Session
from compilebisect.settings import Settings
from tests.repro.faults import BRANCH, GRU, ITEM, PRINT, fault_at
from tests.repro.proving import Prove


@contextmanager
def settings_of_torch_kept() -> Iterator[None]:
    import torch._dynamo.config as dynamo_config
    import torch._inductor.config as inductor_config

    with (
        dynamo_config.patch(recompile_limit=8, accumulated_recompile_limit=256),
        inductor_config.patch(fallback_random=False),
    ):
        yield


def proved(prover: Prove, cases: list[ReproCase], folder: Path) -> tuple[Repro, list[Verification]]:
    repro, runs = prover(cases, folder)
    assert repro.verified, runs[-1].tail
    return repro, runs


def test_print_break_with_config_helpers_and_shared_weights(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    module = faulty.PrintBreak(faulty.BlockConfig(hidden=4), object()).eval()
    fault = fault_at(faulty.PrintBreak, "print(", type=PRINT)
    case = module_case(module, (torch.randn(2, 4),), {"mask": None}, fault, module_path="encoder.0")
    repro, _ = proved(prover, [case], tmp_path)
    text = (tmp_path / repro.path).read_text()
    assert not repro.imports_user_code
    assert "never_used" not in text and "__init__" not in text.split("class Base")[1].split("def make")[0]
    assert "import faulty" not in text and "from parts" not in text
    assert "model.layers[1].weight = model.layers[0].weight" in text
    assert str(Path(__file__).parent) not in text


def test_break_in_a_helper_of_another_file(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    fault = fault_at(sys.modules["parts"].chatty, "print(", type=PRINT)
    case = module_case(faulty.HelperBreak().eval(), (torch.randn(2),), {}, fault)
    _, runs = proved(prover, [case], tmp_path)
    assert 'at "print(\\"in the helper\\"' in runs[0].line


@pytest.mark.parametrize(("name", "text", "kind"), [("Branch", "if x.sum()", BRANCH), ("ItemCall", ".item()", ITEM)])
def test_breaks_that_depend_on_data(
    faulty: ModuleType, tmp_path: Path, prover: Prove, name: str, text: str, kind: str
) -> None:
    cls = getattr(faulty, name)
    case = module_case(cls().eval(), (torch.randn(3),), {}, fault_at(cls, text, type=kind))
    proved(prover, [case], tmp_path)


def test_gru_alone_is_one_constructor_call(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    fault = fault_at(faulty.Rnn, "self.rnn(x)", type=GRU)  # the place that calls the module
    case = module_case(faulty.Rnn().eval().rnn, (torch.randn(2, 3, 4),), {}, fault, module_path="rnn")
    repro, _ = proved(prover, [case], tmp_path)
    assert "model = torch.nn.GRU(4, 4, batch_first=True, bidirectional=True)" in (tmp_path / repro.path).read_text()


def test_operator_without_fake_kernel_takes_its_definition_along(
    faulty: ModuleType, tmp_path: Path, prover: Prove
) -> None:
    fault = fault_at(
        faulty.NoFakeKernel,
        "no_fake",
        kind=Kind.GRAPH_BREAK,
        type="Operator does not support running with fake tensors",
    )
    case = module_case(faulty.NoFakeKernel().eval(), (torch.randn(2, 2),), {}, fault)
    proved(prover, [case], tmp_path)


def test_operator_with_wrong_fake_kernel_fails_when_it_runs(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    fault = Fault(kind=Kind.ERROR, type="AssertionError", message="expected size 3==2", stage=Stage.RUNTIME)
    case = module_case(faulty.WrongFakeKernel().eval(), (torch.randn(2, 2),), {}, fault)
    proved(prover, [case], tmp_path)


def test_is_compiling_diverges(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    fault = Fault(kind=Kind.DIVERGENCE, type="values", message="differs", stage=Stage.DYNAMO)
    case = module_case(faulty.OtherWhenCompiled().eval(), (torch.randn(2, 2),), {}, fault, backend="eager")
    proved(prover, [case], tmp_path)


def test_lost_mutation_of_an_input(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    fault = Fault(kind=Kind.DIVERGENCE, type="mutation", message="input not changed", stage=Stage.INDUCTOR)
    case = module_case(faulty.LostMutation().eval(), (torch.randn(2, 2),), {}, fault)
    proved(prover, [case], tmp_path)


def test_abort_while_compiling_is_seen_by_a_parent_process(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    fault = Fault(kind=Kind.CRASH, type="SIGABRT", message="died", stage=Stage.DYNAMO)
    case = module_case(faulty.AbortingFakeKernel().eval(), (torch.randn(2, 2),), {}, fault)
    proved(prover, [case], tmp_path)


def test_hang_while_compiling_ends_at_the_scripts_deadline(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    fault = Fault(kind=Kind.TIMEOUT, type="timeout", message="no end within 300 s", stage=Stage.DYNAMO)
    case = module_case(faulty.HangingFakeKernel().eval(), (torch.randn(2, 2),), {}, fault, deadline_s=8)
    proved(prover, [case], tmp_path)


def test_saved_tensors_are_used_where_random_ones_do_not_show_the_fault(
    faulty: ModuleType, tmp_path: Path, prover: Prove
) -> None:
    fault = Fault(kind=Kind.DIVERGENCE, type="values", message="differs", stage=Stage.DYNAMO)
    module, args = faulty.WrongAtOneValue().eval(), (torch.tensor([[0.5, -1.0, 12345.0], [0.1, 0.2, 0.3]]).t(),)
    seeded = module_case(module, args, {}, fault, backend="eager")
    file = tmp_path / "work" / "t.safetensors"
    saved = module_case(module, args, {}, fault, backend="eager", tensor_file=file)
    repro, runs = proved(prover, [seeded, saved], tmp_path)
    assert [result.proof for result in runs] == [Proof.GONE, Proof.SHOWN]
    assert (tmp_path / "repro_F1.safetensors").exists()
    assert "load_file" in (tmp_path / repro.path).read_text()


HEALTHY = [
    Fault(kind=Kind.GRAPH_BREAK, type=PRINT),
    Fault(kind=Kind.ERROR, type="RuntimeError"),
    Fault(kind=Kind.DIVERGENCE, type="mutation"),
    Fault(kind=Kind.DIVERGENCE, type="values"),
    Fault(kind=Kind.CRASH, type="SIGABRT"),
    Fault(kind=Kind.TIMEOUT, type="timeout"),
]


@pytest.mark.parametrize("fault", HEALTHY, ids=lambda fault: f"{fault.kind.value}-{fault.type.split()[0]}")
def test_a_healthy_module_shows_no_fault(faulty: ModuleType, tmp_path: Path, prover: Prove, fault: Fault) -> None:
    is_divergence = fault.kind is Kind.DIVERGENCE
    module = faulty.Relu().train(is_divergence)
    case = module_case(module, (torch.randn(2, 4),), {}, fault, train=is_divergence, deadline_s=100)
    repro, runs = prover([case], tmp_path)
    assert not repro.verified
    assert runs[0].proof is Proof.GONE, runs[0].tail
    assert runs[0].exit_status == 0


def test_user_import_as_last_resort(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    fault = fault_at(faulty.Branch, "if x.sum()", type=BRANCH)
    context = CallContext(grad_mode="inference")
    case = module_case(faulty.Branch(), (torch.randn(2),), {}, fault, context=context, import_user_code=True)
    repro, _ = proved(prover, [case], tmp_path)
    assert repro.imports_user_code
    assert "imports the user's code" in repro.note


def test_a_fault_that_shows_only_in_place_has_a_script_of_the_whole_model(
    faulty: ModuleType, tmp_path: Path, prover: Prove
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), faulty.OtherWhenCompiled())
    fault = Fault(kind=Kind.DIVERGENCE, type="values", message="output of 1: other values", stage=Stage.DYNAMO)
    case = module_case(model.eval(), (torch.randn(2, 4),), {}, fault, backend="eager", in_place=("1",))
    repro, _ = proved(prover, [case], tmp_path)
    text = (tmp_path / repro.path).read_text()
    assert "part = model.get_submodule('1')" in text and 'part.compile(backend="eager")' in text
    healthy = module_case(model.eval(), (torch.randn(2, 4),), {}, fault, backend="eager", in_place=("0",))
    repro, runs = prover([healthy], tmp_path)
    assert not repro.verified and runs[-1].proof is Proof.GONE


def test_a_fault_that_only_the_golden_cotangents_show_is_shown_by_the_saved_case(
    faulty: ModuleType, tmp_path: Path, prover: Prove
) -> None:
    target = f"{Path(faulty.__file__ or '')}:WrongAtOneCotangent"
    spec = {"args": [{"shape": [2, 4], "requires_grad": True}], "train": {"loss": "faulty.py:tripled"}}
    spec_dir = str(Path(faulty.__file__ or "").parent)
    with settings_of_torch_kept():
        session = Session(
            Settings(target=target, spec=spec, spec_dir=spec_dir, train=True, device="cpu", backend="aot_eager")
        )
        record = session.describe().modules[0]
        session.capture(CaptureOrder(str(tmp_path), {"": (0,)}))
        probe = ProbeOrder(path="", folder=str(tmp_path), calls=record.calls, backend="aot_eager", train=True)
        fault = Fault(kind=Kind.DIVERGENCE, type="values", message="a gradient differs", stage=Stage.AOT_AUTOGRAD)
        shown: dict[str, list[bool]] = {}
        for level in ("standalone", "saved"):
            order = ReproOrder(probe=probe, fault=fault, tensors=str(tmp_path / "work"), name="F1", level=level)
            cases = [case for case in cases_of(session, order) if case.program is not None]
            shown[level] = [prover([case], tmp_path / level)[0].verified for case in cases]
            assert [case.cotangents for case in cases] == [(1,) if level == "saved" else ()]
    assert shown == {"standalone": [False], "saved": [True]}
