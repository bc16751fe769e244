"""Seeding of the global random states for the length of a call, so that user code draws the same numbers each time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's generators, and put them back as they were afterwards."""
    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    # asking a GPU for its state would start CUDA in a process that may not want it
    is_started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    devices = list(range(torch.cuda.device_count())) if is_started else []
    try:
        with torch.random.fork_rng(devices=devices):
            random.seed(seed)
            numpy.random.seed(seed % 2**32)
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed_all(seed)
            yield
    finally:
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)
