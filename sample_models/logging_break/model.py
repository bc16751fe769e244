"""A recommender with feature crosses; the second cross logs the width of what it sees."""

import logging

import torch
import torch.nn as nn

log = logging.getLogger(__name__)


class Bottom(nn.Module):
    def __init__(self, features, dim):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, numbers):
        return self.layers(numbers)


class LinearCross(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Linear(dim, dim)

    def forward(self, x, base):
        return base * self.weight(x) + x


class LowRankCross(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim)

    def forward(self, x, base):
        code = self.down(x)
        log.warning("crossing %d features at rank %d", x.shape[1], code.shape[1])
        return base * self.up(code) + x


class Interaction(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.linear = LinearCross(dim)
        self.low_rank = LowRankCross(dim, rank)

    def forward(self, x):
        return self.low_rank(self.linear(x, x), x)


class Recommender(nn.Module):
    def __init__(self, features=5, users=40, dim=8, rank=3):
        super().__init__()
        self.bottom = Bottom(features, dim)
        self.user = nn.Embedding(users, dim)
        self.interaction = Interaction(2 * dim, rank)
        self.top = nn.Linear(2 * dim, 1)

    def forward(self, numbers, user):
        x = torch.cat([self.bottom(numbers), self.user(user)], dim=1)
        return self.top(self.interaction(x))
