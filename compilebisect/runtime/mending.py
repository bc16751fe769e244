"""Mending graph breaks for a look at what lies behind them: what breaks off is not run, and its value of the eager run
stands in for it. Of a mended module nothing but its further graph breaks is of interest.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from compilebisect.core.mended_source import Place, Site, callee_site, find_site, wider_site, with_replaced
from compilebisect.error_text import error_line, error_text
from compilebisect.runtime.attempt import attempt
from compilebisect.runtime.changed_code import CannotChange, changed_code, file_tree
from compilebisect.runtime.values import clone_value

# Names that the changed code reads as globals of the user's module.
_RECORD = "compilebisect_record"
_VALUES = "compilebisect_values"
# A tensor with more numbers is written as zeros of its shape.
_MOST_NUMBERS = 16
_CONSTANTS = (type(None), bool, int, float, str)
_LEAVES = (*_CONSTANTS, complex, torch.Size, torch.dtype, torch.device)


class CannotMend(Exception):
    """No value can stand in for what breaks off; the message says why."""


class Mend:
    """One expression, and the values that it had in the eager run, in order."""

    def __init__(self, file: str, site: Site) -> None:
        self.file = file
        self.site = site
        self.values: list[Any] = []

    @classmethod
    def at(cls, file: str, line: int, column: int | None, end_column: int | None) -> Mend:
        """Find the expression at which Dynamo breaks off.

        Raises:
            CannotMend: there is none, or the file cannot be read.
        """
        try:
            site = find_site(file_tree(file), Place(line, column, end_column))
        except CannotChange as error:
            raise CannotMend(error_text(error)) from error
        if site is None:
            raise CannotMend("it is no expression whose value could stand in for it")
        return cls(file, site)

    def wider(self) -> Mend:
        """Return the mend of the expression around this one.

        Raises:
            CannotMend: it is all of its statement.
        """
        site = wider_site(file_tree(self.file), self.site)
        if site is None:
            raise CannotMend("it breaks with a value in its place, too")
        return Mend(self.file, site)

    def callee(self) -> Mend | None:
        """Return the mend of what is called here, None where this is no call."""
        site = callee_site(file_tree(self.file), self.site)
        return None if site is None else Mend(self.file, site)

    @property
    def constant(self) -> ast.Constant | None:
        """The value as a constant, where it is the same plain one each time."""
        first = self.values[0]
        if type(first) in _CONSTANTS and all(type(v) is type(first) and v == first for v in self.values):
            return ast.Constant(first)
        return None

    @property
    def is_plain(self) -> bool:
        """Whether all values are numbers, texts and the like."""
        return all(isinstance(value, _LEAVES) for value in self.values)

    def text(self) -> str | None:
        """Return an expression that stands for the first value in a script, None where it takes too much."""
        return _text(self.values[0])

    def check(self) -> None:
        """Raise where no value can stand in.

        Raises:
            CannotMend: it was not run in eager mode, or gives what compiled code cannot be handed.
        """
        if not self.values:
            raise CannotMend("eager mode does not run it")
        for value in self.values:
            if not _can_stand_in(value):
                raise CannotMend(f"it gives a {type(value).__name__}, for which nothing can stand in")


def record_values(mends: Sequence[Mend], run: Callable[[], Any]) -> None:
    """Run in eager mode and keep what each expression gives.

    Raises:
        CannotMend: the code cannot be changed, or the run fails.
    """
    for mend in mends:
        mend.values = []

    def record(number: int, value: Any) -> Any:
        mend = mends[number]
        mend.values.append(bool(value) if mend.site.is_test else clone_value(value))
        return value

    def recording(number: int) -> Callable[[ast.expr], ast.expr]:
        return lambda node: ast.Call(ast.Name(_RECORD, ast.Load()), [ast.Constant(number), node], [])

    def run_recording() -> None:
        with _code_with(mends, recording, {_RECORD: record}):
            run()

    error = attempt(run_recording).error
    if isinstance(error, CannotChange):
        raise CannotMend(error_text(error)) from error
    if error is not None:
        raise CannotMend(f"eager mode fails: {error_line(error)}") from error


def is_run(watched: Mend, standing_in: Sequence[Mend], run: Callable[[], Any]) -> bool:
    """Run in eager mode with values in the place of some expressions, and return whether another one is run then."""
    seen = []

    def note(value: Any) -> Any:
        seen.append(True)
        return value

    def edit(number: int) -> Callable[[ast.expr], ast.expr]:
        if number == 0:
            return lambda node: ast.Call(ast.Name(_RECORD, ast.Load()), [node], [])
        return _standing_in(standing_in, number - 1)

    try:
        with _code_with([watched, *standing_in], edit, {_RECORD: note, **_names_of_values(standing_in)}):
            run()
    except Exception:  # noqa: BLE001 - the user's code without some of its parts: it did not get there
        return False
    return bool(seen)


@contextmanager
def mended(mends: Sequence[Mend]) -> Iterator[None]:
    """Let the recorded values stand in for what breaks off; for one run of what they were recorded from.

    Raises:
        CannotMend: the code cannot be changed.
    """
    try:
        with _code_with(mends, functools.partial(_standing_in, mends), _names_of_values(mends)):
            yield
    except CannotChange as error:
        raise CannotMend(error_text(error)) from error


def _names_of_values(mends: Sequence[Mend]) -> dict[str, Any]:
    return {f"{_VALUES}_{number}": clone_value(mend.values) for number, mend in enumerate(mends)}


def _standing_in(mends: Sequence[Mend], number: int) -> Callable[[ast.expr], ast.expr]:
    def replace(node: ast.expr) -> ast.expr:
        value: ast.expr | None = mends[number].constant
        if value is None:
            values = ast.Name(f"{_VALUES}_{number}", ast.Load())
            value = ast.Call(ast.Attribute(values, "pop", ast.Load()), [ast.Constant(0)], [])
        # The expression stays, unreached, so that the function has the same variables.
        return ast.IfExp(ast.Constant(True), value, node)

    return replace


@contextmanager
def _code_with(
    mends: Sequence[Mend], edit: Callable[[int], Callable[[ast.expr], ast.expr]], names: dict[str, Any]
) -> Iterator[None]:
    files = dict.fromkeys(mend.file for mend in mends)

    def change_of(file: str) -> Callable[[ast.Module], ast.Module]:
        edits = {mend.site: edit(number) for number, mend in enumerate(mends) if mend.file == file}
        return lambda tree: with_replaced(tree, edits)

    with changed_code({file: change_of(file) for file in files}, names):
        yield


def _can_stand_in(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)
        return is_plain and value.layout is torch.strided and not value.is_nested and not value.is_meta
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    if isinstance(value, _LEAVES):
        return True
    if type(value) is dict:
        return all(isinstance(key, _CONSTANTS) and _can_stand_in(item) for key, item in value.items())
    return isinstance(value, list | tuple) and all(map(_can_stand_in, value))


def _text(value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.Tensor):
        device = f', device="{value.device}"' if value.device.type != "cpu" else ""
        if value.numel() <= _MOST_NUMBERS and value.dtype in (torch.int64, torch.bool):
            return f"torch.tensor({value.tolist()}, dtype={value.dtype}{device})"
        return f"torch.zeros({list(value.shape)}, dtype={value.dtype}{device})"
    if type(value) in (list, tuple):
        texts = [_text(item) for item in value]
        if None in texts:
            return None
        inside = ", ".join(text for text in texts if text is not None)
        return f"[{inside}]" if type(value) is list else f"({inside}{',' if len(texts) == 1 else ''})"
    return repr(value) if type(value) in (*_CONSTANTS, torch.Size, torch.dtype) else None
