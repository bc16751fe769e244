"""Modules whose attributes, children, parameters and classes have names that are none in Python, as scripts."""

from __future__ import annotations

import enum
import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from compilebisect.core.outcome import Fault, Kind
from compilebisect.repro.script import script_text, write_script
from compilebisect.runtime.module_source import module_case
from compilebisect.runtime.torch_names import NotNameable, name_of
from tests.hostile_texts import CODE, TEXTS

FAULT = Fault(kind=Kind.GRAPH_BREAK, type=f"a break\n{CODE}", message=f"x\n{CODE}")
# torch registers no child and no parameter under these, whatever a script does.
NOT_REGISTERED = ("", "a.b", "__init__", "__class__")


def made_again(module: torch.nn.Module, folder: Path, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return what the script of a module makes: the model, its arguments and its keyword arguments."""
    path = folder / "script.py"
    case = module_case(module, args, kwargs, FAULT, tensor_file=folder / "saved.safetensors")
    write_script(case, path)
    found = runpy.run_path(str(path))
    assert "EVIL" not in found
    return found["make"]("cpu")


class Held:
    pass


def without_surrogates(texts: tuple[str, ...]) -> list[str]:
    return [text for text in texts if "\udc80" not in text]  # no file of tensors can have such a key


def test_names_that_are_none_in_python_come_back(tmp_path: Path) -> None:
    held = Held()
    module = torch.nn.Module()
    module.forward = None
    for number, text in enumerate(without_surrogates(TEXTS)):
        vars(held)[text] = number
        if text in NOT_REGISTERED:
            continue
        module.add_module(f"m{text}".replace(".", ""), torch.nn.Linear(1, 1))
        if not hasattr(module, text) and "." not in text:
            kind = number % 4
            if kind == 0:
                module.add_module(text, torch.nn.ReLU())
            elif kind == 1:
                module.register_parameter(text, torch.nn.Parameter(torch.full((2,), 0.5 + number)))
            elif kind == 2:
                module.register_buffer(text, torch.full((2,), 0.5 + number))
            else:
                setattr(module, text, f"{text}{number}")
    module.held = held
    keywords = {text: number for number, text in enumerate(TEXTS)}
    model, args, kwargs = made_again(module, tmp_path, {text: [text] for text in TEXTS}, **keywords)
    assert [name for name, _ in model.named_modules()] == [name for name, _ in module.named_modules()]
    assert list(model.state_dict()) == list(module.state_dict())
    torch.testing.assert_close(model.state_dict(), module.state_dict(), rtol=0, atol=0)
    plain = {name: value for name, value in vars(module).items() if isinstance(value, str)}
    assert plain and plain == {name: value for name, value in vars(model).items() if isinstance(value, str)}
    assert vars(model.held) == vars(held)
    assert args == ({text: [text] for text in TEXTS},) and kwargs == keywords


def test_digits_of_other_scripts_and_digits_outside_of_lists_are_names(tmp_path: Path) -> None:
    module = torch.nn.Module()
    for name in ("0", "\u00b2", "\u0663", "00"):
        module.add_module(name, torch.nn.Sequential(torch.nn.Linear(1, 1)))
    module.get_submodule("0")[0].eval()
    module.add_module("listed", torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Dropout()]).eval())
    model, _, _ = made_again(module, tmp_path)
    assert [str(part) for part in model.modules()] == [str(part) for part in module.modules()]
    assert [part.training for part in model.modules()] == [part.training for part in module.modules()]


def test_a_class_whose_name_holds_a_line_is_told_in_one(tmp_path: Path) -> None:
    module = type(f"Net\n{CODE}", (torch.nn.Linear,), {})(1, 1)
    module.__class__.__qualname__ = module.__class__.__name__
    setattr(sys.modules[__name__], module.__class__.__name__, module.__class__)
    outer = torch.nn.Module()
    outer.inner = [torch.nn.ReLU()]
    case = module_case(outer, (), {}, FAULT, module_path=f"a\n{CODE}")
    text = script_text(case, script_dir=tmp_path)
    assert f"\n{CODE}" not in text
    with pytest.raises(NotNameable, match="no name in Python"):
        name_of(module.__class__)


def test_members_of_enumerations_are_named_or_made(tmp_path: Path) -> None:
    odd = enum.Enum("odd", {"a b": 1, "class": 2, "fine": 3}, module=__name__)
    flags = enum.IntFlag("flags", ["ONE", "TWO"], module=__name__)
    for cls in (odd, flags):
        setattr(sys.modules[__name__], cls.__name__, cls)
    texts = [name_of(member).text for member in (*odd, flags.ONE | flags.TWO, re.I | re.M)]
    assert texts == ['odd["a b"]', 'odd["class"]', "odd.fine", "flags(3)", "RegexFlag(10)"]
    assert name_of(torch.ops.aten.random.__getattr__("from")).text == 'getattr(torch.ops.aten.random, "from")'


def test_a_module_of_an_odd_name_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = types.ModuleType(f"odd\n{CODE}")
    monkeypatch.setitem(sys.modules, odd.__name__, odd)
    with pytest.raises(NotNameable):
        name_of(odd)
