"""A separator of voices: each part compiles well alone, only two of them side by side give other values.

The operator of `Limit` changes its input in place and does not say so. Eager has computed `presence` by then;
compiled code is free to compute it later, from what the operator left behind.
"""

import torch
import torch.nn as nn


@torch.library.custom_op("voice_ops::limit", mutates_args=())
def limit(x: torch.Tensor, ceiling: float) -> torch.Tensor:
    x.clamp_(-ceiling, ceiling)
    return x * 2.0


@limit.register_fake
def _(x, ceiling):
    return torch.empty_like(x)


class Presence(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * 1.5


class Limit(nn.Module):
    def __init__(self, ceiling):
        super().__init__()
        self.ceiling = ceiling

    def forward(self, x):
        return limit(x, self.ceiling)


class Blend(nn.Module):
    def __init__(self):
        super().__init__()
        self.presence = Presence()
        self.limit = Limit(0.2)

    def forward(self, x):
        presence = self.presence(x)
        return presence + self.limit(x)


class Voice(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, dim)
        self.blend = Blend()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(self.blend(self.proj(x)))


class Mask(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.voice = Voice(dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        return torch.softmax(self.out(self.voice(x)), dim=-1)


class Separator(nn.Module):
    def __init__(self, bins=10, dim=12):
        super().__init__()
        self.encode = nn.Linear(bins, dim)
        self.mask = Mask(dim)
        self.decode = nn.Linear(dim, bins)

    def forward(self, spectrum):
        code = self.encode(spectrum)
        return self.decode(code * self.mask(code))
