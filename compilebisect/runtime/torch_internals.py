"""The only importer of private torch names. Checked against torch 2.11, 2.13 and 2.15."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo import convert_frame, exc, output_graph, symbolic_convert
from torch.utils._python_dispatch import TorchDispatchMode

# How the names of the functions begin that Dynamo makes for what follows a graph break.
RESUME_PREFIX = "torch_dynamo_resume_in_"
FRAME_SKIPPED = "frame skipped"


class BreakEvent:
    """One time that Dynamo could not go on: `type` and `message` are torch's, `stack` runs from the outermost frame.

    `effect` is `resumed`, or `frame skipped` where Dynamo gave up on the whole frame `compiled_frame`.
    `type` is that of the first cause: a break in a loop, say, keeps the type of what stands in the loop. `own_depth`
    counts the frames from `compiled_frame`, which Dynamo was asked to compile, to the place of the break.
    """

    def __init__(self, error: BaseException, *, effect: str, compiled_frame: str) -> None:
        cause = _first_cause(error)
        self.type = getattr(cause, "gb_type", None) or type(cause).__name__
        self.message = str(getattr(cause, "msg", cause))
        self.outer_type = getattr(error, "gb_type", None) or type(error).__name__
        own_stack = getattr(error, "real_stack", None) or getattr(cause, "real_stack", None) or ()
        self.stack: list[traceback.FrameSummary] = [*_stack_above_dynamo(), *own_stack]
        self.own_depth = len(own_stack)
        self.effect = effect
        self.compiled_frame = compiled_frame


class CompileWatcher:
    """What Dynamo did while `watch_compile` was on.

    `graph_count` counts the graphs that reached the backend, `operators` their nodes that compute something, and
    `graph_runs` how often one of them ran, whenever it was compiled.
    `frames_skipped` holds name and reason of frames that Dynamo left alone.
    """

    def __init__(self, on_phase: Callable[[str], None]) -> None:
        self.breaks: list[BreakEvent] = []
        self.graph_count = 0
        self.operators = 0
        self.graph_runs = 0
        self.frames_compiled = 0
        self.frames_skipped: list[tuple[str, str]] = []
        self.on_phase = on_phase


@contextmanager
def watch_compile(*, on_phase: Callable[[str], None] = lambda phase: None) -> Iterator[CompileWatcher]:
    """Watch every frame that Dynamo converts, every graph break, and every graph that reaches the backend.

    `on_phase` is told `dynamo`, `backend` and `running` as a compile goes on.
    Source: torch/_dynamo/symbolic_convert.py (`log_graph_break`: breaks after which Dynamo resumes), convert_frame.py
    (`ConvertFrameAssert.__call__`: what ends a frame), output_graph.py (`call_user_compiler`); torch 2.11 to 2.15.
    """
    watcher = CompileWatcher(on_phase)
    log_break = symbolic_convert.InstructionTranslatorBase.log_graph_break
    convert = convert_frame.ConvertFrameAssert.__call__
    call_compiler = output_graph.OutputGraph.call_user_compiler

    @functools.wraps(log_break)
    def watched_log_break(self: Any, *args: Any, **kwargs: Any) -> Any:
        error = kwargs.get("exc", args[2] if len(args) > 2 else None)
        if error is not None and not getattr(error, "logged", False):
            watcher.breaks.append(BreakEvent(error, effect="resumed", compiled_frame=self.f_code.co_name))
        return log_break(self, *args, **kwargs)

    @functools.wraps(convert)
    def watched_convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        watcher.on_phase("dynamo")
        try:
            result = convert(self, frame, *args, **kwargs)
        except Exception as error:
            if isinstance(error, (exc.Unsupported, exc.UserError)) and not self._one_graph:
                watcher.breaks.append(BreakEvent(error, effect=FRAME_SKIPPED, compiled_frame=frame.f_code.co_name))
            raise
        finally:
            watcher.on_phase("running")
        if result.guarded_code is not None:
            watcher.frames_compiled += 1
        else:
            reason = str(getattr(result, "skip_reason", "") or "")
            watcher.frames_skipped.append((frame.f_code.co_name, reason))
        return result

    @functools.wraps(call_compiler)
    def watched_call_compiler(self: Any, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        watcher.graph_count += 1
        watcher.operators += sum(node.op in ("call_function", "call_method", "call_module") for node in gm.graph.nodes)
        watcher.on_phase("backend")
        compiled = call_compiler(self, gm, example_inputs)
        watcher.on_phase("dynamo")
        return _counting_runs(compiled)

    patches: list[tuple[Any, str, Any, Any]] = [
        (symbolic_convert.InstructionTranslatorBase, "log_graph_break", watched_log_break, log_break),
        (convert_frame.ConvertFrameAssert, "__call__", watched_convert, convert),
        (output_graph.OutputGraph, "call_user_compiler", watched_call_compiler, call_compiler),
    ]
    for owner, name, watched, _ in patches:
        setattr(owner, name, watched)
    runs_before = _GraphRuns.total
    try:
        yield watcher
    finally:
        watcher.graph_runs = _GraphRuns.total - runs_before
        for owner, name, _, original in patches:
            setattr(owner, name, original)


class _GraphRuns:
    """How often compiled graphs ran in this process: code that is compiled under one watcher may run under another."""

    total = 0


def _counting_runs(compiled: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compiled)
    def run(*args: Any, **kwargs: Any) -> Any:
        _GraphRuns.total += 1
        return compiled(*args, **kwargs)

    return run


class OperatorCounter(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch left it without annotations
    """Counts the operators that run while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def compile_error(error: BaseException) -> tuple[str, str, list[traceback.FrameSummary]] | None:
    """Return (origin, type, user's stack) of an exception that comes out of the compiler, None for any other.

    `origin` is `dynamo`, `backend` (AOTAutograd, or a backend of the user's), `inductor`, `cpp` or `triton`. `type`
    names the exception without its wrappers.
    """
    from torch._inductor import exc as inductor_exc

    stack = list(getattr(error, "real_stack", None) or ())
    if isinstance(error, inductor_exc.InductorError):
        inner = error.inner_exception
        names = {cls.__name__ for cls in type(inner).__mro__}
        if "CppCompileError" in names:
            origin = "cpp"
        elif any(module.split(".")[0] == "triton" for module in {cls.__module__ for cls in type(inner).__mro__}):
            origin = "triton"
        else:
            origin = "inductor"
        return origin, type(inner).__name__, stack
    if isinstance(error, exc.BackendCompilerFailed):
        return "backend", type(error.inner_exception).__name__, stack
    if isinstance(error, exc.InternalTorchDynamoError):
        inner_error = error.__cause__ or error.__context__
        return "dynamo", type(inner_error).__name__ if inner_error else type(error).__name__, stack
    if isinstance(error, exc.TorchDynamoException):
        return "dynamo", type(error).__name__, stack
    return None


