"""Modules whose parameters are not simply there: made by the first call, shared by several modules, or computed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.LazyLinear(4)
        self.norm = nn.LazyBatchNorm1d()

    def forward(self, x):
        y = self.norm(self.proj(x))
        print("lazy")
        return y


class OwnLazy(nn.modules.lazy.LazyModuleMixin, nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.UninitializedParameter()
        self.scale = nn.Parameter(torch.ones(1))

    def initialize_parameters(self, x):
        if self.has_uninitialized_params():
            with torch.no_grad():
                self.weight.materialize((4, x.shape[-1]))
                self.weight.fill_(0.1)

    def forward(self, x):
        y = x @ self.weight.T * self.scale
        print("own lazy")
        return y


class PartlyCalled(nn.Module):
    """A part that is never called keeps parameters that nobody made."""

    def __init__(self):
        super().__init__()
        self.used = nn.LazyLinear(4)
        self.unused = nn.LazyLinear(4)

    def forward(self, x):
        y = self.used(x)
        print("partly called")
        return y


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.again = nn.ModuleList([self.head, nn.Linear(6, 4)])

    def forward(self, x):
        y = self.head(x) + self.again[0](x)
        print("tied")
        return self.again[1](y) @ self.embed.weight[:4].T


class Symmetric(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.shift = nn.Parameter(torch.ones(1))

    def forward(self, weight):
        return (weight + weight.T) * self.factor + self.shift

    def right_inverse(self, weight):
        return weight / (2 * self.factor)


class Parametrised(nn.Module):
    def __init__(self):
        super().__init__()
        self.weighted = parametrizations.weight_norm(nn.Linear(4, 4))
        self.spectral = parametrizations.spectral_norm(nn.Linear(4, 4))
        self.turned = parametrizations.orthogonal(nn.Linear(4, 4, bias=False))
        self.own = nn.Linear(4, 4)
        parametrize.register_parametrization(self.own, "weight", Symmetric(0.5))
        parametrize.register_parametrization(self.own, "weight", Symmetric(0.25))
        self.frozen = parametrizations.weight_norm(nn.Conv1d(4, 4, 1)).requires_grad_(False)

    def forward(self, x):
        y = self.own(self.turned(self.spectral(self.weighted(x))))
        y = self.frozen(y[..., None])[..., 0]
        print("parametrised")
        return y


class OldNorms(nn.Module):
    def __init__(self):
        super().__init__()
        self.weighted = nn.utils.weight_norm(nn.Linear(4, 4))
        self.spectral = nn.utils.spectral_norm(nn.Linear(4, 4))

    def forward(self, x):
        y = self.spectral(self.weighted(x))
        print("old norms")
        return y


def weight_norm_alone():
    return parametrizations.weight_norm(nn.Linear(4, 4))


class HeldInLists(nn.Module):
    """Parameters in lists and dicts, some of them those of other modules."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.weights = nn.ParameterList([self.proj.weight, nn.Parameter(torch.ones(4))])
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(4)), "bias": self.proj.bias})
        self.plain = [self.proj.bias]

    def forward(self, x):
        y = self.proj(x) @ self.weights[0] * self.weights[1] + self.named["shift"] + self.plain[0]
        print("held in lists")
        return y + self.named["bias"]


class OwnLazyUncalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.unused = OwnLazy()

    def forward(self, x):
        y = self.used(x)
        print("own lazy, not called")
        return y
