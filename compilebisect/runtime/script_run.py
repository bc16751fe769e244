"""Runs a Python script in this process as `python SCRIPT` would, in a process that has torch imported already."""

from __future__ import annotations

import os
import sys
import types
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from compilebisect.core.messages import ScriptOrder
from compilebisect.workers.worker import flush_output

#: Of a script that ends with an exception that it does not handle itself.
UNHANDLED = 125


def run_script(state: dict[str, Any], payload: bytes) -> bytes:
    """Run the script of this `ScriptOrder`; the process ends with the script's exit status."""
    order = msgspec.msgpack.decode(payload, type=ScriptOrder)
    os.environ.update(order.environment)
    with _like_a_fresh_torch():
        _run(Path(order.path), order.args)


def _like_a_fresh_torch() -> AbstractContextManager[None]:
    if "torch" not in sys.modules:  # the script imports it, and with it what the environment says
        return nullcontext()
    from compilebisect.runtime.torch_internals import NewOperators, forget_cached_graphs, keep_headers_out_of_tmpdir

    forget_cached_graphs()
    keep_headers_out_of_tmpdir()
    return NewOperators().taken_in_by_compile()


def _run(path: Path, args: tuple[str, ...]) -> NoReturn:
    source = path.read_text(encoding="utf-8")
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    sys.argv = [str(path), *args]
    sys.path.insert(0, str(path.parent))
    os.chdir(path.parent)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except SystemExit as stop:
        _leave(stop.code if isinstance(stop.code, int) else int(stop.code is not None))
    except BaseException:  # noqa: BLE001 - the script's own hook decides, as at the end of any program
        sys.excepthook(*sys.exc_info())
        _leave(UNHANDLED)
    _leave(0)


def _leave(status: int) -> NoReturn:
    flush_output()
    os._exit(status)
