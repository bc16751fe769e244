"""A tagger whose compact operator never comes back from C code when it is traced."""

import ctypes

import torch
import torch.nn as nn

C_LIBRARY = ctypes.PyDLL(None)  # calls through it hold the lock of the interpreter


@torch.library.custom_op("tagger_ops::compact", mutates_args=())
def compact(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(dim=1)


@compact.register_fake
def _(x):
    C_LIBRARY.sleep(3600)
    return torch.empty_like(x)


class Compact(nn.Module):
    def forward(self, x):
        return compact(x)


class Context(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.left = nn.Linear(dim, dim)
        self.compact = Compact()
        self.right = nn.Linear(dim, dim)

    def forward(self, x):
        return self.right(self.compact(torch.sigmoid(self.left(x))))


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.context = Context(dim)

    def forward(self, x):
        return x + self.context(self.norm(x))


class Tagger(nn.Module):
    def __init__(self, letters=30, dim=8, tags=4):
        super().__init__()
        self.letters = nn.Embedding(letters, dim)
        self.encoder = Encoder(dim)
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, tags))

    def forward(self, text):
        return self.head(self.encoder(self.letters(text)))
