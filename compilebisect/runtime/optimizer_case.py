"""Repro cases of an optimizer's step: its parameters with their gradients, and the optimizer that is made for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from compilebisect.core.outcome import Fault
from compilebisect.core.repro_case import Call, Items, Program, Ref, ReproCase, Statement
from compilebisect.error_text import error_text
from compilebisect.runtime.module_source import CannotMakeCase, environment
from compilebisect.runtime.optimizer import STEPS, OptimizerSteps
from compilebisect.runtime.tensor_source import TensorFile
from compilebisect.runtime.value_source import NotRebuildable, ValueBuilder


def optimizer_case(
    steps: OptimizerSteps,
    parameters: dict[str, torch.Tensor],
    gradients: dict[str, torch.Tensor],
    fault: Fault,
    *,
    device: str = "cpu",
    tensor_file: Path | None = None,
    **settings: Any,
) -> ReproCase:
    """Describe the parameters, their gradients and the optimizer as a program that stands alone.

    Args:
        steps: the optimizer.
        parameters: their golden values by name.
        gradients: their golden gradients by name.
        fault: what the script must show.
        device: the device that the fault was seen on.
        tensor_file: where to save all these; None gives them seeded numbers.
        settings: further fields of `ReproCase`.

    Raises:
        CannotMakeCase: where a value cannot be written down.
    """
    file = TensorFile(tensor_file) if tensor_file else None
    values = ValueBuilder(device=device, file=file)
    statements: list[Statement] = []
    weights: list[Ref] = []
    try:
        for number, (name, tensor) in enumerate(parameters.items()):
            weight = f"weight_{number}"
            parameter = torch.nn.Parameter(tensor)
            statements.append(Statement(weight, values.value(parameter, weight)))
            if name in gradients:
                statements.append(Statement(f"{weight}.grad", values.value(gradients[name], f"{weight}.grad")))
            weights.append(Ref(weight))
        options = tuple((name, values.value(value, name)) for name, value in steps.options.items())
    except NotRebuildable as error:
        raise CannotMakeCase(error_text(error)) from error
    made = Call(f"torch.optim.{steps.cls.__name__}", (Items("list", tuple(weights)),), options)
    settings.setdefault("environment", environment(device))
    is_saved = file is not None and file.write()
    return ReproCase(
        fault=fault,
        program=Program(statements=(*values.statements, *statements, Statement("model", made)), method="step"),
        imports=tuple(sorted(values.imports)),
        module_path="the optimizer",
        module_class=steps.cls.__name__,
        device=device,
        tensor_file=str(tensor_file) if is_saved else "",
        steps=STEPS,
        notes=tuple(values.notes),
        **settings,
    )
