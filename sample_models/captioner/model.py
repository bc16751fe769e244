"""An image captioner: a small vision transformer reads the image, a text decoder attends to what it saw."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    """Multi-head attention of `x` over `context`, which is `x` itself unless given."""

    def __init__(self, dim, heads, causal=False):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def split(self, x):
        batch, length, dim = x.shape
        return x.view(batch, length, self.heads, dim // self.heads).transpose(1, 2)

    def forward(self, x, context=None):
        key, value = self.key_value(x if context is None else context).chunk(2, dim=-1)
        mixed = F.scaled_dot_product_attention(
            self.split(self.query(x)), self.split(key), self.split(value), is_causal=self.causal
        )
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.grow = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.shrink = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.shrink(self.act(self.grow(x)))


class EncoderBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class ImageEncoder(nn.Module):
    def __init__(self, dim, heads, depth, image_size, patch):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, stride=patch)
        self.position = nn.Parameter(torch.randn(1, (image_size // patch) ** 2, dim) * 0.02)
        self.blocks = nn.ModuleList(EncoderBlock(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class DecoderBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.self_attention = Attention(dim, heads, causal=True)
        self.norm2 = nn.LayerNorm(dim)
        self.cross_attention = Attention(dim, heads)
        self.norm3 = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim)

    def forward(self, x, seen):
        x = x + self.self_attention(self.norm1(x))
        x = x + self.cross_attention(self.norm2(x), seen)
        return x + self.feed_forward(self.norm3(x))


class TextDecoder(nn.Module):
    def __init__(self, vocabulary, dim, heads, depth, longest):
        super().__init__()
        self.words = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(longest, dim)
        self.blocks = nn.ModuleList(DecoderBlock(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, caption, seen):
        x = self.words(caption) + self.position(torch.arange(caption.shape[1], device=caption.device))
        for block in self.blocks:
            x = block(x, seen)
        return self.head(self.norm(x))


class Captioner(nn.Module):
    """Scores of the next word at each place of `caption` (batch, length), given `image` (batch, 3, side, side)."""

    def __init__(self, vocabulary=500, dim=64, heads=4, depth=3, image_size=32, patch=8, longest=32):
        super().__init__()
        self.encoder = ImageEncoder(dim, heads, depth, image_size, patch)
        self.decoder = TextDecoder(vocabulary, dim, heads, depth, longest)

    def forward(self, image, caption):
        return self.decoder(caption, self.encoder(image))
