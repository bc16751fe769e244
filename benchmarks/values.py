"""What the check of values costs: one probe of a module whose input is 1 GiB, with the check and without it.

    python benchmarks/values.py cuda [GIB]

Prints the seconds of both, each the median of some probes by turns after one that fills the caches, and how much of the
device's memory the probe took at most, in multiples of the input.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import msgspec
import torch
from torch import nn

from compilebisect.core.messages import CaptureOrder, ProbeOrder
from compilebisect.runtime.probe import probe
from compilebisect.runtime.session import Session
from compilebisect.settings import Settings

REPEATS = 3


class Normed(nn.Module):
    """A few operators whose outputs are as large as the input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape."""
        return nn.functional.gelu(self.norm(x)) + x


def main(device: str, gib: float) -> None:
    """Print one line with three numbers: seconds with the check, without it, and memory in multiples of the input."""
    side = int(math.sqrt(gib * 2**30 / 4) // 64 * 64)
    settings = Settings(target=f"{__file__}:Normed", spec={"x": [side, side]}, init={"size": side}, device=device)
    session = Session(settings)
    calls = session.describe().modules[0].calls
    with tempfile.TemporaryDirectory() as folder:
        session.capture(CaptureOrder(folder, {"": (0,)}))
        order = ProbeOrder(path="", folder=folder, calls=calls, backend="inductor")
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(1 + REPEATS):
            for is_checked in (True, False):
                started = time.perf_counter()
                seen, _ = probe(
                    session.model,
                    msgspec.structs.replace(order, compares_values=is_checked),
                    on_phase=lambda phase: None,
                    root_inputs=session.inputs,
                )
                if seen.faults or not seen.graphs:
                    raise RuntimeError(f"the model is not healthy: {seen}")
                if number:
                    seconds[is_checked].append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() / (4 * side * side) if device.startswith("cuda") else math.nan
    print(statistics.median(seconds[True]), statistics.median(seconds[False]), peak)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
