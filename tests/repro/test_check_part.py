from __future__ import annotations

import ast

import pytest

from compilebisect.repro.check_part import is_check, kept_lines


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
        "sys.path[:0] = [folder]",
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


def test_lines_that_find_files_devices_and_seeds_stay() -> None:
    text = (
        'saved = load_file(os.path.join(os.path.dirname(__file__), "x.safetensors"))\n'
        "model.to(device)\ntorch.manual_seed(0)\ny = 1\n"
    )
    first, second, third, _ = text.splitlines()
    assert kept_lines(text, "print(y)", keeps_seeds=True) == {first, second, third, "print(y)"}
    assert kept_lines(text, "", keeps_seeds=False) == {first, second}
