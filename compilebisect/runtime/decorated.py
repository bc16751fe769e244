"""Functions with one of torch's decorators around them, or without the one that they have, to be tried as a cure."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

from compilebisect.core.break_cures import Decorator
from compilebisect.runtime import torch_internals

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def decorated(function: Any, decorator: Decorator) -> Callable[..., Any] | None:
    """Return a function that does what another one does, with a decorator or without it; that one stays as it is.

    None where this is no function, or does not have the decorator that is to be taken off.
    """
    if decorator.is_taken_off:
        return torch_internals.without_disable(function)
    if not isinstance(function, _FUNCTIONS):
        return None

    def call(*args: Any, **kwargs: Any) -> Any:  # torch keeps a list of what it was asked to leave alone
        return function(*args, **kwargs)

    new: Callable[..., Any] = named(decorator.name)(call)
    return new


def named(name: str) -> Any:
    """Return what a dotted name stands for; its first part is a module.

    Raises:
        ImportError: there is no such module.
        AttributeError: there is nothing of that name.
    """
    module, *attributes = name.split(".")
    value: Any = importlib.import_module(module)
    for attribute in attributes:
        value = getattr(value, attribute)
    return value
