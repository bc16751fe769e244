"""Source cases: a module instance with its class's own source and the arguments of one call."""

from __future__ import annotations

import inspect
import keyword
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from compilebisect.core.break_evidence import mended_texts
from compilebisect.core.call import CallContext
from compilebisect.core.mended_source import with_values
from compilebisect.core.outcome import Fault
from compilebisect.core.quoting import is_name
from compilebisect.core.repro_case import Definition, Literal, Program, Ref, ReproCase, Statement, UserFile, Value
from compilebisect.error_text import error_text
from compilebisect.runtime.instance_source import InstanceBuilder
from compilebisect.runtime.source_extract import SourceExtractor
from compilebisect.runtime.source_file import NotExtractable
from compilebisect.runtime.tensor_source import TensorFile
from compilebisect.runtime.user_files import is_user_module, user_file
from compilebisect.runtime.value_source import NotRebuildable, ValueBuilder
from compilebisect.runtime.values import tensors_in

# Names that the script itself uses where the arguments are made.
_TAKEN = frozenset({"model", "device", "saved", "torch", "new", "new_module", "cast"})


class CannotMakeCase(Exception):
    """No script of this kind can be made; the message says why."""


def module_case(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    fault: Fault,
    *,
    module_path: str = "",
    context: CallContext | None = None,
    device: str = "cpu",
    method: str = "forward",
    tensor_file: Path | None = None,
    import_user_code: bool = False,
    further_calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = (),
    cotangents: Mapping[int, torch.Tensor] | None = None,
    **settings: Any,
) -> ReproCase:
    """Describe `module` and one call of it as a program that stands alone.

    Args:
        module: the instance, in the state that it has before the call.
        args: positional arguments of the call; they are not changed.
        kwargs: keyword arguments of the call.
        fault: what the script must show.
        module_path: where the module sits in the user's model.
        context: grad mode, autocast and training flag of the call.
        device: the device that the fault was seen on.
        method: the method that was called.
        tensor_file: where to save parameters, buffers and inputs; None gives all of them seeded numbers.
        import_user_code: take the classes from the user's files by import instead of by their source.
        further_calls: arguments and keyword arguments of calls that come after that one.
        cotangents: what the backward pass starts from, by the number of the output; only used with a file.
        settings: further fields of `ReproCase`, such as `backend`, `mode`, `dynamic`, `config`, `train`, `seed`.

    Raises:
        CannotMakeCase: where the instance, an argument or the source cannot be rebuilt.
    """
    file = TensorFile(tensor_file) if tensor_file else None
    values = ValueBuilder(device=device, file=file)
    values.find_shared(
        [*(tensor for _, tensor in module.named_buffers()), *(t for _, t in tensors_in((args, kwargs, further_calls)))]
    )
    instances = InstanceBuilder(values)
    try:
        instances.build(module, "model")
        instances.set_modes(module, "model")
        count = len(values.statements)
        call_args, call_kwargs = call_arguments(values, module, method, args, kwargs)
        further = tuple(
            call_arguments(values, module, method, *call, suffix=f"_{number}")
            for number, call in enumerate(further_calls, start=2)
        )
        user_files = _user_files(values) if import_user_code else ()
        definitions = () if import_user_code else mended_definitions(_definitions(values, method), fault, values.notes)
    except (NotRebuildable, NotExtractable) as error:
        raise CannotMakeCase(error_text(error)) from error
    numbers = save_cotangents(cotangents, file)
    is_saved = save_state(module, file)
    settings.setdefault("environment", environment(device))
    program = Program(
        statements=tuple(values.statements[:count]),
        arguments=tuple(values.statements[count:]),
        args=call_args,
        kwargs=call_kwargs,
        further_calls=further,
        method=method,
    )
    return ReproCase(
        fault=fault,
        program=program,
        definitions=definitions,
        imports=tuple(sorted(values.imports)),
        user_files=user_files,
        module_path=module_path,
        module_class=type(module).__name__,
        device=device,
        context=context or CallContext(grad_mode="no_grad", training=module.training),
        tensor_file=str(tensor_file) if is_saved else "",
        state_saved=is_saved,
        cotangents=numbers,
        notes=tuple(values.notes),
        **settings,
    )