def is_device_failure(error: BaseException) -> bool:
    """Return whether the device's context is broken after this exception, so that later calls fail for nothing."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, torch.AcceleratorError):
            return True
        text = str(seen)
        if "CUDA error" in text or "device-side assert" in text or "illegal memory access" in text:
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def import_compiler() -> None:
    """Import what the first compile would import: Inductor alone takes seconds."""


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether a module is what `torch.compile(module)` returns."""
    from torch._dynamo.eval_frame import OptimizedModule

    return isinstance(module, OptimizedModule)


def has_backend(name: str) -> bool:
    """Return whether torch can find a backend of this name."""
    from torch._dynamo.backends.registry import lookup_backend

    try:
        lookup_backend(name)
    except exc.InvalidBackend:
        return False
    return True


def is_in_bad_fork() -> bool:
    """Return whether this process was forked after CUDA was set up, so that CUDA cannot be used here."""
    return bool(torch.cuda._is_in_bad_fork())


def forbid_tf32() -> None:
    """Make float32 mean float32 on a GPU, for matrix products and convolutions.

    With TF32 the choice of a kernel alone moves results by a thousandth, which no comparison could tell from a fault.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def set_config(name: str, value: Any) -> None:
    """Set one torch config, named as `torch._inductor.config.epilogue_fusion`.

    Raises:
        AttributeError: there is no such config.
    """
    import importlib

    parts = name.split(".")
    if "config" not in parts:
        raise AttributeError(f"'{name}' names no config module")
    split = parts.index("config") + 1
    module: Any = importlib.import_module(".".join(parts[:split]))
    target: Any = module
    for part in parts[split:-1]:
        target = getattr(target, part)
    getattr(target, parts[-1])  # an unknown name would be set in silence on some targets
    setattr(target, parts[-1], value)


def prepare_compile_process(*, recompile_limit: int, use_cache: bool) -> None:
    """Set what every probe needs: random draws as in eager, no silent fallback to eager, caches on or off."""
    import torch._dynamo.config as dynamo_config
    import torch._inductor.config as inductor_config

    inductor_config.fallback_random = True
    dynamo_config.suppress_errors = False
    dynamo_config.recompile_limit = recompile_limit
    dynamo_config.accumulated_recompile_limit = max(dynamo_config.accumulated_recompile_limit, recompile_limit)
    if not use_cache:
        inductor_config.force_disable_caches = True


def without_resume_prefix(function: str) -> str:
    """Return the name of the user's function for one that Dynamo made to go on after a graph break."""
    while function.startswith(RESUME_PREFIX):
        function = function[len(RESUME_PREFIX) :].rsplit("_at_", 1)[0]
    return function


def _first_cause(error: BaseException) -> BaseException:
    while True:
        inner = error.__cause__ or error.__context__
        if not isinstance(error, exc.Unsupported) or not isinstance(inner, (exc.Unsupported, exc.UserError)):
            return error
        error = inner


def _stack_above_dynamo() -> list[traceback.FrameSummary]:
    get_stack: Any = vars(symbolic_convert)["get_stack_above_dynamo"]
    return list(get_stack())


def operator_name(value: object) -> str | None:
    """Return the expression that names an operator (`torch.ops.ns.name[.overload]`); None for anything else."""
    if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return f"torch.ops.{value}"
    if isinstance(value, torch._ops.HigherOrderOperator):
        return f"torch.ops.higher_order.{value.name()}"  # type: ignore[no-untyped-call]  # torch has no types here
    return None


def size_hint(size: int | torch.SymInt) -> int:
    """Return the number that a symbolic size had when its graph was captured, without adding a guard."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else 2
