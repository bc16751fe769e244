"""Gathers what a repro script needs from a live module: its graphs, or its source, with the inputs of a golden call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from compilebisect.attempt import attempt
from compilebisect.core.messages import ProbeOrder, ReproOrder, variant_folder
from compilebisect.core.module_tree import OPTIMIZER_PATH, GoldenCall
from compilebisect.core.outcome import Fault, Kind, Stage
from compilebisect.core.repro_case import ReproCase
from compilebisect.error_text import error_line
from compilebisect.errors import CannotTestError
from compilebisect.runtime.cotangents import load_cotangents
from compilebisect.runtime.function_source import function_case
from compilebisect.runtime.golden import apply_golden_state, golden_file, load_golden
from compilebisect.runtime.graph_source import graph_case
from compilebisect.runtime.module_source import CannotMakeCase, module_case
from compilebisect.runtime.optimizer_case import optimizer_case
from compilebisect.runtime.probe import fences
from compilebisect.runtime.rerun import GENERATED, run_once
from compilebisect.runtime.session import Session
from compilebisect.runtime.state import StateSnapshot
from compilebisect.runtime.target_source import target_case
from compilebisect.runtime.values import clone_value, tensors_in

# Graphs of one module beyond this many are not tried one by one; the module's source shows the fault then.
_MAX_GRAPHS = 4
# Torch's caches of graphs, which scripts run without otherwise. Code that is made again may come from there, and be
# wrong for that: torch 2.13 takes a number out of a cached graph that was a constant in it.
_CACHES = (("torch._inductor.config.fx_graph_cache", "True"), ("torch._functorch.config.enable_autograd_cache", "True"))


Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def cases_of(session: Session, order: ReproOrder) -> list[ReproCase]:
    """Make the repro cases of one fault at the order's level of independence, the smallest first."""
    if order.probe.path == OPTIMIZER_PATH:
        return _optimizer_cases(session, order)
    in_place = order.probe.in_place
    module = session.model if in_place else session.model.get_submodule(order.probe.path)
    pristine = StateSnapshot(module)
    call = _call_of_model(session) if in_place else _call_of(order.probe, order.fault)
    if order.probe.path == "" or in_place:
        args, kwargs = session.inputs()
    else:
        folder = Path(order.probe.folder)
        apply_golden_state(module, folder, order.probe.path, call.index)
        args, kwargs = load_golden(folder, order.probe.path, call.index)
    further_calls = _further_calls(session, order, call)
    config = order.config
    if session.settings.cache and order.fault.kind is not Kind.RECOMPILE and (order.fault.is_in_row or further_calls):
        config = (*config, *_CACHES)
    cotangents: dict[int, torch.Tensor] = {}
    if order.probe.train and not in_place and order.level != "standalone":
        kept = load_cotangents(golden_file(Path(order.probe.folder), order.probe.path, call.index))
        cotangents = _by_number(kept, module, args, kwargs, call, order.probe.seed)
    common: dict[str, Any] = {
        "module_path": order.probe.path,
        "context": call.context,
        "device": session.device.type,
        "backend": order.probe.backend,
        "mode": order.probe.mode,
        "dynamic": order.probe.dynamic,
        "config": config,
        "train": order.probe.train,
        "seed": order.probe.seed,
        "cotangents": cotangents,
        "tolerance": order.probe.tolerance_for(order.probe.path),
        "in_place": _ways_into(order.probe) if in_place else (),
        "deadline_s": order.deadline_s,
        "environment": order.environment,
        "row": order.fault.evidence.get("call_in_row", 1),
    }
    failures: list[str] = []
    try:
        cases = [
            case
            for (first_args, first_kwargs), *others in _fewest_first([(args, kwargs), *further_calls], order.fault)
            for case in _cases(session, module, first_args, first_kwargs, call, order, common, others, failures)
        ]
        if not cases and failures:
            raise CannotTestError(f"no script: {'; '.join(dict.fromkeys(failures))}")
        class_name = type(session.model.get_submodule(order.probe.path)).__name__
        return [msgspec.structs.replace(case, module_class=class_name) for case in cases]
    finally:
        pristine.restore()
        torch.compiler.reset()


