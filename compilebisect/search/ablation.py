"""The table of backends in a script's head: which of them show the fault."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from compilebisect.core.outcome import Kind, Rung, Stage
from compilebisect.core.repro_case import ReproCase
from compilebisect.repro.script import place_code, with_deadline
from compilebisect.repro.verify import Proof, judge
from compilebisect.search.script_runner import HANG_S, ScriptRunner

_COMPILE = re.compile(r"torch\.compile\((\w[\w.]*)")
_LAST_HEAD_LINE = "# Exit status:"
# Labels of PyTorch's issue tracker.
_LABELS = {
    Stage.DYNAMO: "module: dynamo",
    Stage.AOT_AUTOGRAD: "module: aotdispatch",
    Stage.INDUCTOR: "module: inductor",
    Stage.TRITON: "module: inductor",
    Stage.CPP: "module: inductor",
    Stage.RUNTIME: "module: inductor",
}


def ablation_lines(case: ReproCase, script: Path, runner: ScriptRunner, *, environment: Mapping[str, str]) -> list[str]:
    """Run a script with each backend of the ladder, and return the lines for its head that say what was seen."""
    label = _LABELS.get(case.fault.stage) if case.fault.stage else None
    lines = [f"Labels: oncall: pt2, {label}"] if label else []
    if case.fault.shows_with_any_backend or case.backend != Rung.INDUCTOR.value:
        return lines
    text = with_deadline(script.read_text(encoding="utf-8"), HANG_S)
    tensors = script.with_suffix(".safetensors")
    seen = []
    for rung in Rung:
        trial = script.with_name(f".{script.stem}_{rung.value}.py")
        trial.write_text(_COMPILE.sub(rf'torch.compile(\1, backend="{rung.value}"', text), encoding="utf-8")
        linked = trial.with_suffix(".safetensors")  # a script finds its tensors by its own name
        try:
            if tensors.exists():
                linked.symlink_to(tensors.name)
            end = runner.run(trial, timeout_s=case.deadline_s + 60, environment=environment)
        finally:
            trial.unlink(missing_ok=True)
            linked.unlink(missing_ok=True)
        proof = judge(end, case.fault, place_code(case)).proof
        words = {Proof.SHOWN: "FAIL", Proof.GONE: "pass"}
        seen.append(f"{rung.value} {words.get(proof, proof.value)}")
        if case.fault.kind is Kind.TIMEOUT and proof is Proof.SHOWN:
            break  # each further rung would cost the whole deadline
    return [f"Backends: {', '.join(seen)}", *lines]


def with_head_lines(text: str, lines: list[str]) -> str:
    """Put lines into the comment at a script's head, before its last part."""
    head, mark, rest = text.partition(f"#\n{_LAST_HEAD_LINE}")
    return f"{head}{''.join(f'# {line}{chr(10)}' for line in lines)}{mark}{rest}" if mark else text
