"""Small models to plant faults into. Each module has a class of its own, so a class names one place in the tree."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Up(nn.Linear):
    pass


class Gelu(nn.Module):
    def forward(self, x):
        return F.gelu(x)


class Down(nn.Linear):
    pass


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = Up(16, 24), Gelu(), Down(24, 16)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class MlpNet(nn.Module):
    """Two levels, with operators of the root's own."""

    def __init__(self):
        super().__init__()
        self.mlp = Mlp()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, x):
        return self.mlp(x) * self.gain


class Query(nn.Linear):
    pass


class Key(nn.Linear):
    pass


class Value(nn.Linear):
    pass


class Out(nn.Linear):
    pass


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = Query(16, 16), Key(16, 16, bias=False), Value(16, 16), Out(16, 16)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-1, -2) * 0.25
        return self.out(scores.softmax(-1) @ self.value(x))


class Norm(nn.LayerNorm):
    pass


class AttentionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = Norm(16), Attention()

    def forward(self, x):
        return self.attention(self.norm(x)) * 0.5


class Conv(nn.Conv2d):
    pass


class BatchNorm(nn.BatchNorm2d):
    pass


class Silu(nn.SiLU):
    pass


class GroupNorm(nn.GroupNorm):
    pass


class Pool(nn.AvgPool2d):
    pass


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.act = Conv(3, 8, 3, padding=1, bias=False), BatchNorm(8), Silu()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.pool, self.norm = Stem(), Pool(2), GroupNorm(2, 8)

    def forward(self, x):
        return self.norm(self.pool(self.stem(x)))


class Table(nn.Embedding):
    pass


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(-1, 1, 8 * 16).reshape(8, 16).sin())

    def forward(self, x):
        return x + self.table[: x.shape[1]]


class Head(nn.Linear):
    pass


class EmbeddingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.positions, self.head = Table(32, 16), Positions(), Head(16, 12)

    def forward(self, tokens):
        return self.head(self.positions(self.table(tokens)))


class FromInput(nn.Linear):
    pass


class FromState(nn.Linear):
    pass


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.from_input, self.from_state = FromInput(8, 24), FromState(12, 24)

    def forward(self, x, state):
        candidate, gate = (self.from_input(x) + self.from_state(state)).chunk(2, -1)
        gate = gate.sigmoid()
        return gate * candidate.tanh() + (1 - gate) * state


class RecurrentNet(nn.Module):
    """One cell that is called three times."""

    def __init__(self):
        super().__init__()
        self.cell = Cell()

    def forward(self, x):
        state = x.new_zeros(x.shape[0], 12)
        for step in range(3):
            state = self.cell(x[:, step], state)
        return state


class RunningMean(nn.Module):
    """Writes its buffer and reads it again."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.linspace(-1, 1, 16))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.detach().mean((0, 1)), alpha=0.1)
        return x - self.mean


class AddBias(nn.Module):
    """Writes its input."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-0.5, 0.5, 16))

    def forward(self, x):
        x += self.bias
        return x.tanh()


class Recorder(nn.Module):
    """Fills rows of a buffer that its caller reads."""

    def __init__(self):
        super().__init__()
        self.register_buffer("log", torch.zeros(4, 16))

    def forward(self, x):
        self.log[1].copy_(x.detach()[0, 0])
        self.log[2:] = x.detach()[0, :2]
        return x * 1.5


class StatefulNet(nn.Module):
    """Whatever leaves a module besides its output."""

    def __init__(self):
        super().__init__()
        self.mean, self.bias, self.recorder = RunningMean(), AddBias(), Recorder()

    def forward(self, x):
        y = self.mean(x)
        z = self.bias(y)
        return self.recorder(z) + y
