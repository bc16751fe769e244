"""The examples of the how-to on recompiles: what is said to be compiled again is, and what is said to mend it does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compilebisect.runtime.torch_internals import watch_compile

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "recompiles.md"
BLOCKS = dict(
    re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)


def compiles(make: type[nn.Module], calls: list[Any]) -> int:
    torch.compiler.reset()
    function = torch.compile(make(), backend="eager")
    with watch_compile() as watcher:
        for call in calls:
            function(*call) if isinstance(call, tuple) else function(call)
    return watcher.frames_compiled


def test_the_examples_are_found():
    assert set(BLOCKS) == {"Shape change", "Python number argument", "List length", "Changing attribute"}


@pytest.mark.parametrize("name", BLOCKS)
def test_before_is_compiled_in_each_call_and_after_is_not(name: str):
    names: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(compile(BLOCKS[name], str(PAGE), "exec"), names)
    calls = names["calls"]
    assert compiles(names["Before"], calls) == len(calls) == 4
    assert compiles(names["After"], names.get("calls_after", calls)) <= 2