def _cases(
    session: Session,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: GoldenCall,
    order: ReproOrder,
    common: dict[str, Any],
    further_calls: list[Inputs],
    failures: list[str],
) -> Iterator[ReproCase]:
    makers: list[tuple[str, Callable[..., ReproCase], tuple[Any, ...]]] = []
    alone = not order.probe.in_place
    # what takes several calls hangs on what the module keeps, or on how it was compiled before
    is_one_call = not order.fault.is_in_row and not further_calls
    if alone and is_one_call and order.level != "import" and _lies_behind_capture(order.fault):
        for number, (gm, inputs) in enumerate(_graphs(module, args, kwargs, call, order)):
            makers.append((f"graph{number}", graph_case, (gm, inputs, order.fault)))
    makers.append(("module", module_case, (module, args, kwargs, order.fault)))
    if (
        alone
        and is_one_call
        and order.level != "import"
        and order.fault.stage is Stage.DYNAMO
        and order.fault.kind is not Kind.RECOMPILE
    ):
        makers.append(("function", function_case, (_eager_run(module, args, kwargs, call, order), order.fault)))
    for name, make, material in makers:
        options = dict(common)
        if make is not module_case:
            del options["cotangents"]  # those of a part are not known
        if make is graph_case:
            options["module"] = module
        elif make is function_case:
            options["module_class"] = type(module).__name__
        elif make is module_case:
            options["further_calls"] = further_calls
        if order.level != "standalone":
            name = f"{name}-{1 + len(further_calls)}" if order.probe.variants else name
            options["tensor_file"] = Path(order.tensors) / f"{order.name}-{name}-{order.level}.safetensors"
        if order.level == "import":
            options["import_user_code"] = True
        made = attempt(make, *material, **options)  # the model's objects may raise anything when they are looked at
        if made.error is None:
            yield made.value
        elif not isinstance(made.error, CannotMakeCase):
            failures.append(f"the {name} cannot be described: {error_line(made.error)}")
    if order.level == "import" and not further_calls:
        settings = session.settings
        file = Path(order.tensors) / f"{order.name}-target.safetensors"
        with contextlib.suppress(CannotMakeCase):
            yield target_case(
                module,
                args,
                kwargs,
                order.fault,
                target=settings.target,
                init=settings.init,
                tensor_file=file,
                **common,
            )


def _by_number(
    cotangents: Mapping[str, torch.Tensor],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: GoldenCall,
    seed: int,
) -> dict[int, torch.Tensor]:
    """Return cotangents by the number that a script gives to the outputs which require a gradient."""
    outputs: list[Any] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        outputs.append(module(*args, **kwargs))
        return outputs[0]

    base = StateSnapshot(module)
    ran = attempt(run_once, noted, args, kwargs, call.context, seed=seed, snapshot=base, train=GENERATED)
    base.restore()
    if ran.error is not None:
        return {}  # a case without golden cotangents is worth more than none
    paths = {id(tensor): path for path, tensor in reversed(tensors_in(outputs[0], "output"))}
    numbers: dict[str, int] = {}
    for number, leaf in enumerate(leaf for leaf in _leaves(outputs[0]) if leaf.requires_grad):
        numbers.setdefault(paths.get(id(leaf), ""), number)
    return {numbers[path]: cotangent for path, cotangent in cotangents.items() if path in numbers}


