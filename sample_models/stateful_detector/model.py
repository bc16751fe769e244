"""A detector of anomalies that keeps running statistics, drops features at random and refines in several steps."""

import torch
import torch.nn as nn


class ConvUnit(nn.Module):
    def __init__(self, channels_in, channels_out, stride=1):
        super().__init__()
        self.conv = nn.Conv1d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm1d(channels_out)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class RunningScale(nn.Module):
    """Divides by a running mean of the magnitude, which each call in training updates in place."""

    def __init__(self, channels, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("magnitude", torch.ones(channels, 1))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                seen = x.abs().mean(dim=(0, 2)).unsqueeze(1)
                self.magnitude.mul_(1 - self.momentum).add_(self.momentum * seen)
                self.updates += 1
        return x / (self.magnitude.clone() + 1e-3)


class Refine(nn.Module):
    """One step of refinement; the detector calls the same module several times."""

    def __init__(self, channels):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        return x + torch.tanh(self.mix(self.drop(x)))


class Encoder(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = ConvUnit(4, channels)
        self.second = ConvUnit(channels, channels, stride=2)

    def forward(self, x):
        return self.second(self.first(x))


class Detector(nn.Module):
    def __init__(self, channels=8, steps=3):
        super().__init__()
        self.steps = steps
        self.encoder = Encoder(channels)
        self.scale = RunningScale(channels)
        self.refine = Refine(channels)
        self.head = nn.Linear(channels, 2)

    def forward(self, signal):
        x = self.scale(self.encoder(signal))
        for _ in range(self.steps):
            x = self.refine(x)
        return self.head(x.mean(dim=2))
