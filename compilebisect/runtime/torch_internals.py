"""The only importer of private torch names. Checked against torch 2.11, 2.13 and 2.15."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._dynamo import convert_frame, exc, output_graph, symbolic_convert
from torch._dynamo import utils as dynamo_utils
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import symbolic_shapes
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from compilebisect.error_text import bounded, error_text

# How the names of the functions begin that Dynamo makes for what follows a graph break.
RESUME_PREFIX = "torch_dynamo_resume_in_"
RESUMED = "resumed"
REST_SKIPPED = "rest of the function skipped"
FRAME_SKIPPED = "frame skipped"
# How much of a frame runs in eager mode, the least first.
EFFECTS = (RESUMED, REST_SKIPPED, FRAME_SKIPPED)
# Stands between the text of a break and that of what it led to; both are one `Unsupported`. Source:
# torch/_dynamo/exc.py (`unimplemented`); torch 2.11 to 2.15.
_LED_TO = "\n\n*** While handling this graph break, another graph break occurred: ***\n\n"
# So many characters of what torch says of a break are kept; its own texts are far shorter.
_LONGEST_BREAK = 20_000
# What Inductor imports when it is first needed, with all that these import in turn. Compared with `sys.modules` before
# and after a first compile, on a CPU and on a GPU.
_FIRST_COMPILE = (
    "torch._dynamo.backends.inductor",
    "torch._functorch._aot_autograd.autograd_cache",
    "torch._inductor.async_compile",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.triton",
    "torch._inductor.codegen.wrapper",
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.joint_graph",
    "torch._inductor.fx_passes.post_grad",
    "torch._inductor.fx_passes.pre_grad",
    "torch._inductor.kernel",
    "torch._inductor.lowering",
    "torch._inductor.mkldnn_lowerings",
    "torch._inductor.quantized_lowerings",
    "torch._inductor.select_algorithm",
)


#: Where torch keeps what works on a graph after Dynamo; user's transforms lie beside the first.
COMPILER_FOLDERS = ("/torch/_functorch/_aot_autograd/", "/torch/_inductor/")
_DYNAMO_FOLDER = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "")


class BreakEvent:
    """One time that Dynamo could not go on: `type` and `message` are torch's, `stack` runs from the outermost frame.

    `effect` is `resumed`, or `rest of the function skipped`, or `frame skipped` where Dynamo gave up on the whole frame
    `compiled_frame`, whose code begins at `compiled_place` and ends at `compiled_end`.
    `type` is that of the first cause: a break in a loop, say, keeps the type of what stands in the loop. `own_depth`
    counts the frames from `compiled_frame`, which Dynamo was asked to compile, to the place of the break.
    """

    def __init__(self, error: BaseException, *, effect: str, compiled: types.CodeType) -> None:
        cause = _first_cause(error)
        text = getattr(cause, "msg", None)
        text = bounded(text, _LONGEST_BREAK) if isinstance(text, str) else error_text(cause)
        message, led_to, _ = text.partition(_LED_TO)
        first_line = message.splitlines()[0].strip() if led_to else ""
        self.type: str = first_line or getattr(cause, "gb_type", None) or type(cause).__name__
        self.message = message
        self.outer_type = getattr(error, "gb_type", None) or type(error).__name__
        own_stack = getattr(error, "real_stack", None) or getattr(cause, "real_stack", None) or ()
        self.stack: list[traceback.FrameSummary] = [*_stack_above_dynamo(), *own_stack]
        self.own_depth = len(own_stack)
        self.effect = effect
        self.compiled_frame = compiled.co_name
        self.compiled_place = (compiled.co_filename, compiled.co_firstlineno)
        self.compiled_end = max((line for *_, line in compiled.co_lines() if line), default=compiled.co_firstlineno)


class CompileWatcher:
    """What Dynamo did while `watch_compile` was on.

    `graph_count` counts the graphs that reached the backend, `operators` their nodes that compute something, and
    `graph_runs` how often one of them ran, whenever it was compiled; `operator_runs` counts the nodes that ran so.
    `frames_skipped` holds name and reason of frames that Dynamo left alone.
    """

    def __init__(self, on_phase: Callable[[str], None]) -> None:
        self.breaks: list[BreakEvent] = []
        self.graph_count = 0
        self.operators = 0
        self.graph_runs = 0
        self.operator_runs = 0
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
            reason = str(kwargs.get("reason", args[1] if len(args) > 1 else ""))
            effect = REST_SKIPPED if "skipping the rest of the function" in reason else RESUMED
            watcher.breaks.append(BreakEvent(error, effect=effect, compiled=self.f_code))
        return log_break(self, *args, **kwargs)

    @functools.wraps(convert)
    def watched_convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        watcher.on_phase("dynamo")
        try:
            result = convert(self, frame, *args, **kwargs)
        except (exc.Unsupported, exc.UserError) as error:
            if not self._one_graph:
                watcher.breaks.append(BreakEvent(error, effect=FRAME_SKIPPED, compiled=frame.f_code))
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
        operators = sum(node.op in ("call_function", "call_method", "call_module") for node in gm.graph.nodes)
        watcher.operators += operators
        watcher.on_phase("backend")
        try:
            compiled = call_compiler(self, gm, example_inputs)
        except exc.RestartAnalysis:  # the frame is traced again, and this graph is dropped
            watcher.graph_count -= 1
            watcher.operators -= operators
            raise
        watcher.on_phase("dynamo")
        return _counting_runs(compiled, operators)

    patches: list[tuple[Any, str, Any, Any]] = [
        (symbolic_convert.InstructionTranslatorBase, "log_graph_break", watched_log_break, log_break),
        (convert_frame.ConvertFrameAssert, "__call__", watched_convert, convert),
        (output_graph.OutputGraph, "call_user_compiler", watched_call_compiler, call_compiler),
    ]
    for owner, name, watched, _ in patches:
        setattr(owner, name, watched)
    runs_before, operators_before = _GraphRuns.total, _GraphRuns.operators
    try:
        yield watcher
    finally:
        watcher.graph_runs = _GraphRuns.total - runs_before
        watcher.operator_runs = _GraphRuns.operators - operators_before
        for owner, name, _, original in patches:
            setattr(owner, name, original)


class FailedGuards(NamedTuple):
    """Why a frame is compiled again: the frame, and a reason for each compiled version, the latest version first.

    `versions` counts those that Dynamo holds against its limit, and `compile_id` names the one that is now made.
    """

    frame: Any
    reasons: list[str]
    versions: int
    compile_id: str


@contextmanager
def watch_recompiles(
    on_compile: Callable[[Any, str], None], on_recompile: Callable[[FailedGuards], None]
) -> Iterator[None]:
    """Call `on_compile(frame, compile id)` for each frame that Dynamo sets out to compile, `on_recompile` before that
    where the guards of all its compiled versions failed.

    Source: torch/_dynamo/convert_frame.py (`_compile` asks for the reasons, then for the limit); torch 2.11 to 2.15.
    """
    names: Any = convert_frame
    get_reasons = names.get_and_maybe_log_recompilation_reasons
    exceeds_limit = names.exceeds_recompile_limit
    convert = convert_frame.ConvertFrameAssert.__call__
    frames: list[Any] = []
    failed: list[list[str]] = []

    @functools.wraps(convert)
    def watched_convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        frames.append(frame)
        failed.append([])
        try:
            return convert(self, frame, *args, **kwargs)
        finally:
            frames.pop()
            failed.pop()

    @functools.wraps(get_reasons)
    def watched_reasons(*args: Any, **kwargs: Any) -> Any:
        reasons = get_reasons(*args, **kwargs)
        if failed and not failed[-1]:
            failed[-1].extend(reasons)
        return reasons

    @functools.wraps(exceeds_limit)
    def watched_limit(cache_size: Any, compile_id: Any) -> Any:
        if frames:
            if failed[-1]:
                versions = int(cache_size.num_cache_entries_with_same_id_matched_objs)
                on_recompile(FailedGuards(frames[-1], failed[-1], versions, str(compile_id)))
            on_compile(frames[-1], str(compile_id))
        return exceeds_limit(cache_size, compile_id)

    names.get_and_maybe_log_recompilation_reasons = watched_reasons
    names.exceeds_recompile_limit = watched_limit
    convert_frame.ConvertFrameAssert.__call__ = watched_convert  # type: ignore[method-assign]
    try:
        yield
    finally:
        names.get_and_maybe_log_recompilation_reasons = get_reasons
        names.exceeds_recompile_limit = exceeds_limit
        convert_frame.ConvertFrameAssert.__call__ = convert  # type: ignore[method-assign]


@contextmanager
def dynamo_config(settings: Mapping[str, Any]) -> Iterator[None]:
    """Set configs of `torch._dynamo.config`, by their names there, for a while.

    Raises:
        AttributeError: this torch has no such config.
    """
    import torch._dynamo.config as config

    with config.patch(**settings):
        yield


def dynamo_config_value(name: str) -> Any:
    """Return what a config of `torch._dynamo.config` is set to, None where this torch has none of that name."""
    import torch._dynamo.config as config

    return getattr(config, name, None)


def without_disable(function: Any) -> Callable[..., Any] | None:
    """Return what `torch.compiler.disable` was put around, None where it was not.

    Source: torch/_dynamo/eval_frame.py (`DisableContext`, `innermost_fn`); torch 2.11 to 2.15.
    """
    inner = getattr(function, "_torchdynamo_orig_callable", None)
    own = getattr(function, "__func__", function)
    # functools.wraps hands the mark on to a function around it, which is not what it was put around
    is_its_own = getattr(function, "_torchdynamo_wrapper_id", id(own)) == id(own)
    if inner is None or not is_its_own or not getattr(function, "_torchdynamo_disable", False):
        return None
    return inner if own is function else types.MethodType(inner, function.__self__)


RecompileError = exc.RecompileError


@contextmanager
def error_on_recompile() -> Iterator[None]:
    """Let Dynamo raise `RecompileError` instead of compiling a frame again."""
    import torch._dynamo.config as dynamo_config

    with dynamo_config.patch(error_on_recompile=True):
        yield


@contextmanager
def watch_specializations(on_constant: Callable[[list[str], list[traceback.FrameSummary]], None]) -> Iterator[None]:
    """Call `on_constant(sources, stack)` where a size that was to be dynamic becomes part of the compiled code.

    `sources` are such as `L['x'].size()[1]`, `stack` leads from the compiled frame to the line that does it.
    Source: torch/fx/experimental/symbolic_shapes.py (`ShapeEnv._set_replacement`); torch 2.11 to 2.15.
    """
    shapes: Any = symbolic_shapes.ShapeEnv
    set_replacement = shapes._set_replacement

    @functools.wraps(set_replacement)
    def watched(self: Any, symbol: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(target, "is_number", False):
            sources = [_source_name(source) for source in self.var_to_sources.get(symbol, ())]
            on_constant(sources, list(torch._guards.TracingContext.extract_stack()))
        return set_replacement(self, symbol, target, *args, **kwargs)

    shapes._set_replacement = watched
    try:
        yield
    finally:
        shapes._set_replacement = set_replacement


def _source_name(source: Any) -> str:
    name = source.name  # a method up to torch 2.11, a property since
    return str(name() if callable(name) else name)


def makes_sizes_dynamic() -> bool:
    """Return whether Dynamo makes a size dynamic once it was seen to change."""
    import torch._dynamo.config as dynamo_config

    return bool(dynamo_config.automatic_dynamic_shapes and dynamo_config.assume_static_by_default)


def user_recompile_limit() -> int:
    """Return the limit of compiled versions that a user's own process has, whatever this one was given."""
    import torch._dynamo.config as dynamo_config

    return _limit_of_user if dynamo_config.recompile_limit == _limit_here else int(dynamo_config.recompile_limit)


