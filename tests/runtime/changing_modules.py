"""A model of which several modules change what they read, so that each is compiled again in each call."""

from __future__ import annotations

import torch
from torch import nn


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return x * self.step


class History(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.past: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past.append(x.mean())
        return x + sum(self.past)


class Switch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.is_on = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.is_on = not self.is_on
        return x * 2 if self.is_on else x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counter, self.history, self.switch = Counter(), History(), Switch()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.switch(self.history(self.counter(x)))
