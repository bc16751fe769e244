"""A self-distilling encoder: it makes its own targets without gradients, then is run again with them."""

import logging

import torch
import torch.nn as nn

logger = logging.getLogger(__name__)


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim)
        self.act = nn.GELU()

    def forward(self, x):
        return x + self.act(self.mix(self.norm(x)))


class Distiller(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.encoder = Encoder(dim)

    def forward(self, x):
        outputs = []
        for has_grad in (False, True):
            logger.debug("a pass, gradients: %s", has_grad)
            with torch.set_grad_enabled(has_grad):
                outputs.append(self.encoder(x))
        targets, outputs = outputs
        return outputs - targets.softmax(-1)


class Trunk(nn.Module):
    def __init__(self, features, dim):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(features, dim), nn.SiLU())
        self.distiller = Distiller(dim)

    def forward(self, x):
        return self.distiller(self.stem(x))


class Net(nn.Module):
    def __init__(self, features=6, dim=8):
        super().__init__()
        self.trunk = Trunk(features, dim)
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        return self.head(self.trunk(x))
