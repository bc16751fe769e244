"""A point cloud tracker; of the four graph breaks in one loop of its matcher, torch.compile shows the first alone."""

import torch.nn as nn


class Lift(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Linear(3, dim)
        self.act = nn.GELU()

    def forward(self, points):
        return self.act(self.fc(points))


class Matcher(nn.Module):
    def __init__(self, dim, rounds):
        super().__init__()
        self.rounds = nn.ModuleList(nn.Linear(dim, dim) for _ in range(rounds))

    def forward(self, x):
        for number, layer in enumerate(self.rounds):
            scores = layer(x)
            print("round", number)
            if scores.mean() > 0:
                scores = scores - scores.mean()
            kept = (scores.abs() > 0.1).flatten().nonzero()
            x = x + scores * scores.abs().max().item() / kept.shape[0]
        return x


class Tracker(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.matcher = Matcher(dim, rounds=2)

    def forward(self, x):
        return self.matcher(self.norm(x))


class Cloud(nn.Module):
    def __init__(self, dim=8, classes=5):
        super().__init__()
        self.lift = Lift(dim)
        self.tracker = Tracker(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, points):
        return self.head(self.tracker(self.lift(points)).mean(dim=1))
