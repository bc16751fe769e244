"""One probe: compile a module on its golden calls, run it beside eager, and say what was seen.

Whatever the compiler or the user's code raises in it is an observation.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from compilebisect.attempt import attempt
from compilebisect.core.fingerprint import fault_key
from compilebisect.core.messages import INSTANCE_MARK, ProbeOrder
from compilebisect.core.module_tree import GoldenCall, moved_path
from compilebisect.core.outcome import Fault, Kind, Observation
from compilebisect.core.recompile import Recompiles
from compilebisect.error_text import error_line, error_text
from compilebisect.runtime import torch_internals
from compilebisect.runtime.compare import Comparison
from compilebisect.runtime.cotangents import load_cotangents
from compilebisect.runtime.describe import first_paths
from compilebisect.runtime.faults import fault_from_error, faults_from_breaks, faults_from_comparison, in_call
from compilebisect.runtime.golden import apply_golden_state, golden_file, load_golden
from compilebisect.runtime.in_place import compiled_inside
from compilebisect.runtime.observing import NotObservedError
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.recompile_calls import call_again
from compilebisect.runtime.recompiles import RecompileLog
from compilebisect.runtime.row_of_calls import FAILS_LATER, RowVerdict
from compilebisect.runtime.state import StateSnapshot
from compilebisect.runtime.tensor_copy import share_memory
from compilebisect.runtime.torch_internals import CompileWatcher
from compilebisect.runtime.values import tensors_in


class Compiled(msgspec.Struct, frozen=True):
    """A compiled run: what ran, its record or the exception that ended it, and what Dynamo did."""

    function: Callable[..., Any]
    record: Any
    error: BaseException | None
    watcher: Any
    compile_s: float


RootInputs = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]


def probe(
    model: nn.Module,
    order: ProbeOrder,
    *,
    on_phase: Callable[[str], None],
    root_inputs: RootInputs | None = None,
) -> tuple[Observation, bool]:
    """Carry out a probe and return what it saw, and whether the process can go on with others after it.

    The model is left as it was before. `root_inputs` makes the inputs of the whole model.
    """
    module = model.get_submodule(order.path)
    pristine = StateSnapshot(module)
    findings = _Findings()
    is_usable = True
    for call in order.calls:
        # Each call stands alone: another shape in the same process would count as a recompile.
        torch.compiler.reset()
        # The fences are attributes, so nothing may be restored while they stand.
        with fences(model, order.fenced, order.methods):
            has_row = order.looks_for_recompiles or order.compares_rows
            log = RecompileLog(model, order.path) if has_row else None
            is_usable = _probe_call(model, order, order.path, call, findings, on_phase, root_inputs, log)
            if is_usable and order.compares_values:
                is_usable = _probe_last(model, order, order.path, call, findings, on_phase)
        if not is_usable:
            break
        pristine.restore()
    if is_usable and not findings.has_failed and order.compares_values:
        is_usable = _probe_instances(model, order, findings, on_phase)
    if is_usable:
        pristine.restore()
    torch.compiler.reset()
    return findings.observation(order.path), is_usable


def compiled_run(
    module: nn.Module,
    order: ProbeOrder,
    oracle: Oracle,
    *,
    inner: nn.Module | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Compiled:
    """Compile a module, or only `inner` below it, as a user would and run it once on the oracle's inputs."""
    started = time.perf_counter()
    on_phase("running")  # where the code was compiled for another instance, Dynamo will not say so
    options = compile_options(order)
    compiling = (torch.compile, module) if inner is None else (compiled_inside, module, inner)
    compiled = attempt(*compiling, **options)  # looks at attributes, which the user's `__getattr__` may answer
    function = compiled.value if compiled.error is None else module
    with torch_internals.watch_compile(on_phase=on_phase) as watcher:
        ran = attempt(oracle.run, function) if compiled.error is None else compiled
    if isinstance(ran.error, NotObservedError):
        raise ran.error
    record = ran.value if ran.error is None else None
    return Compiled(function, record, ran.error, watcher, time.perf_counter() - started)


