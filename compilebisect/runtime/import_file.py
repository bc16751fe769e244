"""Import of a user's file under a name that is the same in every process.

Naming, so that classes of the file can be pickled in one process and loaded in another that imported it likewise:

- a file inside packages (folders with an `__init__.py`) gets its real dotted name, and relative imports work;
- any other file is named after itself, `model.py` being `model`, as its siblings would import it;
- where that name belongs to something else (a module of the standard library, an installed package, another file that
  is loaded already), the name gets a suffix made from the file's path, so that nothing is shadowed.

The file's folder goes onto `sys.path` so that siblings can be imported: in front as for `python model.py`, but at the
end for a package's inner folder and where the file's name belongs to something else, lest they shadow real modules.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import msgspec

_INSTALL_FOLDERS = ("site-packages", "dist-packages")


class FileName(msgspec.Struct, frozen=True, kw_only=True):
    """How a file is imported: module name, folder to import from, topmost package's folder where there is one."""

    module: str
    root_dir: Path
    package_dir: Path | None = None
    is_renamed: bool = False


def import_file(path: Path) -> ModuleType:
    """Import a Python file, or return its module if this process has imported it before.

    Adds to `sys.path` and `sys.modules` and leaves them so, since models import lazily.

    Args:
        path: the file; it must exist.

    Raises:
        BaseException: whatever the file's own code raises.
    """
    path = path.resolve()
    known = _loaded_module(path)
    if known is not None:
        return known
    name = name_of_file(path)
    _extend_path(name, path)
    if name.package_dir is not None:
        if name.is_renamed:
            _execute(name.module.partition(".")[0], name.package_dir / "__init__.py", is_package=True)
        return importlib.import_module(name.module)
    return _execute(name.module, path)


def name_of_file(path: Path) -> FileName:
    """Decide under which name a resolved file is imported."""
    stem = path.stem
    package_dir = _topmost_package(path)
    if package_dir is None:
        is_renamed = not stem.isidentifier() or _is_taken(stem, path)
        return FileName(
            module=_unique_name(stem, path) if is_renamed else stem, root_dir=path.parent, is_renamed=is_renamed
        )
    inner = path.relative_to(package_dir).with_suffix("").parts
    is_renamed = _is_taken(package_dir.name, package_dir / "__init__.py")
    top = _unique_name(package_dir.name, package_dir) if is_renamed else package_dir.name
    return FileName(
        module=".".join((top, *(inner[:-1] if inner[-1] == "__init__" else inner))),
        root_dir=package_dir.parent,
        package_dir=package_dir,
        is_renamed=is_renamed,
    )


def _topmost_package(path: Path) -> Path | None:
    """Return the folder of the outermost package that the file belongs to."""
    if not path.stem.isidentifier():
        return None
    top = None
    for folder in path.parents:
        if not folder.name.isidentifier() or not (folder / "__init__.py").is_file():
            break
        top = folder
    return top


def _is_taken(name: str, path: Path) -> bool:
    """Tell whether a top-level module name belongs to something else than the file."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return not _is_module_of(loaded, path)
    if name in sys.stdlib_module_names:
        return True
    entries = [entry for entry in sys.path if any(folder in entry for folder in _INSTALL_FOLDERS)]
    found = importlib.machinery.PathFinder.find_spec(name, entries)
    return found is not None and (found.origin is None or Path(found.origin).resolve() != path)


def _loaded_module(path: Path) -> ModuleType | None:
    """Return the module that was imported from a file, under whatever name."""
    return next((sys.modules[name] for name in list(sys.modules) if _is_module_of(sys.modules[name], path)), None)


def _is_module_of(module: ModuleType, path: Path) -> bool:
    # not getattr: modules that import lazily answer to any name; and only a like-named file is worth a look at the disk
    file = getattr(module, "__dict__", {}).get("__file__")
    return isinstance(file, str) and os.path.basename(file) == path.name and Path(file).resolve() == path


def _unique_name(stem: str, path: Path) -> str:
    plain = "".join(char if char.isalnum() and char.isascii() else "_" for char in stem)
    return f"_{plain}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _extend_path(name: FileName, path: Path) -> None:
    entries = [str(name.root_dir)]
    if not name.is_renamed and entries[0] not in sys.path:
        sys.path.insert(0, entries[0])
    for entry in (*entries, str(path.parent)):
        if entry not in sys.path:
            sys.path.append(entry)


def _execute(name: str, path: Path, *, is_package: bool = False) -> ModuleType:
    """Execute a file as a module of the given name, which stays registered only if that succeeds."""
    if is_package and name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)] if is_package else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
