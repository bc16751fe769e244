"""Modules that draw random numbers: other draws are no fault, and hide none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compilebisect.core.call import CallContext
from compilebisect.core.other_draws import DrawFigures, speaks_against
from compilebisect.runtime.compare import Comparison
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.reference import inputs_to_float64, to_float64
from compilebisect.runtime.rerun import GENERATED

TRAIN = CallContext(grad_mode="grad", training=True)


class Dropping(nn.Module):
    """Drops before a product; `more` numbers are drawn first, so that it drops other values."""

    def __init__(self, p: float = 0.3) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)
        self.p = p

    def forward(self, x: torch.Tensor, more: int = 0, p: float | None = None, scale: float = 1.0) -> torch.Tensor:
        if more:
            torch.rand(more)
        return self.linear(nn.functional.dropout(x, self.p if p is None else p, self.training)) * scale


def compared(**how: float) -> Comparison:
    torch.manual_seed(1)
    module, x = Dropping(), torch.randn(32, 8)
    return Oracle(module, (x,), {}, TRAIN, train=GENERATED).check(lambda x: module(x, **how))


def test_other_draws_are_noted_and_not_blamed() -> None:
    comparison = compared(more=3)
    assert comparison.is_equal
    assert any("it draws other random numbers than eager does" in note for note in comparison.notes)


@pytest.mark.parametrize(
    "how", [{"p": 0.0}, {"more": 3, "p": 0.7}, {"more": 3, "scale": 1.5}, {"more": 3, "p": 0.3, "scale": 0.0}]
)
def test_other_draws_excuse_neither_another_spread_nor_another_mean(how: dict[str, float]) -> None:
    assert not compared(**how).is_equal


def test_one_wrong_element_shows_among_other_draws() -> None:
    module, x = Dropping(), torch.randn(32, 8)

    def compiled(x: torch.Tensor) -> torch.Tensor:
        y = module(x, more=3)
        return y + torch.zeros_like(y).index_put_((torch.tensor(3), torch.tensor(5)), torch.tensor(40.0))

    assert not Oracle(module, (x,), {}, TRAIN, train=GENERATED).check(compiled).is_equal


def test_the_same_draws_are_held_to_rounding() -> None:
    module, x = Dropping(p=0.9), torch.randn(32, 8)
    assert not Oracle(module, (x,), {}, TRAIN).check(lambda x: module(x, scale=1.001)).is_equal


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d])
def test_the_float64_reference_drops_what_eager_drops(dtype: torch.dtype, kind: type[nn.Module]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.drop = nn.Conv2d(3, 8, 3), kind(0.4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(self.conv(x))

    module, x = Net().to(dtype), torch.randn(4, 3, 9, 9, dtype=dtype)
    torch.manual_seed(3)
    eager = module(x)
    twin = to_float64(module)
    (wide,), _ = inputs_to_float64((x,), {})
    torch.manual_seed(3)
    with twin.running():
        assert twin.module is not None
        exact = twin.module(wide)
    assert exact.dtype is torch.float64
    assert torch.equal(exact == 0, eager == 0)
    torch.testing.assert_close(exact.to(dtype), eager.detach(), rtol=0.05, atol=0.05, check_dtype=False)


def figures(**values: float) -> DrawFigures:
    usual = {"elements": 1000, "mean_t2": 1.2, "worst_t2": 20.0, "worst_place": 7, "spread": 1.0}
    return DrawFigures(**{**usual, **values})  # type: ignore[arg-type]


def test_what_one_batch_of_seeds_shows_has_to_come_again_in_the_same_way() -> None:
    assert not speaks_against(figures())
    assert speaks_against(figures(mean_t2=6.0)) and speaks_against(figures(mean_t2=float("nan")))
    assert speaks_against(figures(spread=2.5)) and not speaks_against(figures(spread=2.5, elements=9))
    assert not speaks_against(figures(mean_t2=6.0), figures())
    assert not speaks_against(figures(mean_t2=6.0), figures(spread=0.1))
    assert not speaks_against(figures(worst_t2=60.0), figures(worst_t2=60.0, worst_place=8))
    assert speaks_against(figures(worst_t2=60.0), figures(worst_t2=90.0))
    assert not speaks_against(figures(spread=0.3), figures(spread=3.0))
