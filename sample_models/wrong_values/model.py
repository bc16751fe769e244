"""A mixer for images whose activation has a kernel and, for graphs, a rule that gives other values."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode


@torch.library.custom_op("mixer_ops::quick_gelu", mutates_args=())
def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


@quick_gelu.register_fake
def _(x):
    return torch.empty_like(x)


@quick_gelu.register_torch_dispatch(ProxyTorchDispatchMode)
def _(mode, operator, types, args, kwargs):
    """What the operator becomes in a graph; the factor of quick_gelu is missing."""
    (x,) = args
    with mode:
        return x * torch.sigmoid(x)


class QuickGelu(nn.Module):
    def forward(self, x):
        return quick_gelu(x)


class TokenMix(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.grow = nn.Linear(tokens, 2 * tokens)
        self.shrink = nn.Linear(2 * tokens, tokens)

    def forward(self, x):
        return self.shrink(F.relu(self.grow(x.transpose(1, 2)))).transpose(1, 2)


class ChannelMix(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.grow = nn.Linear(dim, 2 * dim)
        self.act = QuickGelu()
        self.shrink = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return self.shrink(self.act(self.grow(x)))


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.tokens = TokenMix(tokens)
        self.channels = ChannelMix(dim)

    def forward(self, x):
        x = x + self.tokens(self.norm(x))
        return x + self.channels(x)


class ImageMixer(nn.Module):
    def __init__(self, dim=12, side=4, classes=5):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 4, stride=4)
        self.block = MixerBlock(side * side, dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, image):
        return self.head(self.block(self.stem(image).flatten(2).transpose(1, 2)).mean(dim=1))
