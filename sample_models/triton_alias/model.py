"""A smoother of signals whose Triton kernel reads through one view what it wrote through another.

`before` and `after` share memory, shifted by one step. A compiler that gives the kernel a copy of one of them
breaks the recurrence. Needs a CUDA GPU.
"""

import torch
import torch.nn as nn

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without Triton
    triton = None

if triton is not None:

    @triton.jit
    def recur_kernel(before, after, x_pointer, steps, channels, keep, BLOCK: tl.constexpr):
        columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < channels
        for step in range(steps):
            place = step * channels + columns
            last = tl.load(before + place, mask=inside, other=0.0)
            x = tl.load(x_pointer + place, mask=inside, other=0.0)
            tl.store(after + place, keep * last + (1 - keep) * x, mask=inside)


class Recurrence(nn.Module):
    """Exponential moving average over the first dimension of `x` (steps, channels)."""

    def __init__(self, keep):
        super().__init__()
        self.keep = keep

    def forward(self, x):
        steps, channels = x.shape
        states = torch.zeros(steps + 1, channels, device=x.device, dtype=x.dtype)
        before, after = states[:-1], states[1:]
        recur_kernel[(triton.cdiv(channels, 32),)](before, after, x, steps, channels, self.keep, BLOCK=32)
        return after.clone()


class SmoothLayer(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.inner = nn.Linear(channels, channels)
        self.recurrence = Recurrence(0.8)
        self.outer = nn.Linear(channels, channels)

    def forward(self, x):
        return x + self.outer(torch.relu(self.recurrence(self.inner(x))))


class Stack(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.smooth = SmoothLayer(channels)

    def forward(self, x):
        return self.smooth(self.norm(x))


class Smoother(nn.Module):
    def __init__(self, features=4, channels=32):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(features, channels), nn.GELU())
        self.stack = Stack(channels)
        self.head = nn.Linear(channels, features)

    def forward(self, signal):
        return self.head(self.stack(self.encode(signal)))
