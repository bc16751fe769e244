"""A mixer for images whose activation has a fast kernel and, for compilers, a rule that gives other values."""

import torch
import torch.nn as nn
import torch.nn.functional as F

library = torch.library.Library("mixer_ops", "DEF")
library.define("quick_gelu(Tensor x) -> Tensor")


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def gelu_rule(x):
    """What the operator stands for in a compiled graph; the factor of quick_gelu is missing."""
    return x * torch.sigmoid(x)


library.impl("quick_gelu", quick_gelu, "CPU")
library.impl("quick_gelu", quick_gelu, "CUDA")
library.impl("quick_gelu", gelu_rule, "CompositeImplicitAutograd")


class QuickGelu(nn.Module):
    def forward(self, x):
        return torch.ops.mixer_ops.quick_gelu(x)


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