_limit_of_user = _limit_here = 0


class _GraphRuns:
    """How often compiled graphs ran in this process: code that is compiled under one watcher may run under another."""

    total = 0
    operators = 0


def _counting_runs(compiled: Callable[..., Any], operators: int) -> Callable[..., Any]:
    @functools.wraps(compiled)
    def run(*args: Any, **kwargs: Any) -> Any:
        _GraphRuns.total += 1
        _GraphRuns.operators += operators
        return compiled(*args, **kwargs)

    return run


def mark_dynamic(tensor: torch.Tensor, dim: int, *, low: int | None, high: int | None) -> None:
    """Have a dim of a tensor compiled as a size of any value, or of one between two bounds."""
    torch._dynamo.mark_dynamic(tensor, dim, min=low, max=high)


def disable_caches() -> None:
    """Compile everything from scratch from now on: graphs, kernels, and sizes known from earlier runs."""
    import torch._inductor.config as inductor_config

    inductor_config.force_disable_caches = True


def compile_count() -> int:
    """Return how many frames Dynamo converted in this process, resets aside."""
    return int(dynamo_utils.counters["frames"]["ok"])


def forget_compile_metrics() -> None:
    """Let `guard_counts` begin anew."""
    dynamo_utils.clear_compilation_metrics()


