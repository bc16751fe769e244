"""A text classifier whose residual branches count their calls in a Python attribute."""

import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.transpose(1, 2) / x.shape[-1] ** 0.5, dim=-1)
        return self.out(weights @ v)


class WarmUp(nn.Module):
    """Scales its input up over the first calls."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        return x * min(self.seen / self.calls, 1.0)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = Attention(dim)
        self.warm_up = WarmUp(100)

    def forward(self, x):
        return x + self.warm_up(self.attention(self.norm(x)))


class Classifier(nn.Module):
    def __init__(self, vocab=40, dim=12, depth=2, classes=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))