def mended_definitions(definitions: Sequence[Definition], fault: Fault, notes: list[str]) -> tuple[Definition, ...]:
    """Return source in which a graph break shows that others hide: values stand in for these."""
    changes = mended_texts(fault.evidence)
    if not changes:
        return tuple(definitions)
    notes.append("other graph breaks that would hide this one are taken out of the source")
    return tuple(
        msgspec.structs.replace(definition, text=with_values(definition.text, changes)) for definition in definitions
    )


def save_state(module: torch.nn.Module, file: TensorFile | None) -> bool:
    """Write the module's parameters and buffers, and what the file holds already; returns whether there is a file."""
    if file is None:
        return False
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, torch.Tensor) and not torch.nn.parameter.is_lazy(tensor):
            file.add(f"state.{name}", tensor)
    return file.write()


def save_cotangents(cotangents: Mapping[int, torch.Tensor] | None, file: TensorFile | None) -> tuple[int, ...]:
    """Keep cotangents in the file, if there is one; returns their numbers."""
    if file is None or not cotangents:
        return ()
    for number, cotangent in cotangents.items():
        file.add(f"cotangent.{number}", cotangent)
    return tuple(cotangents)


def environment(device: str) -> tuple[tuple[str, str], ...]:
    """Return the versions that a bug report names: torch, Python, device."""
    name = platform.processor() or platform.machine()
    if torch.device(device).type == "cuda" and torch.cuda.is_available():
        name = torch.cuda.get_device_name(torch.device(device))
    kind = torch.device(device).type
    found = [("torch", str(torch.__version__)), ("python", platform.python_version()), ("device", f"{kind} ({name})")]
    if torch.version.cuda:
        found.append(("cuda", torch.version.cuda))
    return tuple(found)


def call_arguments(
    values: ValueBuilder,
    module: torch.nn.Module,
    method: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    suffix: str = "",
) -> tuple[tuple[Value, ...], tuple[tuple[str, Value], ...]]:
    """Turn the arguments of a call into values; those that need a name become variables named after parameters.

    `suffix` tells the variables of one call from those of another.
    """
    names = _positional_names(module, method, len(args))
    made_args = tuple(_argument(values, name + suffix, item) for name, item in zip(names, args, strict=True))
    return made_args, tuple((name, _argument(values, name + suffix, item)) for name, item in kwargs.items())


def _argument(values: ValueBuilder, name: str, item: Any) -> Value:
    variable = f"{name}_" if name in _TAKEN or keyword.iskeyword(name) else name
    if not is_name(variable):  # any text is a key of `**kwargs`
        variable = f"argument_{len(values.statements)}"
    value = values.value(item, variable)
    if isinstance(value, Literal | Ref):
        return value
    values.statements.append(Statement(variable, value))
    return Ref(variable)


def _positional_names(module: torch.nn.Module, method: str, count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(getattr(module, method)).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return names + [f"arg{index}" for index in range(len(names), count)]


def _definitions(values: ValueBuilder, method: str) -> Any:
    extractor = SourceExtractor()
    extractor.use_method(method)
    owners: dict[str, str] = {}
    for module, name in sorted(values.user_names):
        if owners.setdefault(name, module) != module:
            raise NotExtractable(f"{owners[name]} and {module} use the name {name} for different things")
        extractor.require(module, name)
    definitions = extractor.definitions()
    values.imports |= extractor.imports
    if extractor.missing_operators:
        values.notes.append(f"no definition was found of {', '.join(extractor.missing_operators)}")
    return definitions


def _user_files(values: ValueBuilder) -> tuple[UserFile, ...]:
    by_module: dict[str, list[str]] = {}
    for module, name in sorted(values.user_names):
        if is_user_module(module):
            by_module.setdefault(module, []).append(name)
        else:
            values.imports.add(f"from {module} import {name}")
    files = [user_file(module, tuple(names)) for module, names in by_module.items()]
    return tuple(file for file in files if file is not None)