def guard_counts() -> tuple[int, int]:
    """Return how many guards the code has that was compiled since, and how many of them are about sizes.

    Source: torch/_dynamo/utils.py (`CompilationMetrics`); torch 2.11 to 2.15.
    """
    metrics = dynamo_utils.get_compilation_metrics()
    return (
        sum(int(getattr(one, "guard_count", None) or 0) for one in metrics),
        sum(int(getattr(one, "shape_env_guard_count", None) or 0) for one in metrics),
    )


def cuda_graph_skips() -> int:
    """Return how often Inductor was asked for CUDA graphs and made none."""
    return int(dynamo_utils.counters["inductor"]["cudagraph_skips"])


def begin_cuda_graph_step() -> None:
    """Tell CUDA graphs that what earlier calls returned is not needed any more."""
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call] # torch left it without annotations


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


def is_of_dynamo(file: str) -> bool:
    """Return whether a file is one of Dynamo's own."""
    return file.startswith(_DYNAMO_FOLDER)


def is_device_failure(error: BaseException) -> bool:
    """Return whether the device's context is broken after this exception, so that later calls fail for nothing."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, torch.AcceleratorError):
            return True
        text = error_text(seen)
        if "CUDA error" in text or "device-side assert" in text or "illegal memory access" in text:
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def import_compiler() -> None:
    """Import what the first compile would import, which takes seconds; nothing of it touches a GPU."""
    for name in _FIRST_COMPILE:
        with contextlib.suppress(ImportError):  # not every version of torch has them all
            importlib.import_module(name)


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether a module is what `torch.compile(module)` returns."""
    from torch._dynamo.eval_frame import OptimizedModule

    return isinstance(module, OptimizedModule)


