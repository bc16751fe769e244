from __future__ import annotations

import ast

import pytest

from compilebisect.repro.check_part import is_check, kept_lines, may_read_garbage, model_lines, with_joined_move


@pytest.mark.parametrize(
    "text",
    [
        "def anything(model):\n    return torch.compile(model)",
        "def leave():\n    sys.exit(1)",
        "def end():\n    raise SystemExit(1)",
        "sys.excepthook = unforeseen",
        "if __name__ == '__main__':\n    main()",
        "@torch.library.custom_op('a::b', mutates_args=())\ndef b(x: torch.Tensor) -> torch.Tensor:\n    return x",
        "@b.register_fake\ndef _(x):\n    return x",
        "@triton.jit\ndef kernel(x):\n    pass",
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
        "@functools.cache\ndef half(size):\n    return size // 2",
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


SCRIPT = """import os
import sys
import torch
import torch.nn as nn

def verdict(status, observed):
    os._exit(status)

sys.excepthook = print

@torch.library.custom_op("a::b", mutates_args=())
def b(x):
    return x.clone()

class Net(nn.Module):
    def forward(self, x):
        return b(x)  # once

def make(device):
    # the model
    model = Net()
    model.to(device)
    return model, (torch.randn(2, device=device),), {}

DEADLINE_S = 60

def main(device):
    torch.compile(make(device)[0])

if __name__ == "__main__":
    main(sys.argv[-1])
"""


def test_the_model_its_operators_and_what_they_import_count_as_lines_of_the_model() -> None:
    assert model_lines(SCRIPT) == 2 + 3 + 3 + 4
    assert model_lines(SCRIPT.replace("x.clone()", "os.fspath(x)")) == 3 + 3 + 3 + 4


def test_a_model_is_moved_where_it_is_made_if_nothing_stands_between() -> None:
    joined = with_joined_move(SCRIPT)
    assert "    model = Net().to(device)\n    return model" in joined
    apart = SCRIPT.replace("    model.to(device)", "    model.gate = 1\n    model.to(device)")
    assert with_joined_move(apart) == apart


@pytest.mark.parametrize(
    ("before", "text", "is_garbage"),
    [
        ("x = torch.empty(4, device=device).uniform_(1.0, 4.0)", "x = torch.empty(4, device=device)", True),
        ("x = torch.empty(4).uniform_(1.0, 4.0)", "x = torch.empty(2).uniform_(1.0, 4.0)", False),
        ("y = torch.empty_like(x)\ny.fill_(1)", "y = torch.empty_like(x)", True),
        ("y = x.new_empty(x.shape[0])\ny[0] = 1", "y = x.new_empty(x.shape[0])\ny[0] = 1", False),
        ("y = torch.empty(2)\ntorch.ops.a.write(y)", "y = torch.empty(2)", True),
        ("y = torch.empty(2)\ny.fill_(1)", "y = torch.randn(2)", False),
    ],
)
def test_a_smaller_script_does_not_compare_memory_that_nothing_wrote(before: str, text: str, is_garbage: bool) -> None:
    assert may_read_garbage(text, before) is is_garbage
