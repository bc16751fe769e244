"""Modules whose graphs hold more than plain operators; each fails from AOTAutograd on, since `turned` has a wrong fake
kernel: what follows is traced for another layout than the operator gives."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint


@torch.library.custom_op("unusual::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


@turned.register_fake
def _(x):
    return torch.empty_like(x)


turned.register_autograd(lambda ctx, grad: grad)


def flat(x):
    return turned(x).reshape(-1)


class Cond(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda t: flat(t) + 1, lambda t: flat(t) - 1, (x,))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return checkpoint(lambda t: flat(self.layer(t)), x, use_reentrant=False)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return flat(x * 2)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad.reshape(x.shape)


class OwnGradient(nn.Module):
    def forward(self, x):
        return Doubled.apply(x) + 1


class Loop(nn.Module):
    def forward(self, x):
        start = (torch.zeros((), dtype=torch.int64), x)
        return torch.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, flat(t).reshape(t.shape)), start)[1]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x):
        heads = x.reshape(1, 1, *x.shape)
        return flat(flex_attention(heads, heads, heads, score_mod=lambda s, b, h, q, k: s + self.bias[q])[0, 0])


class Several(nn.Module):
    def forward(self, x):
        y = flat(x)
        return {"whole": y, "part": y[2:6], "turned": x.mT, "size": x.shape[0]}


class Constants(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.table = torch.arange(4.0)

    def forward(self, x):
        return flat(x * self.scale + self.table + torch.tensor([0.5, 1.5, 2.5, 3.5]))


class Sized(nn.Module):
    def forward(self, x):
        return flat(x) / x.shape[0] + torch.arange(x.shape[0]).sum()
