"""Python expressions that name torch's and libraries' objects, preferring torch's public spelling."""

from __future__ import annotations

import enum
import functools
import importlib
import sys
import types
from typing import Any

import torch

from compilebisect.core.quoting import attribute_path, is_dotted_name, literal
from compilebisect.runtime.torch_internals import operator_name

# Where public spellings are looked for, best first.
_PUBLIC_SPACES = ("torch.nn.functional", "torch", "torch.linalg", "torch.fft", "torch.special", "torch.nn")


class NotNameable(Exception):
    """The object has no name under which another process could find it."""


class Name:
    """An expression and the import statement that makes it valid (empty where `import torch` does).

    `module` and `attribute` say where the object is defined, for objects that are not torch's.
    """

    def __init__(self, text: str, statement: str = "", *, module: str = "", attribute: str = "") -> None:
        self.text = text
        self.statement = statement
        self.module = module
        self.attribute = attribute


@functools.cache
def _public_names() -> dict[int, str]:
    names: dict[int, str] = {}
    for space in _PUBLIC_SPACES:
        for key, value in vars(importlib.import_module(space)).items():
            if not key.startswith("_") and (callable(value) or isinstance(value, type)):
                names.setdefault(id(value), f"{space}.{key}")
    return names


def name_of(value: Any) -> Name:
    """Return how another process names `value`: a function, class, method of a class, enum member or module.

    Raises:
        NotNameable: for lambdas, local functions and classes, and everything else that no module holds by name.
    """
    operator = operator_name(value)
    if operator:
        return Name(attribute_path(operator))
    if isinstance(value, types.ModuleType):
        return _name_of_module(value.__name__)
    if isinstance(value, enum.Enum):
        return _name_of_member(value)
    try:
        public = _public_names().get(id(value))
    except TypeError:
        public = None
    if public:
        return Name(public)
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
        what = qualname if isinstance(qualname, str) else f"an object of class {type(value).__qualname__}"
        raise NotNameable(f"{what} has no importable name")
    holder: Any = sys.modules.get(module)
    for part in qualname.split("."):
        holder = getattr(holder, part, None)
    if holder is not value:
        raise NotNameable(f"{module}.{qualname} is not the object that goes by that name")
    if not is_dotted_name(module) or not is_dotted_name(qualname):
        raise NotNameable(f"{module}.{qualname} is no name in Python")
    if module == "builtins":
        return Name(qualname)
    if (module == "torch" or module.startswith("torch.")) and not _is_covered(module):
        return Name(f"{module}.{qualname}", "" if _comes_with_torch(module) else f"import {module}")
    top = qualname.split(".")[0]
    return Name(qualname, f"from {module} import {top}", module=module, attribute=top)


def _name_of_member(value: enum.Enum) -> Name:
    cls = name_of(type(value))
    key = value.name
    if type(value).__members__.get(key) is value:
        text = f"{cls.text}.{key}" if is_dotted_name(key) else f"{cls.text}[{literal(key)}]"
    elif isinstance(value.value, int):  # several flags in one
        text = f"{cls.text}({int(value.value)})"
    else:
        raise NotNameable(f"{value!r} is no member of its class")
    return Name(text, cls.statement, module=cls.module, attribute=cls.attribute)


def _name_of_module(name: str) -> Name:
    if not is_dotted_name(name):
        raise NotNameable(f"{name} is no name in Python")
    return Name(name, "" if name == "torch" else f"import {name}", module=name)


def _is_covered(module: str) -> bool:
    """Return whether something else goes by the dotted name of a module, as the function `weight_norm` does."""
    holder: Any = torch
    for part in module.split(".")[1:]:
        holder = getattr(holder, part, None)
    return holder is not None and not isinstance(holder, types.ModuleType)


def _comes_with_torch(module: str) -> bool:
    return not module.startswith(("torch._inductor", "torch._dynamo", "torch.distributed", "torch.testing"))
