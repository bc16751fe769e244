"""Tensors from files that the input spec names. Nothing in a file is executed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch

from compilebisect.core.json_checks import child_path
from compilebisect.core.nearest import did_you_mean, quoted
from compilebisect.error_text import error_line
from compilebisect.errors import SpecError


def read_tensor_file(file: Path, key: str | None, where: str) -> Any:
    """Read a tensor, or the container of tensors that a `.pt` file holds where no key is given.

    Args:
        file: a `.pt`, `.pth`, `.safetensors` or `.npy` file.
        key: which tensor of the file.
        where: the JSON path of the leaf.

    Raises:
        SpecError: the file cannot be read, or holds no such tensor.
    """
    readers: dict[str, Callable[[Path, str | None, str], Any]] = {".safetensors": _read_safetensors, ".npy": _read_npy}
    return readers.get(file.suffix.lower(), _read_pt)(file, key, where)


def _read_pt(file: Path, key: str | None, where: str) -> Any:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as exc:
        raise _unreadable(
            file, where, exc, "Save plain tensors with torch.save: it is read with weights_only."
        ) from exc
    if key is None:
        return content
    if not isinstance(content, Mapping):
        raise SpecError(
            f"{file.name!r} holds a {type(content).__name__}, which has no keys",
            where=child_path(where, "key"),
            fix="Leave 'key' out.",
        )
    if key not in content:
        raise _no_such_key(file, key, (str(name) for name in content), where)
    return content[key]


def _read_safetensors(file: Path, key: str | None, where: str) -> torch.Tensor:
    try:
        with safetensors.safe_open(file, framework="pt", device="cpu") as tensors:
            names = list(tensors.keys())
            if key is None and len(names) != 1:
                raise SpecError(
                    f"{file.name!r} holds {len(names)} tensors", where=where, fix=f"Add a key: {quoted(names)}."
                )
            if key is not None and key not in names:
                raise _no_such_key(file, key, names, where)
            tensor: torch.Tensor = tensors.get_tensor(names[0] if key is None else key)
            return tensor
    except (safetensors.SafetensorError, OSError) as exc:
        raise _unreadable(file, where, exc, "Save it with safetensors.torch.save_file.") from exc


def _read_npy(file: Path, key: str | None, where: str) -> torch.Tensor:
    try:
        array = numpy.load(file, allow_pickle=False)
        return torch.from_numpy(numpy.ascontiguousarray(array).reshape(array.shape).copy())
    except (ValueError, OSError, EOFError, TypeError) as exc:
        raise _unreadable(file, where, exc, "Save an array of numbers with numpy.save.") from exc


def _unreadable(file: Path, where: str, exc: Exception, fix: str) -> SpecError:
    return SpecError(f"cannot read {file.name!r}: {error_line(exc)}", where=child_path(where, "file"), fix=fix)


def _no_such_key(file: Path, key: str, names: Iterable[str], where: str) -> SpecError:
    known = list(names)
    return SpecError(
        f"there is no {key!r} in {file.name!r}{did_you_mean(key, known)}",
        where=child_path(where, "key"),
        fix=f"There are: {quoted(known)}." if known else "The file is empty.",
    )
