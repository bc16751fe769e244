from __future__ import annotations

import ast

import pytest

from compilebisect.repro.check_part import is_check


@pytest.mark.parametrize(
    "text",
    [
        "def anything(model):\n    return torch.compile(model)",
        "def leave():\n    sys.exit(1)",
        "def end():\n    raise SystemExit(1)",
        "sys.excepthook = unforeseen",
        "if __name__ == '__main__':\n    main()",
        "@torch.library.custom_op('a::b', mutates_args=())\ndef b(x: torch.Tensor) -> torch.Tensor:\n    return x",
        "lib = torch.library.Library('a', 'DEF')",
        "DEADLINE_S = 60",
        "def chain(error):\n    return [error]",
    ],
)
def test_what_compiles_judges_or_defines_an_operator_stays(text: str) -> None:
    assert is_check(ast.parse(text).body[0])


@pytest.mark.parametrize(
    "text",
    [
        "class Net(torch.nn.Module):\n    def forward(self, x):\n        return x.exit()",
        "def make(device):\n    return Net(), (torch.randn(2),), {}",
        "import torch",
        "SIZE = 4",
    ],
)
def test_the_rest_may_shrink(text: str) -> None:
    assert not is_check(ast.parse(text).body[0])