def oracle_for(
    module: nn.Module, order: ProbeOrder, path: str, call: GoldenCall, root_inputs: RootInputs | None
) -> Oracle:
    """Give a module the state of a golden call and return the oracle for that call.

    The root's inputs are made anew rather than read from a file, which not every argument survives.
    """
    folder = Path(order.folder)
    cotangents = load_cotangents(golden_file(folder, path, call.index)) if order.train else None
    if path == "" and root_inputs is not None:
        args, kwargs = root_inputs()
    else:
        apply_golden_state(module, folder, path, call.index)
        args, kwargs = load_golden(folder, path, call.index)
    compile_views_anew(args, kwargs)
    return Oracle(
        module,
        args,
        kwargs,
        call.context,
        seed=order.seed,
        train=cotangents,
        tolerance=order.tolerance_for(path),
    )


def compile_views_anew(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Take no graph from torch's caches, from now on, where inputs share memory.

    How one is a view of another decides what AOTAutograd makes of them, and is no part of its cache's key: code for
    two views of flat memory was handed to a tensor and its view, and failed there in a way of its own. Seen with
    torch 2.13.
    """
    if share_memory([tensor for _, tensor in tensors_in((args, kwargs))]):
        torch_internals.forget_cached_graphs()


def compile_options(order: ProbeOrder) -> dict[str, Any]:
    """Return the keyword arguments for `torch.compile` that an order asks for."""
    options: dict[str, Any] = {"backend": order.backend, "dynamic": order.dynamic}
    if order.mode is not None:
        options["mode"] = order.mode
    return options


def _probe_call(
    model: nn.Module,
    order: ProbeOrder,
    path: str,
    call: GoldenCall,
    findings: _Findings,
    on_phase: Callable[[str], None],
    root_inputs: RootInputs | None = None,
    log: RecompileLog | None = None,
    *,
    is_repeat: bool = False,
) -> bool:
    """Probe one golden call; returns whether the process is still of use.

    `log` asks for further calls in a row. `is_repeat` says that another call of this module had the same signature.
    """
    try:
        return _probe_observed(model, order, path, call, findings, on_phase, root_inputs, log, is_repeat=is_repeat)
    except NotObservedError as error:
        instance = None if path == order.path else path
        findings.take_unjudged(error_text(error), call, instance=instance, is_repeat=is_repeat)
        return True


def _probe_observed(
    model: nn.Module,
    order: ProbeOrder,
    path: str,
    call: GoldenCall,
    findings: _Findings,
    on_phase: Callable[[str], None],
    root_inputs: RootInputs | None,
    log: RecompileLog | None,
    *,
    is_repeat: bool,
) -> bool:
    instance = None if path == order.path else path
    is_anew = instance is None and not is_repeat
    module, inner = model.get_submodule(path), None
    if order.compiles_only is not None:
        inner = model.get_submodule(moved_path(order.compiles_only, order.path, path))
    oracle = oracle_for(module, order, path, call, root_inputs)
    if oracle.has_nested_inputs():
        why = "eager hands it a nested tensor, which torch.compile does not take; its parent tells"
        findings.take_unjudged(why, call, instance=instance, is_repeat=is_repeat)
        return True
    # The compiled run comes first: an eager run in this process could install what the compiler then need not trace.
    with log.watching("call 1") if log else nullcontext():
        compiled = compiled_run(module, order, oracle, inner=inner, on_phase=on_phase)
    if not is_anew and findings.graphs and not (compiled.watcher.graph_runs or compiled.error):
        torch.compiler.reset()  # beyond its limit of recompiles Dynamo runs eager in silence
        compiled = compiled_run(module, order, oracle, inner=inner, on_phase=on_phase)
    if not is_repeat:  # a repeat that eager mode cannot make alone tells nothing
        findings.take_watcher(path, compiled, call, is_anew=is_anew)
    if compiled.error is not None and torch_internals.is_device_failure(compiled.error):
        findings.take_error(compiled, call, first_paths(model), instance=instance)
        return False
    on_phase("comparing")
    failure = attempt(oracle.eager).error
    if failure is not None:
        how = "" if compiled.error is not None else ", where compiled code does not"
        why = f"fails in eager mode when called alone{how}: {error_line(failure)}"
        findings.take_unjudged(why, call, instance=instance, is_repeat=is_repeat)
        return not torch_internals.is_device_failure(failure)
    if is_repeat:
        findings.take_watcher(path, compiled, call, is_anew=is_anew)
    if compiled.error is not None:
        findings.take_error(compiled, call, first_paths(model), instance=instance)
        return True
    is_right = False
    if not compiled.watcher.graph_runs and not order.fenced and oracle.computes():
        where = path or "the model"
        why = f"{where} was not captured: all of it ran in eager mode"
        if findings.has_breaks:  # these are what there is to tell
            findings.notes.append(why)
            findings.is_all_eager = True
        else:
            findings.take_unjudged(why, call, instance=instance, is_repeat=is_repeat)
    elif order.compares_values:
        comparison = oracle.judge(compiled.record, compiled.function)
        findings.take_comparison(path, comparison, call)
        is_right = comparison.is_equal
    if log is None:
        return True
    on_phase("running")

    def compile_anew() -> Callable[..., Any]:
        torch.compiler.reset()
        options = compile_options(order)
        return torch.compile(module, **options) if inner is None else compiled_inside(module, inner, **options)

    first = compiled.record if is_right and order.compares_rows else None
    row = attempt(call_again, compile_anew, compiled.function, first, oracle, log, order)
    if row.error is not None:  # user code in a state that the model's own run never reached
        findings.take_row(RowVerdict(notes=(f"{FAILS_LATER}: {error_line(row.error)}",)), call, first_paths(model))
        return not torch_internals.is_device_failure(row.error)
    seen, verdict = row.value
    if order.looks_for_recompiles:
        findings.take_recompiles(seen, call)
    findings.take_row(verdict, call, first_paths(model))
    return True


def _probe_last(
    model: nn.Module,
    order: ProbeOrder,
    path: str,
    call: GoldenCall,
    findings: _Findings,
    on_phase: Callable[[str], None],
) -> bool:
    """Run the last call that has the signature of `call`, which is probed; returns whether the process is still of use.

    What is compiled serves both, but a cell that starts from zeros, or a mask without holes, hides a wrong value.
    """
    if call.last is None or findings.has_failed or findings.is_unjudged(None if path == order.path else path):
        return True
    return _probe_call(model, order, path, call.at(call.last), findings, on_phase, is_repeat=True)


def _probe_instances(
    model: nn.Module,
    order: ProbeOrder,
    findings: _Findings,
    on_phase: Callable[[str], None],
) -> bool:
    """Run the other instances of the unit: their weights differ, and so may what they compute."""
    for path, calls in order.instances:
        module = model.get_submodule(path)

        def on_own_phase(phase: str, path: str = path) -> None:
            on_phase(f"{phase}{INSTANCE_MARK}{path}")

        pristine = StateSnapshot(module)
        fenced = tuple(moved_path(other, order.path, path) for other in order.fenced)
        with fences(model, fenced, order.methods):
            for call in calls:
                is_usable = _probe_call(model, order, path, call, findings, on_own_phase)
                if not (is_usable and _probe_last(model, order, path, call, findings, on_own_phase)):
                    return False
                if findings.has_failed:
                    pristine.restore()
                    return True
        pristine.restore()
    return True


@contextmanager
def fences(
    model: nn.Module, paths: tuple[str, ...], methods: Mapping[str, Sequence[str]] | None = None
) -> Iterator[None]:
    """Keep the modules at `paths` out of compiled code while they do their work in eager mode.

    `methods` names by path the methods besides `forward` through which they are entered.
    """
    standing = [_Fence(model.get_submodule(path), (methods or {}).get(path, ())) for path in paths]
    try:
        for fence in standing:
            fence.raise_up()
        yield
    finally:
        for fence in standing:
            fence.take_down()


class _Fence:
    """Keeps one module, with its hooks, out of compiled code: its whole call runs behind `torch.compiler.disable`."""

    _HOOKS = tuple(name for name in nn.Module().__dict__ if "forward_" in name and "hooks" in name)

    def __init__(self, module: nn.Module, methods: Sequence[str] = ()) -> None:
        self._module = module
        names = ("forward", *self._HOOKS, *methods)
        self._own = {name: module.__dict__[name] for name in names if name in module.__dict__}
        self._disabled = {name: self._disabled_way(name) for name in ("forward", *methods)}

    def _disabled_way(self, name: str) -> Any:
        def compilebisect_fence(*args: Any, **kwargs: Any) -> Any:
            self.take_down()
            try:
                way = self._module if name == "forward" else getattr(self._module, name)
                return way(*args, **kwargs)
            finally:
                self.raise_up()

        return torch.compiler.disable(compilebisect_fence)  # type: ignore[no-untyped-call]

    def raise_up(self) -> None:
        for name in self._HOOKS:
            if name in self._own:
                self._module.__dict__[name] = type(self._own[name])()
        self._module.__dict__.update(self._disabled)

    def take_down(self) -> None:
        for name in self._disabled:
            self._module.__dict__.pop(name, None)
        self._module.__dict__.update(self._own)


class _Findings:
    """Gathers what the runs of one probe show into one observation."""

    def __init__(self) -> None:
        self.faults: dict[Any, Fault] = {}
        self.by_instance: dict[str, list[Fault]] = {}
        # Graph breaks by the instance whose run met them; None for one that ran code compiled for another.
        self.breaks: dict[str, list[Fault] | None] = {}
        self.notes: list[str] = []
        self.untested = ""
        self.untested_instances: dict[str, str] = {}
        self.has_failed = False
        self.is_blind = self.has_excused = self.is_all_eager = False
        self.right_rows: list[bool] = []
        self.graphs = self.operators = self.frames_compiled = self.recompiles = 0
        self.compile_s = 0.0

    def add(self, fault: Fault, call: GoldenCall, *, instance: str | None = None) -> None:
        """Keep a fault; one with an `instance` belongs to the values of that module, not to the code of all."""
        # The same line reached in two ways may be two modules' own.
        way = tuple((frame.file, frame.line) for frame in fault.frames)
        evidence = {**fault.evidence, "call": call.index}
        if instance is not None:
            evidence["instance"] = instance
        fault = msgspec.structs.replace(fault, evidence=evidence)
        self.faults.setdefault((fault_key(fault), way), fault)
        if instance is not None:
            self.by_instance.setdefault(instance, []).append(fault)

    def take_watcher(self, path: str, compiled: Compiled, call: GoldenCall, *, is_anew: bool) -> None:
        watcher: CompileWatcher = compiled.watcher
        self.graphs += watcher.graph_count
        self.operators += watcher.operators
        self.frames_compiled += watcher.frames_compiled
        self.compile_s += compiled.compile_s
        did_nothing = not (watcher.frames_compiled or watcher.frames_skipped or watcher.breaks or compiled.error)
        if did_nothing and is_anew:  # further instances and calls run the code that was compiled for the first
            self.untested = "torch.compile left it alone: no frame of it was compiled"
        breaks = faults_from_breaks(watcher.breaks, call)
        is_compiled_anew = is_anew or watcher.frames_compiled or watcher.frames_skipped or breaks
        met = self.breaks.get(path) or ([] if is_compiled_anew else None)
        for _, fault in breaks:
            self.add(fault, call)
            met = [*(met or []), fault]
        self.breaks[path] = met

    def take_unjudged(self, why: str, call: GoldenCall, *, instance: str | None, is_repeat: bool) -> None:
        """Say why a call shows nothing; with that, the module is not judged, unless an equal call of it was."""
        if is_repeat:
            self.notes.append(f"call {call.index} is not judged: {why}")
            self.has_excused = True
        elif instance is not None:
            self.untested_instances.setdefault(instance, why)
        else:
            self.untested = self.untested or why

    @property
    def has_breaks(self) -> bool:
        return any(fault.kind is Kind.GRAPH_BREAK for fault in self.faults.values())

    def is_unjudged(self, instance: str | None) -> bool:
        """Return whether a call of this instance showed nothing; None is the one that was compiled."""
        return bool(self.untested) if instance is None else instance in self.untested_instances

    def take_error(
        self, compiled: Compiled, call: GoldenCall, paths: Mapping[int, str], *, instance: str | None
    ) -> None:
        assert compiled.error is not None
        self.has_failed = True
        self.add(fault_from_error(compiled.error, paths), call, instance=instance)

    def take_recompiles(self, seen: Recompiles, call: GoldenCall) -> None:
        self.recompiles += seen.count
        for fault in seen.faults:
            self.add(fault, call)

    def take_comparison(self, path: str, comparison: Comparison, call: GoldenCall) -> None:
        self.notes.extend(note for note in comparison.notes if note not in self.notes)
        self.is_blind = self.is_blind or comparison.is_constant_output
        self.has_excused = self.has_excused or comparison.has_excused
        for fault in faults_from_comparison(comparison):
            self.add(fault, call, instance=path)

    def take_row(self, verdict: RowVerdict, call: GoldenCall, paths: Mapping[int, str]) -> None:
        """Take in what calls in a row gave: it hangs on the code rather than on the values of one instance."""
        self.notes.extend(verdict.notes)
        self.has_excused = self.has_excused or verdict.has_excused
        self.right_rows.append(verdict.is_right)
        faults = faults_from_comparison(verdict.comparison) if verdict.comparison is not None else []
        if verdict.error is not None:
            self.has_failed = True
            faults = [fault_from_error(verdict.error, paths)]
        for fault in faults:
            self.add(in_call(fault, verdict.number), call)

    def _assign_breaks(self, first: str) -> None:
        """Give the breaks that only some instances meet (by an index, say) to those alone."""
        shared = self.breaks.get(first) or []
        met = {path: shared if own is None else own for path, own in self.breaks.items()}
        keys = {path: {fault_key(fault) for fault in faults} for path, faults in met.items()}
        for path, faults in met.items():
            for fault in {fault_key(fault): fault for fault in faults}.values():
                if not all(fault_key(fault) in others for others in keys.values()):
                    evidence = {**fault.evidence, "instance": path}
                    own = msgspec.structs.replace(fault, evidence=evidence)
                    self.by_instance.setdefault(path, []).append(own)

    def observation(self, first: str) -> Observation:
        self._assign_breaks(first)
        return Observation(
            faults=tuple(self.faults.values()),
            completed=not self.has_failed,
            graphs=self.graphs,
            operators=self.operators,
            frames_compiled=self.frames_compiled,
            recompiles=self.recompiles,
            compile_s=self.compile_s,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            is_all_eager=self.is_all_eager,
            is_blind=self.is_blind,
            has_excused=self.has_excused,
            has_right_rows=bool(self.right_rows) and all(self.right_rows),
            untested=self.untested,
            untested_instances=self.untested_instances,
            notes=tuple(dict.fromkeys(self.notes)),
            faults_by_instance={path: tuple(faults) for path, faults in self.by_instance.items()},
        )
