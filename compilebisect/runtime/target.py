"""From `TARGET` and `--init` to a model, as the user's own code builds it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from torch import nn

from compilebisect.core.nearest import did_you_mean, quoted
from compilebisect.error_text import error_line, error_text
from compilebisect.errors import CannotTestError, CompilebisectError, TargetError, UsageError
from compilebisect.runtime.import_file import import_file, name_of_file
from compilebisect.runtime.user_code import as_script, user_code

_FORMS = "Write path/to/file.py:Name or package.module:Name."


class LoadedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is ready to be called.

    `name` is the target's own name, `root_dir` the folder that reported paths are relative to.
    """

    model: nn.Module
    name: str
    root_dir: str


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """The object that a target names, before anything is built from it."""

    value: Any
    name: str
    root_dir: str


def load_target(target: str, init: dict[str, Any]) -> LoadedTarget:
    """Import a target and build its model.

    Leaves the training flag, the device and the dtypes as the user's code sets them.

    Args:
        target: `path/to/file.py:Name` or `package.module:Name`; `Name` is a module class, a module, or a function
            that returns one, and may have dots.
        init: keyword arguments for the class or function.

    Raises:
        TargetError: the target cannot be found or imported, is no module, or does not take `init`.
        CannotTestError: the user's class or function raised an error of its own.
    """
    located = locate_target(target)
    return LoadedTarget(model=build_target(located, init), name=located.name, root_dir=located.root_dir)


def locate_target(target: str) -> Located:
    """Import a target's file or module and look its name up.

    Raises:
        TargetError: it cannot be found or imported.
    """
    source, separator, name = target.rpartition(":")
    if not separator or source.endswith(":"):
        source, name = target.rstrip(":"), ""
    is_file = source.endswith(".py") or os.sep in source
    if not source:
        raise TargetError(f"target {target!r} names no file or module", fix=_FORMS)
    if is_file:
        path = existing_file(source, TargetError)
        if not name:
            raise TargetError(f"target {target!r} names no class or function", where=source, fix=_names_in_file(path))
        module = import_user_file(path, TargetError)
        root_dir = name_of_file(path.resolve()).root_dir
    else:
        if not name:
            raise TargetError(f"target {target!r} names no class or function", fix=_FORMS)
        module = _import_module(source)
        root_dir = _root_of_module(module)
    return Located(value=lookup(module, name, source, TargetError), name=name, root_dir=str(root_dir))


def existing_file(file: str, error: type[UsageError], *, where: str = "") -> Path:
    """Return the path of a file.

    Raises:
        UsageError: of the given type, with the nearest name in the folder, if there is no such file.
    """
    path = Path(file).expanduser()
    if path.is_file():
        return path
    folder = path.parent
    fix = f"The folder {str(folder)!r} does not exist either."
    if path.is_dir():
        raise error(f"{file!r} is a folder", where=where, fix="Name a file in it.")
    if folder.is_dir():
        names = sorted(entry.name for entry in folder.iterdir() if entry.suffix == path.suffix)
        near = did_you_mean(path.name, names)
        fix = f"Files there: {quoted(names)}." if names else f"Paths are relative to {str(folder.resolve())!r}."
        raise error(f"there is no file {file!r}{near}", where=where, fix=fix)
    raise error(f"there is no file {file!r}", where=where, fix=fix)


def import_user_file(path: Path, error: type[UsageError], *, where: str = "") -> ModuleType:
    """Import a user's file, or return its module if it was imported before.

    Raises:
        UsageError: of the given type, with the trimmed traceback, if its code fails or ends the program.
    """

    def failed(exc: BaseException, trace: str) -> CompilebisectError:
        return error(_import_failure(exc, str(path)), where=where, fix=_import_fix(exc), detail=trace)

    with user_code(failed), as_script(str(path)):
        return import_file(path)


def lookup(module: ModuleType, name: str, source: str, error: type[UsageError], *, where: str = "") -> Any:
    """Return what a name, dots allowed, stands for in a module.

    Raises:
        UsageError: of the given type, with the nearest name, if there is none.
    """

    def failed(exc: BaseException, trace: str) -> CompilebisectError:
        return error(_import_failure(exc, f"{source}:{name}"), where=where, fix=_import_fix(exc), detail=trace)

    value: Any = module
    for position, part in enumerate(name.split(".")):
        with user_code(failed):  # modules with a __getattr__ import only now
            is_there = hasattr(value, part)
        if not is_there:
            owner = ".".join(name.split(".")[:position])
            own = _public_names(value, module if position == 0 else None)
            raise error(
                f"there is no {part!r} in {owner or source!r}{did_you_mean(part, own)}",
                where=where or source,
                fix=f"There are: {quoted(own)}." if own else "It defines no public names.",
            )
        value = getattr(value, part)
    return value


