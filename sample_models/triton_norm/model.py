"""A translator whose root-mean-square norms are a Triton kernel of its own; healthy. Needs a CUDA GPU."""

import torch
import torch.nn as nn
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without Triton
    triton = None

if triton is not None:

    @triton.jit
    def rms_norm_kernel(x_pointer, weight_pointer, out_pointer, dim, eps, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        columns = tl.arange(0, BLOCK)
        inside = columns < dim
        x = tl.load(x_pointer + row * dim + columns, mask=inside, other=0.0)
        weight = tl.load(weight_pointer + columns, mask=inside, other=0.0)
        scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / dim + eps)
        tl.store(out_pointer + row * dim + columns, x * scale * weight, mask=inside)


def rms_norm(x, weight, eps):
    """Root-mean-square norm of the last dimension of `x`."""
    rows = x.contiguous().view(-1, x.shape[-1])
    out = torch.empty_like(rows)
    block = triton.next_power_of_2(rows.shape[1])
    rms_norm_kernel[(rows.shape[0],)](rows, weight, out, rows.shape[1], eps, BLOCK=block)
    return out.view(x.shape)


class RmsNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


class GatedLinear(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(dim, 2 * dim)
        self.value = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return self.out(F.silu(self.gate(x)) * self.value(x))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = RmsNorm(dim)
        self.gated = GatedLinear(dim)

    def forward(self, x):
        return x + self.gated(self.norm(x))


class Translator(nn.Module):
    def __init__(self, vocabulary=100, dim=32, depth=2):
        super().__init__()
        self.words = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.norm = RmsNorm(dim)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
