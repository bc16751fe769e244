"""Scripts of modules whose parameters are made late, shared or computed: built as the model does, without its files."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from compilebisect.runtime.module_source import module_case
from compilebisect.runtime.parametrised import before_parametrisation, computed_tensors
from tests.repro.faults import PRINT, fault_at
from tests.repro.proving import Prove


@pytest.fixture(scope="module")
def unusual_modules(faulty: ModuleType) -> ModuleType:
    return importlib.import_module("unusual_modules")


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning", "ignore:Lazy modules:UserWarning")
@pytest.mark.parametrize("is_saved", [False, True], ids=["seeded", "saved"])
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Lazy", "model.proj = torch.nn.Linear(4, 4)"),
        ("OwnLazy", "model = new_module(OwnLazy)"),
        ("PartlyCalled", "model.unused = torch.nn.LazyLinear(4)"),
        ("OwnLazyUncalled", "model.unused.weight = torch.nn.UninitializedParameter()"),
        ("Tied", "model.head.weight = model.embed.weight"),
        ("HeldInLists", 'setattr(model.weights, "0", model.proj.weight)'),
        ("Parametrised", "model.own.parametrizations.weight.append(new_module(Symmetric))"),
        ("OldNorms", "model.weighted.register_forward_pre_hook(new(WeightNorm,"),
    ],
)
def test_its_script_builds_the_module(
    unusual_modules: ModuleType, tmp_path: Path, prover: Prove, name: str, line: str, is_saved: bool
) -> None:
    torch.manual_seed(0)
    cls = getattr(unusual_modules, name)
    module, x = cls(), torch.randn(3, 4)
    with torch.no_grad():
        module(x)
    expected = {name: tensor.clone() for name, tensor in module.eval().state_dict().items() if not is_lazy(tensor)}
    case = module_case(
        module,
        (x,),
        {},
        fault_at(cls, "print(", type=PRINT),
        backend="eager",
        tensor_file=tmp_path / "tensors.safetensors" if is_saved else None,
    )
    repro, runs = prover([case], tmp_path)
    text = (tmp_path / repro.path).read_text()
    assert repro.verified, runs[-1].tail
    assert line in text and "unusual_modules" not in text
    assert not case.notes

    made, _, _ = run_make(text, tmp_path)
    assert list(made.state_dict()) == list(module.state_dict())
    assert len(list(made.parameters())) == len(list(module.parameters())), "what is shared is shared there, too"
    assert [p.requires_grad for p in made.parameters()] == [p.requires_grad for p in module.parameters()]
    if is_saved:
        state = made.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())


def is_lazy(tensor: torch.Tensor) -> bool:
    return bool(torch.nn.parameter.is_lazy(tensor))


def run_make(text: str, folder: Path) -> tuple[torch.nn.Module, tuple[object, ...], dict[str, object]]:
    """Have a script make its model here."""
    names = {"__name__": "script", "__file__": str(folder / "repro_F1.py")}
    hook = "sys.excepthook = unforeseen"
    assert hook in text
    exec(compile(text.replace(hook, ""), "script", "exec"), names)
    made: tuple[torch.nn.Module, tuple[object, ...], dict[str, object]] = names["make"]("cpu")  # type: ignore[operator]
    return made


def test_a_parametrised_module_is_looked_at_without_changing_it() -> None:
    torch.manual_seed(0)
    module = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 4))  # each use improves its estimate
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    plain = before_parametrisation(module)
    assert type(plain) is torch.nn.Linear and list(plain.state_dict()) == ["weight", "bias"]
    assert plain.bias is module.bias
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert list(computed_tensors(module)) == ["weight"] and not computed_tensors(plain)
