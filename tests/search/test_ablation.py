"""The lines that say with which backends a script shows its fault."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from compilebisect.core.outcome import Fault, Kind, Stage
from compilebisect.repro.verify import ScriptEnd
from compilebisect.runtime.module_source import module_case
from compilebisect.search.ablation import ablation_lines

SHOWN = 'FAULT SHOWN: expected the results of eager mode; observed divergence "values"; torch 2.13.0'
GONE = "FAULT GONE: expected the results of eager mode; observed the same; torch 2.13.0"


class OnlyInductorFails:
    """Stands in for the runner of scripts: this one needs its tensors, and fails in Inductor alone."""

    def run(self, path: Path, *, timeout_s: float, environment: Mapping[str, str]) -> ScriptEnd:
        if path.with_suffix(".safetensors").read_bytes() != b"tensors":
            return ScriptEnd(125, "no tensors", 0.1)
        is_faulty = 'backend="inductor"' in path.read_text()
        return ScriptEnd(1, SHOWN, 0.1) if is_faulty else ScriptEnd(0, GONE, 0.1)


def test_a_script_with_tensors_has_them_with_each_backend(tmp_path: Path) -> None:
    script = tmp_path / "early_1.py"
    script.write_text("torch.compile(model)(x)\n")
    script.with_suffix(".safetensors").write_bytes(b"tensors")
    case = module_case(nn.Linear(1, 1), (), {}, Fault(kind=Kind.DIVERGENCE, type="values", stage=Stage.INDUCTOR))
    backends, labels = ablation_lines(case, script, OnlyInductorFails(), environment={})  # type: ignore[arg-type]
    assert backends == "Backends: eager pass, aot_eager pass, aot_eager_decomp_partition pass, inductor FAIL"
    assert labels.endswith("module: inductor")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["early_1.py", "early_1.safetensors"]