def is_own_break(event: BreakEvent) -> bool:
    """Return whether torch breaks the graph on purpose, as the wrapper around an optimizer's step does.

    Source: torch/optim/optimizer.py (`_use_grad_for_differentiable`); torch 2.11 to 2.15.
    """
    return "torch._dynamo.graph_break()" in event.message and any(
        summary.filename.endswith("torch/optim/optimizer.py") for summary in event.stack[-1:]
    )


def replace_call(module: torch.nn.Module, function: Callable[..., Any] | None) -> None:
    """Let calls of one module run `function` with the same arguments; None lets them run the module again.

    Source: torch/nn/modules/module.py (`Module.compile`, `_wrapped_call_impl`); torch 2.11 to 2.15.
    """
    if function is None:
        module.__dict__.pop("_compiled_call_impl", None)
    else:
        module.__dict__["_compiled_call_impl"] = function


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


def raise_recompile_limit(limit: int) -> None:
    """Let Dynamo compile one function so often before it falls back to eager, and remember the user's own limit."""
    import torch._dynamo.config as dynamo_config

    global _limit_of_user, _limit_here
    _limit_of_user, _limit_here = user_recompile_limit(), limit
    dynamo_config.recompile_limit = limit
    dynamo_config.accumulated_recompile_limit = max(dynamo_config.accumulated_recompile_limit, limit)


def prepare_compile_process(*, use_cache: bool) -> None:
    """Set what every probe needs: random draws as in eager, errors that show, caches on or off."""
    import torch._inductor.config as inductor_config

    inductor_config.fallback_random = True
    show_errors()
    if not use_cache:
        inductor_config.force_disable_caches = True
    keep_headers_out_of_tmpdir()


def keep_headers_out_of_tmpdir() -> None:
    """Have precompiled C++ headers go where `COMPILEBISECT_HEADERS` says, by the names that they have below TMPDIR.

    Source: torch/_inductor/codecache.py, torch 2.11 to 2.15, which takes the folder when it is imported.
    """
    folder = os.environ.get("COMPILEBISECT_HEADERS")
    if folder:
        from torch._inductor import codecache
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        headers = os.path.join(folder, os.path.basename(default_cache_dir()), "precompiled_headers")
        for name, path in (("_HEADER_DIR", headers), ("_HEADER_LOCK_DIR", os.path.join(headers, "locks"))):
            if hasattr(codecache, name):
                setattr(codecache, name, path)


def show_errors() -> None:
    """Let what fails while a graph is compiled be raised; Dynamo could run it in eager mode without a word."""
    import torch._dynamo.config as dynamo_config

    dynamo_config.suppress_errors = False


