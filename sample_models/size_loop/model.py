"""A sequence tagger: its decay filter walks over the sequence in a Python loop."""

import torch
import torch.nn as nn


class DecayFilter(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.full((dim,), 0.5))

    def forward(self, x):
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = self.decay * state + x[:, step]
            states.append(state)
        return torch.stack(states, dim=1)


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.filter = DecayFilter(dim)
        self.mix = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.mix(torch.tanh(self.filter(self.norm(x))))


class Tagger(nn.Module):
    def __init__(self, features=6, dim=10, tags=4, depth=2):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(features, dim), nn.GELU())
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.head = nn.Linear(dim, tags)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
