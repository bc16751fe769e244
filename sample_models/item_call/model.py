"""A forecaster that scales each batch by its largest value, read back as a Python number."""

import torch
import torch.nn as nn


class History(nn.Module):
    def __init__(self, channels, dim):
        super().__init__()
        self.near = nn.Conv1d(channels, dim, 3, padding=1)
        self.far = nn.Conv1d(channels, dim, 3, padding=4, dilation=4)

    def forward(self, series):
        return torch.cat([self.near(series), self.far(series)], dim=1)


class PeakScale(nn.Module):
    def forward(self, x):
        peak = x.abs().max().item()
        return x / (peak + 1.0)


class Trend(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = PeakScale()
        self.line = nn.Linear(dim, dim)
        self.act = nn.Softplus()

    def forward(self, x):
        return self.act(self.line(self.scale(x)))


class Decoder(nn.Module):
    def __init__(self, dim, horizon):
        super().__init__()
        self.trend = Trend(dim)
        self.season = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, horizon)

    def forward(self, x):
        return self.out(self.trend(x) + torch.sin(self.season(x)))


class Forecaster(nn.Module):
    def __init__(self, channels=3, dim=8, horizon=5):
        super().__init__()
        self.history = History(channels, dim)
        self.decoder = Decoder(2 * dim, horizon)

    def forward(self, series):
        return self.decoder(self.history(series).mean(dim=2))
