"""A deep residual net whose layers know where they stand, and print it: torch gives up after eight of them."""

import torch.nn as nn


class Layer(nn.Module):
    def __init__(self, dim, index):
        super().__init__()
        self.index = index
        self.mix = nn.Linear(dim, dim)

    def forward(self, x):
        print("layer", self.index)
        return x + self.mix(x) / (self.index + 2)


class Net(nn.Module):
    def __init__(self, features=6, dim=8, depth=10):
        super().__init__()
        self.stem = nn.Linear(features, dim)
        self.layers = nn.ModuleList(Layer(dim, index) for index in range(depth))
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
