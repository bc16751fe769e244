"""Function cases: the plain function that holds the line at fault becomes the script's model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import torch
from torch import nn

from compilebisect.core.outcome import Fault
from compilebisect.runtime.function_source import function_case
from compilebisect.runtime.module_source import CannotMakeCase
from tests.repro.faults import ITEM, PRINT, fault_at
from tests.repro.proving import Prove
from tests.repro.test_module_cases import made
from tests.repro.test_module_cases_run import proved

LIBRARY = '''
import os
import typing
from helping_library_parts import halve

LIMIT = 0.5


@typing.overload
def check(module, x: None, *, times=1) -> None: ...


def check(module, x, *, times=1):
    """Part of a large library."""
    x = halve(x) * LIMIT * times
    peak = x.max().item()
    return os.fspath("") or x / peak


class Settings:
    def __init__(self, scale):
        self.scale = scale
        self.lock = __import__("threading").Lock()

    def scaled(self, x):
        """Part of a large library, too."""
        peak = x.max().item() * self.scale
        return self.elsewhere(peak)


def flexible(*args):
    return args[0].max().item()
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of an installed library."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "helping_library.py").write_text(LIBRARY, encoding="utf-8")
    (folder / "helping_library_parts.py").write_text("def halve(x):\n    return x / 2\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("helping_library")
    for name in ("helping_library", "helping_library_parts"):
        monkeypatch.delitem(sys.modules, name)


def fault_in(function: object, text: str, type: str) -> Fault:
    fault = fault_at(function, text, type=type)
    frame = msgspec.structs.replace(fault.frames[0], function=getattr(function, "__name__", ""))
    return msgspec.structs.replace(fault, frames=(frame,), location=frame)


def running(module: nn.Module, *args: torch.Tensor) -> Callable[[], object]:
    return lambda: module(*args)


def test_a_function_of_the_user_is_called_with_what_it_got(faulty: ModuleType, tmp_path: Path, prover: Prove) -> None:
    fault = fault_in(importlib.import_module("parts").chatty, "print(", PRINT)
    case = function_case(running(faulty.HelperBreak(), torch.randn(2, 3)), fault, module_class="HelperBreak")
    repro, _ = proved(prover, [case], tmp_path)
    text = (tmp_path / repro.path).read_text()
    assert "class Repro(torch.nn.Module):" in text
    assert "HelperBreak(" not in text


def test_a_function_of_a_library_is_taken_along_and_a_module_among_its_arguments_is_left_empty(
    library: ModuleType,
) -> None:
    class User(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return library.check(self, x, times=3)

    fault = fault_in(library.check, ".item()", ITEM)
    x = torch.randn(2, 3)
    model, args, _, text = made(function_case(running(User(), x), fault))
    assert "from helping_library import" not in text
    assert "from helping_library_parts import halve" in text
    assert "check(module=self, x=x, times=times)" in text
    assert "peak = x.max().item()" in text and "fspath" not in text  # nothing after the line at fault
    assert "overload" not in text
    assert type(model).__name__ == "Repro"
    assert [arg.shape if isinstance(arg, torch.Tensor) else arg for arg in args] == [x.shape, 3]


def test_a_method_of_an_object_becomes_a_function_and_the_object_a_stand_in(
    library: ModuleType, tmp_path: Path, prover: Prove
) -> None:
    settings = library.Settings(3)

    class User(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return settings.scaled(x)

    fault = fault_in(library.Settings.scaled, ".item()", ITEM)
    x = torch.randn(2, 3)
    case = function_case(running(User(), x), fault)
    _, args, _, text = made(case)
    assert "class Settings" not in text and "lock" not in text and "elsewhere" not in text
    assert "return scaled(self=self_, x=x)" in text
    assert args[0].scale == 3 and args[1].shape == x.shape
    proved(prover, [case], tmp_path)


def test_what_is_no_plain_function_or_is_not_called_makes_no_case(library: ModuleType, faulty: ModuleType) -> None:
    calm = running(nn.Identity(), torch.randn(2))
    with pytest.raises(CannotMakeCase, match="not called"):
        function_case(calm, fault_in(library.check, ".item()", ITEM))
    with pytest.raises(CannotMakeCase, match="any number"):
        function_case(calm, fault_in(library.flexible, ".item()", ITEM))
    with pytest.raises(CannotMakeCase, match="no function of its own"):
        function_case(calm, fault_in(faulty.ItemCall.forward, ".item()", ITEM))
