"""A keyword spotter; somebody left a print in the gate of its mixer."""

import torch
import torch.nn as nn


class Frontend(nn.Module):
    def __init__(self, bands, dim):
        super().__init__()
        self.conv = nn.Conv1d(bands, dim, 5, padding=2)
        self.act = nn.SiLU()

    def forward(self, spectrum):
        return self.act(self.conv(spectrum)).transpose(1, 2)


class Gate(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        openness = torch.sigmoid(self.proj(x))
        print("gate is open by", openness.shape)
        return x * openness


class Mixer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.gate = Gate(dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.out(self.gate(self.norm(x)))


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mixer = Mixer(dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(self.mixer(x))


class Spotter(nn.Module):
    def __init__(self, bands=10, dim=16, words=6):
        super().__init__()
        self.frontend = Frontend(bands, dim)
        self.encoder = Encoder(dim)
        self.head = nn.Linear(dim, words)

    def forward(self, spectrum):
        return self.head(self.encoder(self.frontend(spectrum)).mean(dim=1))
