"""A density model; an assert with a computed message checks the values of a tensor."""

import torch
import torch.nn as nn


class Coupling(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Linear(dim, dim)
        self.shift = nn.Linear(dim, dim)

    def forward(self, x):
        scale = torch.tanh(self.scale(x))
        assert scale.abs().max() <= 1, f"scale out of range: {scale.abs().max()}"
        return x * scale.exp() + self.shift(x)


class Flow(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.coupling = Coupling(dim)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.coupling(self.norm(x)))


class Density(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, dim), nn.ReLU())
        self.flow = Flow(dim)
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        return self.head(self.flow(self.stem(x)))
