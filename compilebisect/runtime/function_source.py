"""Function cases: the function that holds the line at fault, with the arguments that it got, as a module of its own.

A method of an object that is no module becomes a function too, and the object a stand-in with the same attributes.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from compilebisect.attempt import attempt
from compilebisect.core.call import CallContext
from compilebisect.core.outcome import Fault, Frame
from compilebisect.core.quoting import attribute, is_dotted_name
from compilebisect.core.reduce.script_text import ScriptText
from compilebisect.core.reduce.statement_edits import behind_kept_lines, without
from compilebisect.core.repro_case import Call, Definition, Literal, Program, Ref, ReproCase, Statement, Value
from compilebisect.error_text import error_text
from compilebisect.runtime.module_source import CannotMakeCase, environment, mended_definitions
from compilebisect.runtime.source_extract import SourceExtractor
from compilebisect.runtime.source_file import NotExtractable
from compilebisect.runtime.tensor_source import TensorFile
from compilebisect.runtime.value_source import NotRebuildable, ValueBuilder
from compilebisect.runtime.values import clone_value

_CLASS = "Repro"
# Callers of the innermost function that are looked at when that one stands in no module's own scope.
_MOST_FRAMES = 4


def function_case(
    run: Callable[[], Any],
    fault: Fault,
    *,
    module_path: str = "",
    module_class: str = "",
    context: CallContext | None = None,
    device: str = "cpu",
    tensor_file: Path | None = None,
    **settings: Any,
) -> ReproCase:
    """Describe the function around the line at fault, and its first call in an eager run.

    The function may be a library's: its source is taken along like the user's. A module among its arguments becomes the
    script's own module, which is empty, so that a whole model need not be built.

    Args:
        run: runs the module in eager mode.
        fault: what the script must show, with the stack of its place.
        module_path: where the module that brings the fault sits in the user's model.
        module_class: the name of its class.
        context: grad mode, autocast and training flag of the call.
        device: the device that the fault was seen on.
        tensor_file: where to save tensors; None gives all of them seeded numbers.
        settings: further fields of `ReproCase`, such as `backend`, `mode`, `dynamic`, `config`, `train`, `seed`.

    Raises:
        CannotMakeCase: where there is no such function, it is not called, or it cannot be rebuilt.
    """
    function, owner = _function_at(fault)
    arguments = _first_arguments(function, run)
    file = TensorFile(tensor_file) if tensor_file else None
    values = ValueBuilder(device=device, file=file)
    try:
        args, statements, call = _call(function, arguments, values, stands_in=owner is not None)
        definitions = mended_definitions(_definitions(function, owner, values), fault, values.notes)
        place = fault.location.code.strip() if fault.location else ""
        if not any(place in definition.text for definition in definitions):
            raise NotExtractable("the line at fault does not stand in what the function needs")
        definitions = tuple(_cut(definition, place) for definition in definitions)
    except (NotRebuildable, NotExtractable) as error:
        raise CannotMakeCase(error_text(error)) from error
    is_saved = file is not None and file.write()
    settings.setdefault("environment", environment(device))
    return ReproCase(
        fault=fault,
        program=Program(
            statements=(Statement("model", Call(_CLASS)),),
            arguments=tuple(statements),
            args=tuple(args),
        ),
        definitions=(*definitions, call),
        imports=tuple(sorted(values.imports)),
        module_path=module_path,
        module_class=module_class,
        device=device,
        context=context or CallContext(grad_mode="no_grad"),
        tensor_file=str(tensor_file) if is_saved else "",
        notes=tuple(values.notes),
        **settings,
    )


def _cut(definition: Definition, place: str) -> Definition:
    """Leave out what comes after the line at fault, which an empty module or other numbers may not get through."""
    script = ScriptText(definition.text, lambda statement: False, frozenset({place}))
    return msgspec.structs.replace(definition, text=without(script, behind_kept_lines(script)))


def _function_at(fault: Fault) -> tuple[types.FunctionType, type | None]:
    """Return the function, and the class that it is a method of."""
    for frame in reversed(fault.frames[-_MOST_FRAMES:]):
        for found in _functions_of(frame):
            return found
    raise CannotMakeCase("the line at fault stands in no function of its own")


def _functions_of(frame: Frame) -> Iterator[tuple[types.FunctionType, type | None]]:
    """Yield the function of a file's own scope, or of a class in it, that holds a frame's line."""
    path = Path(frame.file)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or not file.endswith(path.name) or not Path(file).is_file() or not path.is_file():
            continue
        if not path.samefile(file) or name.split(".")[0] == "torch":
            continue
        short = frame.function.rpartition(".")[2]
        classes = [
            value
            for value in list(vars(module).values())
            if isinstance(value, type) and value.__module__ == name and not issubclass(value, torch.nn.Module)
        ]
        for owner in (None, *classes):
            found = vars(module if owner is None else owner).get(short)
            if isinstance(found, types.FunctionType) and found.__module__ == name and not hasattr(found, "__wrapped__"):
                lines, first = inspect.getsourcelines(found)
                if first <= frame.line < first + len(lines):
                    yield found, owner


def _first_arguments(function: types.FunctionType, run: Callable[[], Any]) -> dict[str, Any]:
    """Run the model in eager mode and return what the function's first call got, by parameter."""
    code = function.__code__
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_posonlyargcount:
        raise CannotMakeCase(f"{function.__name__} takes any number of arguments")
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if not all(map(is_dotted_name, (function.__name__, *names))):
        raise CannotMakeCase("the function at fault, or a parameter of it, has a name that is none in Python")
    seen: list[dict[str, Any]] = []

    def look(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is code and not seen:
            held = {name: frame.f_locals[name] for name in names}
            seen.append(
                {
                    name: value if isinstance(value, torch.nn.Module) else clone_value(value)
                    for name, value in held.items()
                }
            )

    before = sys.getprofile()
    sys.setprofile(look)
    attempt(run)  # only what the function got counts here
    sys.setprofile(before)
    if not seen:
        raise CannotMakeCase(f"{function.__name__} is not called in eager mode")
    return seen[0]


def _call(
    function: types.FunctionType, arguments: dict[str, Any], values: ValueBuilder, *, stands_in: bool
) -> tuple[list[Value], list[Statement], Definition]:
    """Return the arguments of the script's module, what makes them, and the module's class.

    With `stands_in` the first argument is an object, of which the function needs its attributes.
    """
    parameters: list[str] = []
    passed: list[str] = []
    args: list[Value] = []
    for position, (name, value) in enumerate(arguments.items()):
        if isinstance(value, torch.nn.Module):
            passed.append(f"{name}=self")
            continue
        variable = f"{name}_" if name in ("model", "device", "saved", "self") else name
        made = _stand_in(value, variable, values) if stands_in and position == 0 else values.value(value, variable)
        if not isinstance(made, Literal | Ref):
            values.statements.append(Statement(variable, made))
            made = Ref(variable)
        parameters.append(variable)
        passed.append(f"{name}={variable}")
        args.append(made)
    text = (
        f"class {_CLASS}(torch.nn.Module):\n    def forward({', '.join(['self', *parameters])}):\n"
        f"        return {function.__name__}({', '.join(passed)})"
    )
    return args, values.statements, Definition(names=(_CLASS,), text=text, needs=(function.__name__,))


def _stand_in(value: Any, variable: str, values: ValueBuilder) -> Value:
    """Return an object with the attributes of another one, as far as they can be made again, and no methods."""
    attributes: list[tuple[str, Value]] = []
    for name, item in vars(value).items() if hasattr(value, "__dict__") else ():
        if not isinstance(name, str):
            continue
        with contextlib.suppress(NotRebuildable):
            attributes.append((name, values.value(item, attribute(variable, name))))
    values.imports.add("import types")
    return Call("types.SimpleNamespace", kwargs=tuple(attributes))


def _definitions(function: types.FunctionType, owner: type | None, values: ValueBuilder) -> tuple[Definition, ...]:
    extractor = SourceExtractor(own_modules=frozenset({function.__module__}))
    if owner is None:
        extractor.require(function.__module__, function.__name__)
    else:
        extractor.require_method(function.__module__, owner.__name__, function.__name__)
    for module, name in sorted(values.user_names):
        extractor.require(module, name)
    definitions = extractor.definitions()
    if any(_CLASS in definition.names for definition in definitions):
        raise NotExtractable(f"the source has a {_CLASS} of its own")
    if extractor.missing_operators:
        raise NotExtractable(f"no definition was found of {', '.join(extractor.missing_operators)}")
    values.imports |= extractor.imports
    return definitions