class NewOperators:
    """Operators that are registered after this was made, which a compiler that was imported before does not know.

    In a user's process Inductor is imported at the first compile, after the operators are there.
    """

    def __init__(self) -> None:
        self._known = _namespaces(_operator_names())
        self._taken: frozenset[str] = frozenset()

    def take_in(self) -> None:
        """Make a compile give what it would give in a fresh process.

        Where no operator has come since the last time nothing is done: making the table anew takes 0.2 s, which for
        a model of many small modules was a fifth of all probing. A user's own process reads it once, too.
        """
        names = frozenset(name for name in _operator_names() if name.partition("::")[0] not in self._known)
        if names == self._taken:
            return
        self._taken, new = names, _namespaces(names)
        forget_cached_graphs()
        inductor = sys.modules.get("torch._inductor.decomposition")
        if inductor is not None:
            # The table takes in what has a decomposition of its own (`CompositeImplicitAutograd`) when it is imported.
            found = dict(torch._decomp.core_aten_decompositions())
            own = {op: rule for op, rule in found.items() if op.name().partition("::")[0] in new}
            inductor.decompositions.update(own)
            inductor.fast_random_decomps.cache_clear()

    @contextmanager
    def taken_in_by_compile(self) -> Iterator[None]:
        """Do so at each call of `torch.compile`."""
        compile_plainly = torch.compile

        @functools.wraps(compile_plainly)
        def compile_with_them(*args: Any, **kwargs: Any) -> Any:
            self.take_in()
            return compile_plainly(*args, **kwargs)

        torch.compile = compile_with_them
        try:
            yield
        finally:
            torch.compile = compile_plainly


def _operator_names() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


def _namespaces(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.partition("::")[0] for name in names)


def forget_cached_graphs() -> None:
    """Compile graphs anew from now on; kernels are still found in torch's caches by their source.

    A cached graph is found by the operators' names. What an operator of the user's stands for (its kernels, its fake
    kernel, its decomposition) is no part of the key, and may have been changed since.
    """
    import torch._functorch.config as functorch_config
    import torch._inductor.config as inductor_config

    functorch_config.enable_autograd_cache = False
    inductor_config.fx_graph_cache = False


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


def is_within_function_transform(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is what `torch.func.vmap`, `grad` or the like made of another for a while.

    Source: torch/_functorch (torch 2.11 to 2.15).
    """
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_stand_in(value: Any) -> bool:
    """Return whether a value only stands for a tensor: a fake one, or one of a trace whose writes are put off.

    Source: torch/_subclasses/fake_tensor.py, aten/src/ATen/FunctionalTensorWrapper.h (torch 2.11 to 2.15).
    """
    if issubclass(type(value), FakeTensor):
        return True
    return type(value) is torch.Tensor and torch._is_functional_tensor(value)


def is_in_function_transform() -> bool:
    """Return whether `torch.func.vmap`, `grad` or the like is under way in eager mode.

    Source: torch/_functorch/pyfunctorch.py (torch 2.11 to 2.15).
    """
    return torch._C._functorch.peek_interpreter_stack() is not None


@contextmanager
def outside_modes() -> Iterator[None]:
    """Leave, for a while, the modes, overrides and transforms of the user's that would see each operator.

    Source: torch/_C/__init__.pyi, torch/utils/_python_dispatch.py, torch/_functorch/pyfunctorch.py; torch 2.11 to 2.15.
    """
    with torch._C.DisableTorchFunction(), _disable_current_modes(), temporarily_clear_interpreter_stack():
        yield


def leave_function_transforms() -> None:
    """Leave the transforms that a graph entered and, since it failed, did not leave: what comes next would be in them.

    Source: torch/_functorch/pyfunctorch.py (torch 2.11 to 2.15).
    """
    while torch._C._functorch.peek_interpreter_stack() is not None:
        torch._C._functorch.pop_dynamic_layer_stack()


def is_lazy_zero(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is all zeros without memory of its own, as gradients of what does not matter may be."""
    return bool(tensor._is_zerotensor())


def lazy_zero(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Make zeros without memory of their own."""
    return torch._efficientzerotensor(shape, dtype=dtype, device=device)


def with_other_sign_bit(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor with its negative bit, which says that its memory holds the negated values, turned over."""
    return torch._neg_view(tensor)


def is_in_backward() -> bool:
    """Return whether the autograd engine is at work in this thread. Source: torch/utils/checkpoint.py."""
    return bool(torch._C._current_graph_task_id() != -1)