def _leaves(value: Any) -> list[torch.Tensor]:
    """List the tensors of an output in the order of the function of this name in scripts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        value = (value if isinstance(value, dict) else getattr(value, "__dict__", {})).values()
    return [leaf for item in value for leaf in _leaves(item)]


def _further_calls(session: Session, order: ReproOrder, call: GoldenCall) -> list[Inputs]:
    """Return the inputs of the further variants, where the fault takes them."""
    found = []
    for variant in range(1, order.fault.evidence.get("variant", order.probe.variants) if order.probe.variants else 0):
        folder = Path(variant_folder(order.probe.folder, variant))
        if order.probe.path == "":
            found.append(session.inputs(variant))
        elif golden_file(folder, order.probe.path, call.index).exists():
            found.append(load_golden(folder, order.probe.path, call.index))
    return found


def _fewest_first(calls: list[Inputs], fault: Fault) -> list[list[Inputs]]:
    """Return the calls to try for a fault: where the last one shows it, that one alone and after the first, too."""
    if fault.kind is Kind.RECOMPILE or len(calls) < 2:
        return [calls]
    return [calls[-1:], *([[calls[0], calls[-1]]] if len(calls) > 2 else []), calls]


def _lies_behind_capture(fault: Fault) -> bool:
    return fault.kind is not Kind.GRAPH_BREAK and fault.stage is not Stage.DYNAMO


def _graphs(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], call: GoldenCall, order: ReproOrder
) -> list[tuple[torch.fx.GraphModule, list[Any]]]:
    """Capture the graphs of one call with a backend that does nothing with them.

    Where the fault ends the process only the first one is captured: an operator of it may be what does that.
    """
    graphs: list[tuple[torch.fx.GraphModule, list[Any]]] = []

    def collect(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        if len(graphs) < _MAX_GRAPHS:
            graphs.append((gm, clone_value(inputs)))  # with the values from before the run
        return _stop if order.fault.kind in (Kind.CRASH, Kind.TIMEOUT) else gm.forward

    torch.compiler.reset()
    base = StateSnapshot(module)
    with fences(module, _relative(order.probe)):
        train = GENERATED if order.probe.train else None
        seed = order.probe.seed
        # The graphs up to an error are what is wanted; the fault itself is known already.
        compiled = attempt(torch.compile, module, backend=collect, dynamic=order.probe.dynamic)
        if compiled.error is None:
            attempt(run_once, compiled.value, args, kwargs, call.context, seed=seed, snapshot=base, train=train)
    base.restore()
    torch.compiler.reset()
    return graphs


def _eager_run(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], call: GoldenCall, order: ReproOrder
) -> Callable[[], Any]:
    def run() -> None:
        base = StateSnapshot(module)
        try:
            run_once(module, args, kwargs, call.context, seed=order.probe.seed, snapshot=base)
        finally:
            base.restore()

    return run


class _CapturedEnough(Exception):
    """Ends a run whose graphs are not to be run."""


def _stop(*args: Any) -> Any:
    raise _CapturedEnough


def _relative(order: ProbeOrder) -> tuple[str, ...]:
    prefix = f"{order.path}." if order.path else ""
    return tuple(path.removeprefix(prefix) for path in order.fenced)


def _optimizer_cases(session: Session, order: ReproOrder) -> list[ReproCase]:
    if order.level == "import" or session.optimizer is None:
        return []  # there is nothing of the user's to import
    (parameters, gradients), _ = load_golden(Path(order.probe.folder), OPTIMIZER_PATH, order.probe.calls[0].index)
    is_saved = order.level != "standalone"
    try:
        case = optimizer_case(
            session.optimizer,
            parameters,
            gradients,
            order.fault,
            device=session.device.type,
            tensor_file=Path(order.tensors) / f"{order.name}-{order.level}.safetensors" if is_saved else None,
            backend=order.probe.backend,
            mode=order.probe.mode,
            dynamic=order.probe.dynamic,
            config=order.config,
            seed=order.probe.seed,
            tolerance=order.probe.tolerance_for(OPTIMIZER_PATH),
            deadline_s=order.deadline_s,
            context=order.probe.calls[0].context,
        )
    except CannotMakeCase:
        return []
    return [case]


def _call_of_model(session: Session) -> GoldenCall:
    return GoldenCall(index=0, signature="", count=1, context=session.context())


def _ways_into(order: ProbeOrder) -> tuple[str, ...]:
    called = (order.path,) if order.calls else ()
    return (*called, *(f"{order.path}:{name}" for name in order.methods.get(order.path, ())))


def _call_of(order: ProbeOrder, fault: Fault) -> GoldenCall:
    wanted = fault.evidence.get("call")
    call = next((call for call in order.calls if wanted in call.indices), order.calls[0])
    return call if wanted is None else call.at(wanted)
