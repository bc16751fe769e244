"""Trimmed tracebacks: the user's frames and the exception stay, frames of torch and of this package go."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from compilebisect.errors import CannotTestError, CompilebisectError
from compilebisect.runtime.traceback_text import user_traceback
from compilebisect.runtime.user_code import user_code


def user_function(tmp_path: Path, text: str) -> Any:
    """Compile a function `f` of a user's file."""
    path = tmp_path / "users_file.py"
    path.write_text(text)
    module = types.ModuleType("users_file")
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module.f


def raised_by(function: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        function()
    return caught.value


def test_frames_of_torch_are_left_out(tmp_path: Path) -> None:
    text = "def f():\n    import torch\n    return torch.nn.Linear(2, 2)(torch.ones(3))\n"
    shown = user_traceback(raised_by(user_function(tmp_path, text)))
    assert shown.startswith("Traceback (most recent call last):")
    assert 'users_file.py", line 3, in f' in shown
    assert "torch.nn.Linear(2, 2)(torch.ones(3))" in shown
    assert "torch/nn/modules" not in shown
    assert shown.splitlines()[-1].startswith("RuntimeError: ")


def test_causes_are_kept_and_trimmed_alike(tmp_path: Path) -> None:
    text = (
        "import torch\ndef f():\n    try:\n        torch.nn.Linear(2, 2)(torch.ones(3))\n"
        "    except RuntimeError as error:\n        raise ValueError('mine') from error\n"
    )
    shown = user_traceback(raised_by(user_function(tmp_path, text)))
    assert "direct cause" in shown
    assert "torch/nn/modules" not in shown
    assert shown.endswith("ValueError: mine")


def test_exception_without_user_frames_stands_alone() -> None:
    error = raised_by(lambda: torch.nn.Linear(2, 2)(torch.ones(3)))
    while error.__traceback__ is not None and "torch" not in error.__traceback__.tb_frame.f_code.co_filename:
        error.__traceback__ = error.__traceback__.tb_next
    assert error.__traceback__ is not None, "frames of torch are left"
    shown = user_traceback(error)
    assert shown.startswith("RuntimeError: ")
    assert "Traceback" not in shown


def test_user_code_turns_what_it_raises_into_our_error() -> None:
    def made(exc: BaseException, trace: str) -> CompilebisectError:
        return CannotTestError(type(exc).__name__, detail=trace)

    for raised in (ValueError("x"), SystemExit(1), KeyboardInterrupt()):  # a worker gets no Ctrl-C of the user's
        with pytest.raises(CannotTestError, match=type(raised).__name__), user_code(made):
            raise raised
    own = CannotTestError("own")
    with pytest.raises(CannotTestError) as caught, user_code(made):
        raise own
    assert caught.value is own


def test_trimming_leaves_the_exception_as_it_was(tmp_path: Path) -> None:
    error = raised_by(user_function(tmp_path, "def f():\n    return {}['a']\n"))
    before = error.__traceback__
    user_traceback(error)
    assert error.__traceback__ is before
    assert sys.exc_info()[0] is None
