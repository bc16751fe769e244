"""The layers of the package, as one test: who may import whom. A failure names file, line, rule and remedy."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import networkx
import pytest

PACKAGE = Path(__file__).parent.parent / "compilebisect"

# Layers from the top; each may import those below it, and SHARED. The folders of one set are peers.
LAYERS = ({"cli"}, {"api"}, {"search"}, {"runtime", "workers", "repro", "render"}, {"core"})
# What everybody may import. They import `core` and each other alone.
SHARED = {"attempt", "error_text", "errors", "interrupts", "settings", "progress", "source_files", "streams"}
# Modules beside `api` that belong to its layer: parts of the composition root.
API_PARTS = {"api", "cache_folder", "scratch_folder", "workplace"}
# Peers that may know each other, with the reason.
PEERS = {
    ("runtime", "workers"): "code in a worker tells its supervisor what it is doing",
    ("repro", "workers"): "a script leaves no process behind, and workers know how to see to that",
}
ONLY_IN = {
    "click": {"cli"},
    "rich": {"cli", "render"},
    "jinja2": {"render", "repro"},
    "torch": {"runtime"},
}
# `core` is pure: nothing here that reads, writes, waits, starts or draws lots.
IMPURE = {
    "io", "sys", "shutil", "tempfile", "subprocess", "multiprocessing", "threading", "signal",
    "socket", "time", "datetime", "random", "logging", "asyncio", "concurrent", "numpy", "safetensors",
}  # fmt: skip
# What `core` may take of `os` and `pathlib`: arithmetic on paths that never looks at the disk.
PURE_OS = {"os.path", "os.sep"} | {
    f"os.path.{name}" for name in ("join", "basename", "dirname", "split", "splitext", "isabs", "normpath", "sep")
}
TORCH_INTERNALS = "runtime/torch_internals.py"


class Import(NamedTuple):
    """One import of one module by another, both as dotted names."""

    importer: str
    file: str
    line: int
    target: str


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {module_name(path) for path in FILES}
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def imports_of(path: Path) -> list[Import]:
    """Return all imports of a file, also those inside functions, but for those of type checkers alone."""
    importer, file = module_name(path), path.relative_to(PACKAGE).as_posix()
    found = []
    for node in walk_running_code(TREES[path]):
        if isinstance(node, ast.Import):
            found += [Import(importer, file, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = importer.split(".") if path.name == "__init__.py" else importer.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            # `from package import module` imports the module
            names = {f"{base}.{alias.name}" for alias in node.names} & MODULES
            found += [Import(importer, file, node.lineno, target) for target in sorted(names) or [base]]
    return found


def walk_running_code(tree: ast.AST) -> list[ast.AST]:
    nodes, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)
    return nodes


IMPORTS = [found for path in FILES for found in imports_of(path)]
INTERNAL = [found for found in IMPORTS if found.target.split(".")[0] == "compilebisect"]


def part(module: str) -> str:
    """Return the folder of the package, or the module's name where it lies beside the folders."""
    names = module.split(".")
    if len(names) == 1:
        return "__init__"
    return "api" if names[1] in API_PARTS else names[1]


def level(name: str) -> int | None:
    return next((number for number, layer in enumerate(LAYERS) if name in layer), None)


def complaint(found: Import, rule: str, remedy: str) -> str:
    return f"compilebisect/{found.file}:{found.line}: imports {found.target}. Rule: {rule}. Remedy: {remedy}."


def layer_fault(found: Import) -> str | None:
    importer, target = part(found.importer), part(found.target)
    if importer == target or importer in ("__init__", "__main__") or target in SHARED or target == "__init__":
        return None
    if importer in SHARED:
        if target == "core":
            return None
        return complaint(found, f"{importer} imports core alone", "move what it needs down, or pass it in")
    importer_level, target_level = level(importer), level(target)
    if importer_level is None or target_level is None:
        unknown = importer if importer_level is None else target
        return complaint(found, f"{unknown} has no layer", "put it into a folder, or into a layer of this test")
    if target_level > importer_level or (importer, target) in PEERS:
        return None
    rule = "imports run cli -> api -> search -> {runtime, workers, repro, render} -> core"
    return complaint(found, rule, "move the shared part to core, or pass it in from api")


