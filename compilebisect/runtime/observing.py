"""Watching a run without touching it: whatever an observer does or meets, the run goes on as if nobody watched."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from compilebisect.attempt import attempt
from compilebisect.error_text import error_line, error_text
from compilebisect.runtime import torch_internals

P = ParamSpec("P")
_T = TypeVar("_T")


class NotObservedError(Exception):
    """A run could not be copied, kept or read for comparison: a fault of neither the module nor the compiler."""


def guarded(look: Callable[[], _T], otherwise: Callable[[str], _T]) -> _T:
    """Return what `look` does, or what `otherwise` makes of the reason why it could not be done."""
    ended = attempt(look)
    return ended.value if ended.error is None else otherwise(_reason(ended.error))


def observe(look: Callable[[], _T], otherwise: Callable[[str], _T], *, copies: bool = True) -> _T:
    """Do as `guarded` in the middle of a run that is to notice nothing of it.

    No modes of the user's see the operators of `look`. Where it `copies` values, which calls code of the user's, random
    numbers that this draws and warnings are kept from the run as well.
    """
    with torch_internals.outside_modes(), _without_traces() if copies else nullcontext():
        return guarded(look, otherwise)


def observed(what: str, look: Callable[P, _T], *args: P.args, **kwargs: P.kwargs) -> _T:
    """Call what watches a run, so that an exception tells that it comes from that and not from the run.

    Raises:
        NotObservedError: instead of whatever was raised; begins with `what`.
    """
    ended = attempt(look, *args, **kwargs)
    if ended.error is None:
        return ended.value
    if isinstance(ended.error, NotObservedError) or torch_internals.is_device_failure(ended.error):
        raise ended.error  # what the device tells late is the run's own
    raise NotObservedError(f"{what}: {error_line(ended.error)}") from ended.error


def _reason(error: BaseException) -> str:
    return error_text(error) if isinstance(error, NotObservedError) else error_line(error)


@contextmanager
def _without_traces() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = _random_states()
        try:
            yield
        finally:
            _set_random_states(before)


def _random_states() -> tuple[Any, ...]:
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_devices


def _set_random_states(states: tuple[Any, ...]) -> None:
    of_python, of_numpy, of_torch, on_devices = states
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    torch.set_rng_state(of_torch)
    if on_devices:
        torch.cuda.set_rng_state_all(on_devices)
