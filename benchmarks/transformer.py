"""A healthy transformer of equal blocks, in any depth and width, for the measurements."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    """Causal attention with `heads` heads."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        """Map (batch, length, dim) to the same shape."""
        batch, length, dim = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, dim))


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, dim, act):
        super().__init__()
        self.grow = nn.Linear(dim, 4 * dim)
        self.act = nn.ReLU() if act == "relu" else nn.GELU()
        self.shrink = nn.Linear(4 * dim, dim)

    def forward(self, x):
        """Map (batch, length, dim) to the same shape."""
        return self.shrink(self.act(self.grow(x)))


class Block(nn.Module):
    """One block with norms before its two parts."""

    def __init__(self, dim, heads, act):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, act)

    def forward(self, x):
        """Map (batch, length, dim) to the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Transformer(nn.Module):
    """Scores of the next token, (batch, length, vocabulary), for `ids` (batch, length)."""

    def __init__(self, blocks=12, dim=128, heads=4, vocabulary=1000, act="gelu"):
        super().__init__()
        self.words = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, act) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, ids):
        """Map (batch, length) to (batch, length, vocabulary)."""
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def whole_compile(blocks, device, act="gelu"):
    """Compile the whole model once and run it, as a user would; returns the seconds of the first call."""
    import time

    torch.manual_seed(0)
    model = Transformer(blocks=blocks, act=act).eval().to(device)
    ids = torch.randint(0, 1000, (2, 64), device=device)
    with torch.no_grad():
        model(ids)
        started = time.perf_counter()
        torch.compile(model)(ids)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    return time.perf_counter() - started
