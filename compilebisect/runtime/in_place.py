"""The model with doors at some of its modules: what comes in and goes out there is part of what the model returns.

Behind a door is the module itself or what was compiled from it; all the rest of the model runs in eager mode.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from compilebisect.runtime import torch_internals
from compilebisect.runtime.describe import MAX_SIGNATURES
from compilebisect.runtime.observing import observe
from compilebisect.runtime.values import clone_value, flatten

#: Name of the way into a module that calling the module itself is.
CALL = "forward"
#: What stands behind the doors, by path and way in.
Compiled = Mapping[tuple[str, str], Callable[..., Any]]


class Door:
    """What is watched of one module: the numbers of its calls, and which of its other methods are ways in."""

    def __init__(self, path: str, calls: Collection[int] = (), methods: Collection[str] = ()) -> None:
        self.path = path
        self.calls = frozenset(calls) or frozenset(range(MAX_SIGNATURES))
        self.methods = tuple(methods)


class InPlace(nn.Module):
    """Calls a model and returns its `output`, and in `inside` one entry for each passage through a door.

    A passage holds the module's path, the way in, and copies of what came `in` and went `out`, in order of time.
    """

    def __init__(self, model: nn.Module, doors: Collection[Door]) -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # whoever sets this one's mode would set that of all modules below
        self._doors = tuple(doors)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Call the model with eager modules behind all doors."""
        return self.run({}, args, kwargs)

    def with_compiled(self, compiled: Compiled) -> Callable[..., dict[str, Any]]:
        """Return a function that calls the model with these behind their doors."""
        return lambda *args, **kwargs: self.run(compiled, args, kwargs)

    def compiled(self, path: str, **options: Any) -> dict[tuple[str, str], Callable[..., Any]]:
        """Compile the ways into the module at a door; `options` are those of `torch.compile`."""
        module = self.model.get_submodule(path)
        door = next(door for door in self._doors if door.path == path)
        functions: dict[tuple[str, str], Callable[..., Any]] = {(path, CALL): torch.compile(module, **options)}
        for name in _ways(module, door):
            functions[path, name] = torch.compile(getattr(module, name), **options)
        return functions

    def run(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Call the model."""
        inside: list[dict[str, Any]] = []
        with contextlib.ExitStack() as stack:
            for door in self._doors:
                stack.enter_context(_standing(self.model.get_submodule(door.path), door, compiled, inside))
            output = self.model(*args, **kwargs)
        return {"inside": inside, "output": output}


def _ways(module: nn.Module, door: Door) -> list[str]:
    """Return the names of the methods that can be replaced on an instance."""
    return [name for name in door.methods if isinstance(getattr(module, name, None), types.MethodType)]


# A door at which nothing is noted of any call.
_UNWATCHED = Door("", calls=(-1,))


def compiled_inside(module: nn.Module, inner: nn.Module, **options: Any) -> Callable[..., Any]:
    """Return a function that calls a module of which nothing but `inner`, somewhere below it, is compiled.

    `options` are those of `torch.compile`.
    """
    compiled = {("", CALL): torch.compile(inner, **options)}

    def call(*args: Any, **kwargs: Any) -> Any:
        with _standing(inner, _UNWATCHED, compiled, []):
            return module(*args, **kwargs)

    return call


def _has_stand_ins(value: Any) -> bool:
    return observe(lambda: any(torch_internals.is_stand_in(leaf) for _, leaf in flatten(value)), lambda why: False)


def _copy_of(value: Any) -> Any:
    return observe(lambda: clone_value(value), lambda why: f"<not captured: {why}>")


@contextlib.contextmanager
def _standing(module: nn.Module, door: Door, compiled: Compiled, inside: list[dict[str, Any]]) -> Iterator[None]:
    """Let everything that enters a module pass its door for a while."""
    ways: dict[str, Callable[..., Any]] = {name: getattr(module, name) for name in _ways(module, door)}
    count = 0

    def pass_through(way: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal count
        eager = module if way == CALL else ways[way]
        function = compiled.get((door.path, way), eager)
        number, count = count, count + 1
        take_down()  # what the module calls of its own is inside, and the compiler must not see the door
        try:
            if torch_internals.is_in_function_transform() or _has_stand_ins((args, kwargs)):
                return eager(*args, **kwargs)  # what is compiled inside an eager transform or trace is nobody's model
            if number not in door.calls:
                return function(*args, **kwargs)
            came = _copy_of((args, kwargs))
            output = function(*args, **kwargs)
            inside.append({"module": door.path, "way": way, "in": came, "out": _copy_of(output)})
            return output
        finally:
            put_up()

    def door_for(way: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: pass_through(way, args, kwargs)

    def put_up() -> None:
        torch_internals.replace_call(module, door_for(CALL))
        for name in ways:
            module.__dict__[name] = door_for(name)

    def take_down() -> None:
        torch_internals.replace_call(module, None)
        for name in ways:
            module.__dict__.pop(name, None)

    put_up()
    try:
        yield
    finally:
        take_down()
