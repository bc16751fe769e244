"""A first input spec for a model, from the signature and type hints of its forward and from its first layers.

Run as `python -m compilebisect.runtime.starter_spec TARGET INIT ANSWER` it loads the target and writes the spec, or the
error, as JSON to the file ANSWER, where nothing that user code prints can mix with it.
"""

from __future__ import annotations

import inspect
import json
import sys
import typing
from pathlib import Path
from typing import Any

from torch import nn

from compilebisect.errors import CompilebisectError
from compilebisect.runtime.leaf_guess import guess_leaf
from compilebisect.runtime.target import build_target, locate_target, missing_init

# Small sizes, of which no two are alike, so that swapped dimensions show.
_DIM_VALUES = {"batch": 2, "seq": 16, "length": 64, "nodes": 20, "edges": 48}


def starter_spec(model_or_class: nn.Module | type[nn.Module]) -> dict[str, Any]:
    """Return a starter input spec, as JSON data.

    Parameters with a default are left out, unless nothing would be left to call the model with.

    Args:
        model_or_class: a model tells more than its class: sizes are taken from its first layers.
    """
    model = model_or_class if isinstance(model_or_class, nn.Module) else None
    hints = _hints(model_or_class.forward)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in _chosen(model_or_class):
        leaf = guess_leaf(parameter.name, hints.get(parameter.name, parameter.annotation), model)
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            args.append(leaf)
        else:
            kwargs[parameter.name] = leaf
    spec: dict[str, Any] = {"args": args} if args else {}
    if kwargs or not args:
        spec["kwargs"] = kwargs
    used = _names_in([*args, *kwargs.values()])
    dims = {name: [value] for name, value in _DIM_VALUES.items() if name in used}
    return {**spec, "dims": dims} if dims else spec


def _chosen(model_or_class: nn.Module | type[nn.Module]) -> list[inspect.Parameter]:
    """Return the parameters that the spec gives."""
    parameters = list(inspect.signature(model_or_class.forward).parameters.values())
    if isinstance(model_or_class, type):
        parameters = parameters[1:]
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p for p in named if p.default is p.empty]
    if required:
        return required
    rest = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    if rest:
        return rest
    return _main_inputs(model_or_class, named)


def _main_inputs(
    model_or_class: nn.Module | type[nn.Module], named: list[inspect.Parameter]
) -> list[inspect.Parameter]:
    """Choose among parameters that all have defaults: models of the transformers library name their main input."""
    main = getattr(model_or_class, "main_input_name", None)
    wanted = {main} if isinstance(main, str) else set()
    if getattr(getattr(model_or_class, "config", None), "is_encoder_decoder", False):
        wanted.add("decoder_input_ids")
    chosen = [p for p in named if p.name in wanted]
    return chosen or [p for p in named if p.default is None][:1]


def _hints(forward: Any) -> dict[str, Any]:
    """Return the type hints, none of them where one names something that is not there."""
    try:
        return typing.get_type_hints(forward)
    except (NameError, TypeError, AttributeError):
        return {}


def _names_in(leaf: Any) -> set[str]:
    if isinstance(leaf, str):
        return {leaf}
    if isinstance(leaf, dict):
        leaf = list(leaf.values())
    return set().union(*map(_names_in, leaf)) if isinstance(leaf, list) else set()


def left_out(model_or_class: nn.Module | type[nn.Module]) -> list[str]:
    """Return the parameters of forward that a starter spec leaves to their defaults."""
    chosen = {parameter.name for parameter in _chosen(model_or_class)}
    parameters = inspect.signature(model_or_class.forward).parameters.values()
    return [p.name for p in parameters if p.default is not p.empty and p.name not in chosen]


def _named_by(target: str, init: dict[str, Any]) -> nn.Module | type[nn.Module]:
    located = locate_target(target)
    value = located.value
    if isinstance(value, type) and issubclass(value, nn.Module) and not init and missing_init(value, init):
        return value  # it cannot be built without arguments, but its signature tells enough
    return build_target(located, init)


def main(arguments: list[str]) -> None:
    """Write the starter spec of TARGET, built with the JSON object INIT, to the file ANSWER."""
    target, init, answer = arguments
    try:
        found = _named_by(target, json.loads(init))
        result: dict[str, Any] = {"spec": starter_spec(found), "left_out": left_out(found)}
    except CompilebisectError as exc:
        data = {"what": exc.what, "where": exc.where, "fix": exc.fix, "detail": exc.detail}
        result = {"error": data, "exit_status": exc.exit_status}
    Path(answer).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
