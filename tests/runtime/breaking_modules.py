"""Modules with several graph breaks, some behind others.

In a file of its own: pytest changes the code of tests, and only what runs as its file says can be mended.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import functools

import torch
from torch import nn


def threshold(limit):
    """A decorator whose function has a variable that nothing but its graph break reads."""

    def wrap(function):
        @functools.wraps(function)
        def limited(self, x):
            for _ in range(2):
                print("first")
                if x.sum() > limit:
                    x = x * 2
            return function(self, x)

        return limited

    return wrap


class InLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            print("a shape", x.shape)
            if x.sum() > 0:
                x = x * 2
            places = x.flatten().nonzero()
            x = x + x.max().item() + places.shape[0]
        return torch.relu(x)


class InWhile(nn.Module):
    def forward(self, x):
        while x.sum() < 100 and x.max().item() < 50:
            x = x * 2 + 1
        return x


class InTry(nn.Module):
    def forward(self, x):
        try:
            x = x + 1
            print("first")
            x = x * x.min().item()
        except ValueError:
            print("never")
        return x


class Decorated(nn.Module):
    @threshold(-100.0)
    def forward(self, x):
        return x + 1


class Mangled(nn.Module):
    def __scaled(self, x):
        for _ in range(1):
            print("first")
            x = x * x.mean().item()
        return x

    def forward(self, x):
        return self.__scaled(x)


class OnlyOne(nn.Module):
    """Behind its graph break all is well, though parts of it break for themselves once the function is given up."""

    def forward(self, x):
        for _ in range(2):
            print("only one")
        return sum(part * 2 for part in x.unbind()), [part + number for number, part in enumerate(x.unbind())]


class NoValue(nn.Module):
    """What breaks first has no value that could stand in for it."""

    def forward(self, x):
        for _ in range(2):
            with contextlib.redirect_stdout(None):
                x = x + 1
            print("behind it")
        return x


class Parent(nn.Module):
    """Its own break is hidden behind those of its children."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Child() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            x = x * x.amax().item()
        return x


class Child(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x):
        x = self.proj(x)
        print("in a child")
        return x


@torch.compiler.disable
def kept_out(x):
    return x.sigmoid() + 1


@torch.compiler.disable
def kept_out_for_a_reason(x):
    print("seen")
    return x.sigmoid() + 1


class KeptOut(nn.Module):
    def forward(self, x):
        x = kept_out(x * 2)
        x = kept_out_for_a_reason(x)
        return self.twice(x)

    @torch.compiler.disable
    def twice(self, x):
        return x * 2


class Copies(nn.Module):
    def forward(self, x):
        sizes = copy.copy([1, 2])
        return x * bisect.bisect(sizes, 1)


class CutBeforeGradient(nn.Module):
    """A print cuts the graph, so that what the gradient is taken of was made outside of the one that takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            loss = self.energy(x).sum()
            (slope,) = torch.autograd.grad(loss, self.weight)
        return slope

    def energy(self, x: torch.Tensor) -> torch.Tensor:
        energy = self.weight * x
        print("energy of", x.shape)
        return energy * 2


class CalledOnlyByTheBreak(nn.Module):
    """The second break is gone with the first one, but only because nothing gets to it any more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = self.count(x.sum().item())
        return x + n

    @torch.compiler.disable(recursive=False)
    def count(self, value: float) -> int:
        return self.inner(torch.tensor(value))

    def inner(self, value: torch.Tensor) -> int:
        print("inner", value.shape)
        return 3
