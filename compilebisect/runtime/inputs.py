"""From an input spec, or a function of the user, to the arguments of the model's forward."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from compilebisect.core.input_spec import (
    CallLeaf,
    ConstantLeaf,
    DictLeaf,
    DimLeaf,
    FileLeaf,
    InputSpec,
    Leaf,
    SequenceLeaf,
    TensorLeaf,
)
from compilebisect.core.json_checks import child_path
from compilebisect.core.nearest import did_you_mean, quoted
from compilebisect.error_text import error_line, error_text
from compilebisect.errors import CannotTestError, CompilebisectError, SpecError, UsageError
from compilebisect.runtime.input_files import read_tensor_file
from compilebisect.runtime.input_tensors import make_tensor
from compilebisect.runtime.move_values import move_to_device
from compilebisect.runtime.seeded import seeded
from compilebisect.runtime.target import existing_file, import_user_file, lookup
from compilebisect.runtime.user_code import as_script, user_code

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def check_signature(spec: InputSpec, forward: Callable[..., Any]) -> None:
    """Check that `forward` takes the arguments of a spec and needs no others.

    Args:
        spec: the parsed spec.
        forward: the bound method; a callable without a readable signature is left to the eager run.

    Raises:
        SpecError: naming the parameters that there are.
    """
    try:
        parameters = list(inspect.signature(forward).parameters.values())
    except (ValueError, TypeError):
        return
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any_positional = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
    known = f"forward takes {quoted(p.name for p in parameters)}." if parameters else "forward takes no arguments."

    if len(spec.args) > len(positional) and not takes_any_positional:
        raise SpecError(
            f"forward takes {len(positional)} positional arguments, not {len(spec.args)}",
            where=spec.args[len(positional)].where,
            fix=known,
        )
    by_position = {p.name for p in positional[: len(spec.args)]}
    only_positional = {p.name for p in positional if p.kind is p.POSITIONAL_ONLY}
    for name, leaf in spec.kwargs.items():
        if name in by_position - only_positional:
            raise SpecError(f"{name!r} is given as a positional argument too", where=leaf.where, fix="Leave one out.")
        if name not in by_name and not takes_any_keyword:
            fix = known if name not in only_positional else f"{name!r} is positional only: move it into 'args'."
            raise SpecError(
                f"forward has no parameter {name!r}{did_you_mean(name, by_name)}", where=leaf.where, fix=fix
            )
    given = by_position | (spec.kwargs.keys() & set(by_name))
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.name not in given and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if missing:
        raise SpecError(f"forward needs {quoted(missing)}, which the spec does not give", where="kwargs", fix=known)


def build_inputs(
    spec: InputSpec,
    *,
    variant: int,
    device: torch.device | str,
    dtype: torch.dtype | None,
    spec_dir: str | Path,
    seed: int,
) -> Arguments:
    """Make the arguments of one variant.

    The values depend on `seed`, the leaf's place in the spec and its shape alone: not on the other leaves, the
    device, nor the global random states, which are left as they were. Functions of the user run with these seeded.

    Args:
        spec: the parsed spec.
        variant: counted from 0.
        device: where all tensors go that name no device of their own.
        dtype: the model's floating dtype, for tensors that name no dtype; None is torch's default dtype.
        spec_dir: the folder that files in the spec are relative to.
        seed: any integer.

    Raises:
        SpecError: a file or function is missing, or holds something else than the spec says.
        CannotTestError: a tensor cannot be made, or a function of the user fails.
    """
    build = _Build(
        dims=spec.dims_of_variant(variant),
        device=torch.device(device),
        dtype=dtype or torch.get_default_dtype(),
        spec_dir=Path(spec_dir),
        seed=seed,
    )
    args = tuple(build.leaf(leaf, child_path("args", index)) for index, leaf in enumerate(spec.args))
    return args, {name: build.leaf(leaf, child_path("kwargs", name)) for name, leaf in spec.kwargs.items()}


def load_inputs_function(text: str, *, device: torch.device | str, seed: int = 0) -> list[Arguments]:
    """Call the user's function of `--inputs` and return the arguments of each variant, moved to the device.

    Args:
        text: `FILE.py:FUNC`; the function returns `(args, kwargs)`, or a list of such pairs.
        device: where all tensors go.
        seed: of the global random states while the function runs; they are put back afterwards.

    Raises:
        UsageError: there is no such function, or it returns something else.
        CannotTestError: the function fails.
    """
    file, separator, name = text.rpartition(":")
    where = "--inputs"
    if not separator or not file or not name:
        raise UsageError(f"{text!r} does not name a function", where=where, fix="Write FILE.py:FUNC.")
    path = existing_file(file, UsageError, where=where)
    returned = _call_user_function(path, name, {}, UsageError, where, _derived_seed(seed, where))
    pairs = returned if isinstance(returned, list) else [returned]
    if not pairs:
        raise UsageError(f"{text!r} returns an empty list", where=where, fix="Return one pair (args, kwargs) or more.")
    return [_arguments(pair, text, where, torch.device(device)) for pair in pairs]


def _arguments(pair: Any, text: str, where: str, device: torch.device) -> Arguments:
    is_pair = isinstance(pair, tuple) and len(pair) == 2
    if not is_pair or not isinstance(pair[0], (tuple, list)) or not isinstance(pair[1], Mapping):
        raise UsageError(
            f"{text!r} returns {type(pair).__name__} where a pair (args, kwargs) is needed",
            where=where,
            fix="Return (args, kwargs), args being a tuple and kwargs a dict, or a list of such pairs.",
        )
    unnamed = next((key for key in pair[1] if not isinstance(key, str)), None)
    if unnamed is not None:
        raise UsageError(f"{text!r} returns the keyword {unnamed!r}, which is no string", where=where, fix="Rename it.")
    args, kwargs = move_to_device((tuple(pair[0]), dict(pair[1])), device)
    return args, kwargs


class _Build(msgspec.Struct, frozen=True, kw_only=True):
    """What the leaves of one variant are made with."""

    dims: dict[str, int]
    device: torch.device
    dtype: torch.dtype
    spec_dir: Path
    seed: int

    def leaf(self, leaf: Leaf, path: str) -> Any:
        """Make a leaf; `path` is its place in the long form, so that short forms give the same values."""
        if isinstance(leaf, TensorLeaf):
            generator = torch.Generator().manual_seed(_derived_seed(self.seed, path))
            return make_tensor(leaf, dims=self.dims, device=self.device, dtype=self.dtype, generator=generator)
        if isinstance(leaf, ConstantLeaf):
            return copy.deepcopy(leaf.value)
        if isinstance(leaf, DimLeaf):
            return self.dims[leaf.dim]
        if isinstance(leaf, DictLeaf):
            return {name: self.leaf(item, child_path(path, name)) for name, item in leaf.items.items()}
        if isinstance(leaf, SequenceLeaf):
            items = [self.leaf(item, child_path(path, index)) for index, item in enumerate(leaf.items)]
            return tuple(items) if leaf.is_tuple else items
        if isinstance(leaf, FileLeaf):
            where = child_path(leaf.where, "file")
            file = existing_file(str(self.spec_dir / leaf.file), SpecError, where=where)
            return move_to_device(read_tensor_file(file, leaf.key, leaf.where), self.device)
        return move_to_device(self._called(leaf, _derived_seed(self.seed, path)), self.device)

    def _called(self, leaf: CallLeaf, seed: int) -> Any:
        where = child_path(leaf.where, "call")
        file = existing_file(str(self.spec_dir / leaf.file), SpecError, where=where)
        kwargs = {
            name: self.dims[value.dim] if isinstance(value, DimLeaf) else copy.deepcopy(value)
            for name, value in leaf.kwargs.items()
        }
        return _call_user_function(file, leaf.function, kwargs, SpecError, where, seed)


def _derived_seed(seed: int, path: str) -> int:
    digest = hashlib.sha256(f"{seed}:{path}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _call_user_function(
    path: Path, name: str, kwargs: dict[str, Any], error: type[UsageError], where: str, seed: int
) -> Any:
    function = lookup(import_user_file(path, error, where=where), name, str(path), error, where=where)
    if not callable(function):
        raise error(f"{name!r} in {path.name!r} is no function", where=where, fix="Name a function.")
    _check_call(function, name, kwargs, error, where)

    def failed(exc: BaseException, trace: str) -> CompilebisectError:
        return CannotTestError(
            f"{name!r} in {path.name!r} fails: {error_line(exc)}",
            where=where,
            fix="Call it in Python to see the same.",
            detail=trace,
        )

    with user_code(failed), as_script(str(path)), seeded(seed):
        return function(**kwargs)


def _check_call(
    function: Callable[..., Any], name: str, kwargs: dict[str, Any], error: type[UsageError], where: str
) -> None:
    """Check that a function of the user takes exactly these keyword arguments."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(**kwargs)
    except TypeError as exc:
        fix = f"{name!r} takes {quoted(signature.parameters)}." if signature.parameters else f"{name!r} takes nothing."
        raise error(f"{name!r} cannot be called so: {error_text(exc)}", where=where, fix=fix) from exc
