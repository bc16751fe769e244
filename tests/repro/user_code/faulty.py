from __future__ import annotations

import logging
import os
import time

import parts
import torch
import torch.nn.functional as F
from parts import BlockConfig, Side, chatty
from parts import shifted as moved
from torch import nn

log = logging.getLogger(__name__)
LIMIT = 3


class Base(nn.Module):
    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config

    def scaled(self, x):
        return x * self.config.gain


class PrintBreak(Base):
    """A block with all that a recipe has to carry along."""

    factor: float = 2.0

    def __init__(self, config: BlockConfig, not_known_later) -> None:
        super().__init__(config)
        self.body = nn.Sequential(nn.Linear(config.hidden, 8), nn.GELU(approximate="tanh"))
        self.norm = nn.LayerNorm(8)
        self.layers = nn.ModuleList([Inner(8) for _ in range(2)])
        self.layers[1].weight = self.layers[0].weight
        self.register_buffer("step", torch.zeros(1), persistent=False)
        self.act = F.gelu
        self.table = {"a": 1, "b": [1.5, float("inf")]}

    def never_used(self):
        return os.getpid()

    def forward(self, x, *, mask=None):
        x = self.norm(self.body(self.scaled(x)))
        x = moved(x) + parts.shifted(x) * LIMIT
        print("mean", x.mean(), self.table["b"][1])
        for layer in self.layers:
            x = layer(x)
        return self.act(x) if self.config.side is Side.LEFT else x


class Inner(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        return x @ self.weight


class HelperBreak(nn.Module):
    def forward(self, x):
        return chatty(x) * 2


class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x - 1


class ItemCall(nn.Module):
    def forward(self, x):
        return x * x.max().item()


class Rnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 4, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.rnn(x)[0]


class NoFakeKernel(nn.Module):
    def forward(self, x):
        return torch.ops.repro_tests.no_fake(x.relu()) + 1


class WrongFakeKernel(nn.Module):
    def forward(self, x):
        return torch.ops.repro_tests.wrong_fake(x.relu()) + 1


class AbortingFakeKernel(nn.Module):
    def forward(self, x):
        return torch.ops.repro_tests.aborting_fake(x) + 1


class HangingFakeKernel(nn.Module):
    def forward(self, x):
        return torch.ops.repro_tests.hanging_fake(x) + 1


class Relu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class OtherWhenCompiled(nn.Module):
    def forward(self, x):
        return x * 2 if torch.compiler.is_compiling() else x


class FailsWhenCompiled(nn.Module):
    def forward(self, x):
        x = F.gelu(x) * 2
        if torch.compiler.is_compiling():
            x = x.view(-1, 7)
        return x + 1


class LostMutation(nn.Module):
    def forward(self, x):
        y = F.dropout(x, 0.5, training=False)
        y += 1
        return y * 2


class WrongAtOneValue(nn.Module):
    def forward(self, x):
        shift = 1.0 if torch.compiler.is_compiling() else 0.0
        return torch.where(x == 12345.0, x + shift, x)


# The kernels of these operators are found by their registrations alone: nothing above names them.
library = torch.library.Library("repro_tests", "DEF")
for name in ("no_fake", "wrong_fake", "aborting_fake", "hanging_fake"):
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x.clone().contiguous(), "CPU")


@torch.library.register_fake("repro_tests::wrong_fake", lib=library)
def _wrong_fake(x):
    return x.new_empty(x.shape[0], x.shape[1] + 1)


@torch.library.register_fake("repro_tests::aborting_fake", lib=library)
def _aborting_fake(x):
    os.abort()


@torch.library.register_fake("repro_tests::hanging_fake", lib=library)
def _hanging_fake(x):
    time.sleep(3600)


class KeepsAll(nn.Module):
    """Keeps what it got in a list, and counts its calls in a buffer, which is fine."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.kept = []
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale=1.0):
        self.calls += 1
        y = self.linear(x) * scale
        self.kept.append(y)
        return torch.cat(self.kept, dim=0) + self.calls


class LoopsOverSize(nn.Module):
    def forward(self, x):
        total = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            total = total * 0.5 + x[:, step]
        return torch.relu(total)


class _WrongGradient(torch.autograd.Function):
    """Goes wrong when it is compiled, and only where the gradient that reaches it is 3."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        shift = 1.0 if torch.compiler.is_compiling() else 0.0
        return torch.where(grad == 3.0, grad + shift, grad) * 2


class WrongAtOneCotangent(nn.Module):
    """The first output takes no part in the loss that shows the fault."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        y = self.lin(x)
        return {"count": 3, "aside": y.sin(), "out": _WrongGradient.apply(y)}


def tripled(output):
    return output["out"].sum() * 3


class Season:
    """Equals nothing but itself."""


class CountsWrong(nn.Module):
    """Goes wrong in the third call of compiled code, and for inputs of more than six columns."""

    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += 1
        y = x.sin() * self.step
        if (self.step == 3 or x.shape[1] > 6) and torch.compiler.is_compiling():
            y = y + 1
        return y