def _public_names(value: Any, module: ModuleType | None) -> list[str]:
    """Return the public names of an object; of a module, only what it defines itself."""
    names = [name for name in vars(value) if not name.startswith("_")] if hasattr(value, "__dict__") else []
    if module is None:
        return names
    own = [
        name
        for name in names
        if getattr(getattr(module, name), "__module__", None) == module.__name__
        or isinstance(getattr(module, name), nn.Module)
    ]
    return own or names


def _import_module(source: str) -> ModuleType:
    """Import a dotted module as `python -m` would: the current folder counts."""
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)

    def failed(exc: BaseException, trace: str) -> CompilebisectError:
        if isinstance(exc, ModuleNotFoundError) and exc.name and (source + ".").startswith(exc.name + "."):
            fix = "Install it, start in the folder that holds it, or name the file: path/to/file.py:Name."
            return TargetError(f"there is no module {exc.name!r}", where=source, fix=fix)
        return TargetError(_import_failure(exc, source), fix=_import_fix(exc), detail=trace)

    with user_code(failed), as_script(source):
        return importlib.import_module(source)


def _import_failure(exc: BaseException, source: str) -> str:
    if isinstance(exc, SystemExit):
        code = "" if exc.code is None else f" with {exc.code!r}"
        return f"{source!r} ends the program{code} while it is imported"
    return f"{source!r} cannot be imported: {error_line(exc)}"


def _import_fix(exc: BaseException) -> str:
    if isinstance(exc, SystemExit):
        return "Put the script's part under `if __name__ == '__main__':`."
    if isinstance(exc, ImportError) and "relative import" in error_text(exc):
        return "Add an __init__.py to the folder, or name the module: package.module:Name."
    if isinstance(exc, ModuleNotFoundError):
        return f"Install {exc.name!r} in this environment, or start where it can be found."
    return "The file must be importable: `import` it in Python to see the same."


def _root_of_module(module: ModuleType) -> Path:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return Path.cwd()
    return name_of_file(Path(file).resolve()).root_dir


def _names_in_file(path: Path) -> str:
    """Return what a file offers, read without running it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return _FORMS
    names = [node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    return f"Write {path}:Name; the file defines {quoted(names)}." if names else _FORMS


def build_target(located: Located, init: dict[str, Any]) -> nn.Module:
    """Build the model that a target names, or return it where it is one.

    Raises:
        TargetError: it is no module, or does not take `init`.
        CannotTestError: the user's class or function raised an error of its own.
    """
    value, name = located.value, located.name
    if isinstance(value, nn.Module):
        if init:
            raise TargetError(f"{name!r} is a module already and takes no --init", fix="Leave --init out.")
        return _uncompiled(value)
    is_class = inspect.isclass(value)
    if (is_class and not issubclass(value, nn.Module)) or not callable(value):
        raise TargetError(
            f"{name!r} is {_described(value)}, not an nn.Module", fix="Name a module class, a module or a function."
        )
    check_init(value, name, init)

    def failed(exc: BaseException, trace: str) -> CompilebisectError:
        return CannotTestError(
            f"{name!r} cannot be built: {error_line(exc)}",
            fix=f"Install {exc.name!r} in this environment."
            if isinstance(exc, ModuleNotFoundError)
            else "Give it other arguments with --init, or mend it so that it can be called on its own.",
            detail=trace,
        )

    with user_code(failed), as_script(name):
        built = value(**init)
    if not isinstance(built, nn.Module):
        raise TargetError(f"{name!r} returns {_described(built)}, not an nn.Module", fix="Return the model itself.")
    return _uncompiled(built)


def check_init(build: Any, name: str, init: dict[str, Any]) -> None:
    """Check that a class or function takes the `--init` arguments and needs no others.

    Raises:
        TargetError: naming the parameters that there are.
    """
    try:
        parameters = inspect.signature(build).parameters
    except (ValueError, TypeError):  # built in C: only the call itself can tell
        return
    by_name = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [key for key in init if key not in by_name]
    if unknown and not takes_any:
        known = f"It takes {quoted(by_name)}." if by_name else "It takes no keyword arguments: leave --init out."
        raise TargetError(f"{name!r} has no parameter {unknown[0]!r}{did_you_mean(unknown[0], by_name)}", fix=known)
    missing = missing_init(build, init)
    if missing:
        example = ", ".join(f'"{key}": ...' for key in missing)
        raise TargetError(
            f"{name!r} needs {quoted(missing)}",
            fix=f"Pass --init '{{{example}}}', or name a function without parameters that builds the model.",
        )


def missing_init(build: Any, init: dict[str, Any]) -> list[str]:
    """Return the parameters of a class or function that have no default and are not in `init`."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (ValueError, TypeError):
        return []
    return [
        p.name
        for p in parameters
        if p.default is p.empty and p.name not in init and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def _described(value: Any) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if isinstance(value, ModuleType):
        return f"the Python module {value.__name__}"
    return "None" if value is None else f"a {type(value).__name__}"


def _uncompiled(model: nn.Module) -> nn.Module:
    """Return the module inside a `torch.compile(module)`, which is one named `_orig_mod`, or the module itself."""
    inner = dict(model.named_children()).get("_orig_mod")
    return model if inner is None else inner
