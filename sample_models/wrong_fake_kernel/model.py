"""A codec for sound; the fake kernel of its pooling operator promises one frame too many."""

import torch
import torch.nn as nn
import torch.nn.functional as F


@torch.library.custom_op("codec_ops::peak_pool", mutates_args=())
def peak_pool(signal: torch.Tensor, width: int) -> torch.Tensor:
    """Largest value of each full window of `signal` (batch, channels, length)."""
    return F.max_pool1d(signal, width)


@peak_pool.register_fake
def _(signal, width):
    batch, channels, length = signal.shape
    return signal.new_empty(batch, channels, -(-length // width))


class ConvStack(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv = nn.Conv1d(channels_in, channels_out, 5, padding=2)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x):
        return self.act(self.conv(x))


class PeakPool(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, x):
        return peak_pool(x, self.width)


class Squeeze(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.pool = PeakPool(width)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        return self.mix(self.pool(x))


class Codec(nn.Module):
    def __init__(self, channels=6, code=4, width=4):
        super().__init__()
        self.encoder = nn.Sequential(ConvStack(1, channels), Squeeze(channels, width))
        self.code = nn.Conv1d(channels, code, 1)
        self.decoder = ConvStack(code, channels)
        self.head = nn.Linear(channels, 2)

    def forward(self, sound):
        return self.head(self.decoder(self.code(self.encoder(sound))).mean(dim=2))
