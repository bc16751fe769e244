"""A network on a mesh; its operator that sums over neighbours was registered without a fake kernel."""

import torch
import torch.nn as nn

library = torch.library.Library("mesh_ops", "DEF")
library.define("neighbour_sum(Tensor values, Tensor neighbours) -> Tensor")


def neighbour_sum(values, neighbours):
    """Sum of the values (nodes, dim) at the neighbours (nodes, degree) of each node."""
    return values[neighbours].sum(dim=1)


library.impl("neighbour_sum", neighbour_sum, "CPU")
library.impl("neighbour_sum", neighbour_sum, "CUDA")


class Gather(nn.Module):
    def forward(self, values, neighbours):
        return torch.ops.mesh_ops.neighbour_sum(values, neighbours)


class MeshLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.own = nn.Linear(dim, dim)
        self.gather = Gather()
        self.other = nn.Linear(dim, dim)
        self.act = nn.ELU()

    def forward(self, values, neighbours):
        return self.act(self.own(values) + self.other(self.gather(values, neighbours)))


class Processor(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = MeshLayer(dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, values, neighbours):
        return self.norm(values + self.layer(values, neighbours))


class MeshNet(nn.Module):
    def __init__(self, features=3, dim=8):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(features, dim), nn.ReLU())
        self.process = Processor(dim)
        self.decode = nn.Linear(dim, features)

    def forward(self, nodes, neighbours):
        return self.decode(self.process(self.encode(nodes), neighbours))