def test_imports_run_downward() -> None:
    faults = [fault for found in INTERNAL if (fault := layer_fault(found))]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_stay_in_their_layer(library: str) -> None:
    allowed = ONLY_IN[library]
    faults = [
        complaint(found, f"only {', '.join(sorted(allowed))} may import {library}", "let that layer do it")
        for found in IMPORTS
        if found.target.split(".")[0] == library and part(found.importer) not in allowed
    ]
    assert not faults, "\n" + "\n".join(faults)


def impure_names(tree: ast.AST) -> list[tuple[int, str]]:
    """Return what a file uses that reads, writes or prints."""
    found = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("print", "open", "input")
        ):
            found.append((node.lineno, node.func.id))
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("os."):
            found += [(node.lineno, ast.unparse(node))] if ast.unparse(node) not in PURE_OS else []
        elif isinstance(node, ast.Import):
            found += [(node.lineno, "pathlib") for alias in node.names if alias.name == "pathlib"]
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "os.path", "pathlib"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [(node.lineno, name) for name in names if name not in PURE_OS and ".Pure" not in name]
    return found


def test_core_is_pure() -> None:
    faults = [
        complaint(found, "core has no effects, no clock and no torch", "do it in the caller and pass the result in")
        for found in IMPORTS
        if part(found.importer) == "core" and found.target.split(".")[0] in IMPURE
    ]
    for path in FILES:
        if part(module_name(path)) == "core":
            faults += [
                f"compilebisect/core/{path.name}:{line}: uses {name}. Rule: core has no effects. "
                "Remedy: do it in the caller and pass the result in."
                for line, name in impure_names(TREES[path])
            ]
    assert not faults, "\n" + "\n".join(faults)


def private_torch_names(path: Path) -> list[tuple[int, str]]:
    """Return the places where a file reaches for a private name of torch: imports, attributes and strings."""
    found = []
    for node in ast.walk(TREES[path]):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        for name in names:
            first, *rest = name.split(".")
            if first == "torch" and any(part.startswith("_") and not part.startswith("__") for part in rest):
                found.append((node.lineno, name))
    return found


def test_private_torch_names_live_in_one_module() -> None:
    faults = [
        f"compilebisect/{path.relative_to(PACKAGE).as_posix()}:{line}: uses {name}. "
        "Rule: private torch names live in runtime/torch_internals.py alone. Remedy: add a function there."
        for path in FILES
        if path.relative_to(PACKAGE).as_posix() != TORCH_INTERNALS
        for line, name in private_torch_names(path)
    ]
    assert not faults, "\n" + "\n".join(faults)


# Where whatever is raised is caught and not raised again, with the reasons.
CATCH_ALLS = {
    "attempt.py": ["the one for the code of others, in workers"],
    "error_text.py": ["a text that cannot be made", "fields that cannot be read", "a cause that has no text"],
    "runtime/script_run.py": ["a script ends as it would by itself"],
    "workers/fork_server.py": ["the server must not live on in a worker"],
    "search/errands.py": ["what one thread asked of another fails where it was asked for"],
    "search/background_proofs.py": [
        "what costs a script must not cost the finding",
        "what this thread raises is the main thread's",
    ],
    "search/report_keeper.py": ["a failure behind a finding must not cost the report"],
    "__main__.py": ["the last door"],
}
# Where exceptions become text.
TEXTS_OF_ERRORS = {"error_text.py", "runtime/traceback_text.py"}
FORMATS_ERRORS = re.compile(r"traceback\.((format|print)_(exc|exception|exception_only)|TracebackException.*)")


