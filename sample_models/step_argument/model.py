"""A denoiser that refines its estimate a number of times; the number is an argument."""

import torch.nn as nn


class Update(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.grow = nn.Linear(dim, 2 * dim)
        self.act = nn.SiLU()
        self.shrink = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return self.shrink(self.act(self.grow(self.norm(x))))


class Refine(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.update = Update(dim)

    def forward(self, x, steps):
        for _ in range(steps):
            x = x + self.update(x)
        return x


class Trunk(nn.Module):
    def __init__(self, features, dim):
        super().__init__()
        self.stem = nn.Linear(features, dim)
        self.refine = Refine(dim)

    def forward(self, x, steps):
        return self.refine(self.stem(x), steps)


class Denoiser(nn.Module):
    def __init__(self, features=6, dim=8):
        super().__init__()
        self.trunk = Trunk(features, dim)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, features))

    def forward(self, x, steps):
        return self.head(self.trunk(x, steps))
