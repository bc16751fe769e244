"""A language model of four equal layers, each of which looks for the heads that are switched on."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class HeadPicker(nn.Module):
    """Scales the heads (batch, heads, length, dim) that the mask of the layer keeps."""

    def __init__(self, heads):
        super().__init__()
        self.register_buffer("keep", torch.ones(heads))

    def forward(self, x):
        kept = self.keep.nonzero().flatten()
        return torch.zeros_like(x).index_copy(1, kept, x.index_select(1, kept))


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.picker = HeadPicker(heads)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self.picker(F.scaled_dot_product_attention(query, key, value, is_causal=True))
        return self.out(mixed.transpose(1, 2).reshape(batch, length, dim))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp = nn.Linear(dim, dim)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + F.silu(self.mlp(x))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=64, dim=16, heads=2, depth=4):
        super().__init__()
        self.words = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
