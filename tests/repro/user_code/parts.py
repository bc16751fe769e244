from dataclasses import dataclass
from enum import Enum

import torch

SCALE = 0.5


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


@dataclass
class BlockConfig:
    hidden: int
    gain: float = 2.0
    side: Side = Side.LEFT


def _half(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def shifted(x: torch.Tensor) -> torch.Tensor:
    return _half(x) + 1


def chatty(x: torch.Tensor) -> torch.Tensor:
    print("in the helper", x.mean())
    return x + 1
