"""A classifier of point clouds that clips outliers, but only where it finds some."""

import torch
import torch.nn as nn


class PointLayer(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.proj = nn.Linear(dim_in, dim_out)
        self.norm = nn.LayerNorm(dim_out)

    def forward(self, points):
        return torch.relu(self.norm(self.proj(points)))


class OutlierClip(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def forward(self, points):
        if points.abs().max() > self.limit:
            points = points.clamp(-self.limit, self.limit)
        return points


class Stage(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = PointLayer(dim, dim)
        self.clip = OutlierClip(2.0)
        self.attend = nn.Linear(dim, 1)

    def forward(self, points):
        points = self.clip(self.layer(points))
        return points * torch.softmax(self.attend(points), dim=1)


class PointNet(nn.Module):
    def __init__(self, dim=16, classes=4):
        super().__init__()
        self.embed = PointLayer(3, dim)
        self.stage = Stage(dim)
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, classes))

    def forward(self, points):
        return self.head(self.stage(self.embed(points)).sum(dim=1))
