"""Modules some of whose tensors are computed by torch's parametrisations."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize

from compilebisect.runtime.state import StateSnapshot


def before_parametrisation(module: nn.Module) -> nn.Module:
    """Return a module of the original class that holds as plain tensors what is computed now.

    All else is the module's own. What its code for that raises gets through.
    """
    cls = parametrize.type_before_parametrizations(module)
    plain: nn.Module = object.__new__(cls)
    nn.Module.__init__(plain)
    plain.__dict__.update(
        {name: item for name, item in vars(module).items() if name not in ("_parameters", "_buffers", "_modules")}
    )
    for name, computing in computed_tensors(module).items():
        snapshot = StateSnapshot(computing)  # some keep an estimate that each use improves
        try:
            with torch.no_grad():
                tensor = getattr(module, name).detach()
        finally:
            snapshot.restore()
        if any(True for _ in computing.parameters(recurse=False)):
            plain.register_parameter(name, nn.Parameter(tensor))
        else:
            plain.register_buffer(name, tensor)
    plain._parameters.update(module._parameters)
    plain._buffers.update(module._buffers)
    return plain


def computed_tensors(module: nn.Module) -> dict[str, nn.Module]:
    """Return what computes tensors of a module, by their names; empty for most modules."""
    if not parametrize.is_parametrized(module):
        return {}
    return dict(module.get_submodule("parametrizations").named_children())
