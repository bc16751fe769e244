"""A network for finer images whose packing operator takes the process down when it is traced."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F


@torch.library.custom_op("sharpen_ops::pack", mutates_args=())
def pack(x: torch.Tensor) -> torch.Tensor:
    return F.pixel_shuffle(x, 2)


@pack.register_fake
def _(x):
    os.abort()


class Trunk(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.act = nn.PReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(self.act(self.conv1(x)))


class Pack(nn.Module):
    def forward(self, x):
        return pack(x)


class Upscale(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.grow = nn.Conv2d(channels, 4 * channels, 1)
        self.pack = Pack()

    def forward(self, x):
        return self.pack(self.grow(x))


class Tail(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.upscale = Upscale(channels)
        self.out = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x):
        return torch.tanh(self.out(self.upscale(x)))


class Sharpener(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.trunk = Trunk(channels)
        self.tail = Tail(channels)

    def forward(self, image):
        return self.tail(self.trunk(self.stem(image)))
