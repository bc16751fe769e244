"""A streaming speech recogniser whose context layer keeps every chunk that it ever heard."""

import torch
import torch.nn as nn


class Frontend(nn.Module):
    def __init__(self, bands, dim):
        super().__init__()
        self.conv = nn.Conv1d(bands, dim, 3, padding=1)
        self.act = nn.GELU()

    def forward(self, spectrum):
        return self.act(self.conv(spectrum)).transpose(1, 2)


class Context(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.history = {"chunks": []}

    def forward(self, x):
        chunks = self.history["chunks"]
        chunks.append(self.key(x).detach())
        heard = torch.cat(chunks, dim=1)
        return torch.softmax(self.query(x) @ heard.transpose(1, 2), dim=-1) @ heard


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.context = Context(dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.out(self.context(self.norm(x)))


class Recognizer(nn.Module):
    def __init__(self, bands=8, dim=12, symbols=5):
        super().__init__()
        self.frontend = Frontend(bands, dim)
        self.encoder = Encoder(dim)
        self.head = nn.Linear(dim, symbols)

    def forward(self, spectrum):
        return self.head(self.encoder(self.frontend(spectrum)))
