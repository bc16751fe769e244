"""Faults as probes report them, for the modules in `user_code`."""

from __future__ import annotations

import inspect
from types import ModuleType

from compilebisect.core.outcome import Fault, Frame, Kind, Stage


def fault_at(source: object, text: str, **fields: object) -> Fault:
    """A fault of Dynamo at the first line of a function, class or module that contains `text`."""
    lines, first = inspect.getsourcelines(source)  # type: ignore[arg-type]
    number = next(index for index, line in enumerate(lines) if text in line)
    file = inspect.getsourcefile(source) or ""  # type: ignore[arg-type]
    offset = number if isinstance(source, ModuleType) else number + first - 1
    frame = Frame(file, offset + 1, "forward", lines[number].strip())
    values = {"kind": Kind.GRAPH_BREAK, "stage": Stage.DYNAMO, "frames": (frame,), "location": frame, **fields}
    return Fault(**values)  # type: ignore[arg-type]


PRINT = "Failed to trace builtin operator"
BRANCH = "Data-dependent branching"
ITEM = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
GRU = "Attempted to wrap RNN, GRU, or LSTM"
