"""The last resort among repro cases: the user's own target builds the model, and the script calls a module of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from compilebisect.core.call import CallContext
from compilebisect.core.outcome import Fault
from compilebisect.core.repro_case import Call, Literal, Program, Ref, ReproCase, Statement, UserFile
from compilebisect.error_text import error_text
from compilebisect.runtime.import_file import name_of_file
from compilebisect.runtime.module_source import CannotMakeCase, call_arguments, environment, save_cotangents, save_state
from compilebisect.runtime.tensor_source import TensorFile
from compilebisect.runtime.user_files import is_user_module, user_file
from compilebisect.runtime.value_source import NotRebuildable, ValueBuilder
from compilebisect.runtime.values import tensors_in


def target_case(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    fault: Fault,
    *,
    target: str,
    init: Mapping[str, Any],
    module_path: str = "",
    context: CallContext | None = None,
    device: str = "cpu",
    method: str = "forward",
    tensor_file: Path | None = None,
    cotangents: Mapping[int, torch.Tensor] | None = None,
    **settings: Any,
) -> ReproCase:
    """Describe a call of a module that the user's own target builds: for what no other case shows.

    What an instance holds beside its state, such as hooks and what its constructor does elsewhere, is there as well.

    Args:
        target: `path/to/file.py:Name` or `package.module:Name`, imported before.
        init: keyword arguments of the target's class or function.
        module: the module in the target's model, for its state and its parameters' names.
        args: see `module_case`.
        kwargs: see `module_case`.
        fault: see `module_case`.
        module_path: see `module_case`.
        context: see `module_case`.
        device: see `module_case`.
        method: see `module_case`.
        tensor_file: see `module_case`.
        cotangents: see `module_case`.
        settings: see `module_case`.

    Raises:
        CannotMakeCase: where an argument cannot be rebuilt or the target cannot be imported by a name.
    """
    file = TensorFile(tensor_file) if tensor_file else None
    values = ValueBuilder(device=device, file=file)
    values.find_shared([tensor for _, tensor in tensors_in((args, kwargs))])
    source, _, name = target.rpartition(":")
    top = name.split(".")[0]
    imported = _imported_target(source, top)
    floats = {tensor.dtype for tensor in module.parameters() if tensor.is_floating_point()}
    statements = [Statement("model", Ref(name))]
    if not isinstance(_lookup(source, name), torch.nn.Module):
        made = tuple((key, values.value(item, "")) for key, item in init.items())
        statements = [Statement("model", Call(name, kwargs=made))]
    if module_path and not settings.get("in_place"):
        statements.append(Statement("model", Call("model.get_submodule", (Literal(repr(module_path)),))))
    if len(floats) == 1 and floats != {torch.float32}:
        statements.append(Statement("", Call("model.to", (Literal(str(floats.pop())),))))
    statements.append(Statement("", Call("model.train", (Literal(repr(module.training)),))))
    try:
        call_args, call_kwargs = call_arguments(values, module, method, args, kwargs)
        user_files: tuple[UserFile, ...] = ()
        if isinstance(imported, UserFile):
            user_files = (imported,)
        else:
            values.imports.add(imported)
        for home, attribute in sorted(values.user_names):
            found = user_file(home, (attribute,)) if is_user_module(home) else None
            if found is not None:
                user_files += (found,)
            else:
                values.imports.add(f"from {home} import {attribute}")
    except NotRebuildable as error:
        raise CannotMakeCase(error_text(error)) from error
    numbers = save_cotangents(cotangents, file)
    is_saved = save_state(module, file)
    settings.setdefault("environment", environment(device))
    return ReproCase(
        fault=fault,
        program=Program(
            statements=tuple(statements),
            arguments=tuple(values.statements),
            args=call_args,
            kwargs=call_kwargs,
            method=method,
        ),
        imports=tuple(sorted(values.imports)),
        user_files=user_files,
        module_path=module_path,
        module_class=type(module).__name__,
        device=device,
        context=context or CallContext(grad_mode="no_grad", training=module.training),
        tensor_file=str(tensor_file) if is_saved else "",
        state_saved=is_saved,
        cotangents=numbers,
        **settings,
    )


def _imported_target(source: str, name: str) -> UserFile | str:
    if not source.endswith(".py"):
        found = user_file(source, (name,)) if is_user_module(source) else None
        return found or f"from {source} import {name}"
    place = name_of_file(Path(source).resolve())
    found = user_file(place.module, (name,))
    if found is None:
        raise CannotMakeCase("the target's file has no name under which it can be imported")
    return found


def _lookup(source: str, name: str) -> Any:
    module = name_of_file(Path(source).resolve()).module if source.endswith(".py") else source
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