def catch_alls(tree: ast.AST) -> list[int]:
    """Return the lines of handlers that take any exception and do not end by raising one."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or re.search(r"\b(Base)?Exception\b", ast.unparse(node.type)))
        and not isinstance(node.body[-1], ast.Raise)
    ]


def texts_of_errors(tree: ast.AST) -> list[int]:
    """Return the lines in which an exception is made a text without the functions for that."""
    has_attempts = any(isinstance(node, ast.Name) and node.id == "attempt" for node in ast.walk(tree))
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}

    def is_error(node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return has_attempts and node.attr == "error"
        return isinstance(node, ast.Name) and node.id in caught | {"error", "exc", "exception", "failure"}

    found = []
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.FormattedValue) and is_error(node.value)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            is_text = name in ("str", "repr", "format") and any(map(is_error, node.args))
            is_text |= FORMATS_ERRORS.fullmatch(name) is not None
        found += [node.lineno] if is_text else []
    return found


def test_any_exception_is_caught_in_few_places() -> None:
    found = {path.relative_to(PACKAGE).as_posix(): catch_alls(TREES[path]) for path in FILES}
    faults = [
        f"compilebisect/{file}:{lines}: {len(lines)} handlers take any exception, {len(CATCH_ALLS.get(file, ()))} may. "
        "Remedy: call what may raise anything through `attempt`, or name the exceptions."
        for file, lines in found.items()
        if len(lines) != len(CATCH_ALLS.get(file, ()))
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_exceptions_become_text_in_one_place() -> None:
    faults = [
        f"compilebisect/{path.relative_to(PACKAGE).as_posix()}:{line}: makes a text of an exception, whose `__str__` "
        "may raise or return 50 MB. Remedy: use a function of compilebisect/error_text.py."
        for path in FILES
        if path.relative_to(PACKAGE).as_posix() not in TEXTS_OF_ERRORS
        for line in texts_of_errors(TREES[path])
    ]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    ("code", "is_fine"),
    [
        ("try:\n  f()\nexcept Exception:\n  pass", False),
        ("try:\n  f()\nexcept (OSError, BaseException) as e:\n  log(e)", False),
        ("try:\n  f()\nexcept:\n  pass", False),
        ("try:\n  f()\nexcept BaseException:\n  undo()\n  raise", True),
        ("try:\n  f()\nexcept ValueError as e:\n  print(f'{e}')", False),
        ("try:\n  f()\nexcept ValueError as e:\n  print(str(e))", False),
        ("ran = attempt(f)\nprint(f'{ran.error!r}')", False),
        ("traceback.print_exc()", False),
        ("try:\n  f()\nexcept ValueError as e:\n  print(error_text(e))", True),
    ],
)
def test_the_rules_about_exceptions_tell_right_from_wrong(code: str, is_fine: bool) -> None:
    tree = ast.parse(code)
    assert (not catch_alls(tree) and not texts_of_errors(tree)) == is_fine


def test_command_line_cannot_reach_torch() -> None:
    graph = networkx.DiGraph((found.importer, found.target) for found in IMPORTS)
    for module in MODULES:
        if "." in module:
            # importing a module imports its packages first
            graph.add_edge(module, module.rpartition(".")[0])
    for module in sorted(MODULES):
        if part(module) not in ("cli", "__main__"):
            continue
        for target in (node for node in graph if node.split(".")[0] == "torch"):
            if networkx.has_path(graph, module, target):
                way = " -> ".join(networkx.shortest_path(graph, module, target))
                pytest.fail(f"Rule: the command line never imports torch. Remedy: break this chain of imports: {way}")


def test_modules_import_each_other_without_cycles() -> None:
    graph = networkx.DiGraph((found.importer, found.target) for found in INTERNAL if found.importer != found.target)
    # `from compilebisect import __version__` needs no module of the package to be loaded
    graph.remove_nodes_from(["compilebisect"])
    cycles = [" -> ".join([*cycle, cycle[0]]) for cycle in networkx.simple_cycles(graph)]
    assert not cycles, "Remedy: move what both need into a third module:\n" + "\n".join(cycles)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_module_is_named_for_miscellany(path: Path) -> None:
    words = set(path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "_").split("_"))
    assert not words & {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


@pytest.mark.parametrize(
    ("importer", "target", "is_fine"),
    [
        ("compilebisect.cli.run", "compilebisect.api", True),
        ("compilebisect.core.walk", "compilebisect.errors", True),
        ("compilebisect.core.walk", "compilebisect.runtime.probe", False),
        ("compilebisect.render.tree", "compilebisect.cli.output", False),
        ("compilebisect.render.tree", "compilebisect.runtime.probe", False),
        ("compilebisect.progress", "compilebisect.api", False),
        ("compilebisect.odd.new", "compilebisect.core.walk", False),
    ],
)
def test_the_rule_itself_tells_right_from_wrong(importer: str, target: str, is_fine: bool) -> None:
    assert (layer_fault(Import(importer, "x.py", 1, target)) is None) == is_fine
