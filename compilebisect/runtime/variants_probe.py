"""A probe that feeds one compiled module all variants of its inputs, in order: what each gives, and recompiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from compilebisect.attempt import attempt
from compilebisect.core.fingerprint import fault_key
from compilebisect.core.messages import ProbeOrder, variant_folder
from compilebisect.core.module_tree import GoldenCall
from compilebisect.core.outcome import Fault, Observation
from compilebisect.error_text import error_line, error_text
from compilebisect.runtime import torch_internals
from compilebisect.runtime.faults import fault_from_error, faults_from_comparison, with_variant
from compilebisect.runtime.golden import apply_golden_state, golden_file, load_golden
from compilebisect.runtime.observing import NotObservedError
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.probe import compile_options, compile_views_anew, fences
from compilebisect.runtime.recompile_calls import judged
from compilebisect.runtime.recompiles import RecompileLog
from compilebisect.runtime.record import RunRecord
from compilebisect.runtime.rerun import GENERATED
from compilebisect.runtime.state import StateSnapshot

VariantInputs = Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]


def probe_variants(
    model: nn.Module, order: ProbeOrder, *, on_phase: Callable[[str], None], root_inputs: VariantInputs
) -> tuple[Observation, bool]:
    """Carry out the probe and return what it saw, and whether the process can go on with others after it.

    Each variant starts from the model's state as it was, so that only the inputs differ. One that cannot be made, or
    cannot be compared with eager mode, leaves the module untested.
    """
    module = model.get_submodule(order.path)
    pristine = StateSnapshot(module)
    faults: dict[Any, Fault] = {}
    unjudged: list[str] = []
    count = 0
    is_usable = True
    for call in order.calls:
        torch.compiler.reset()
        log = RecompileLog(model, order.path)
        with fences(model, order.fenced, order.methods):
            function = torch.compile(module, **compile_options(order))
            for variant in range(order.variants):
                during = f"variant {variant + 1}"
                made = attempt(_oracle, module, order, call, variant, root_inputs)
                if made.error is not None:
                    unjudged.append(f"{during} of the inputs cannot be made: {error_line(made.error)}")
                    break
                oracle = made.value
                if oracle is None:
                    continue  # this variant does not make that call
                with torch_internals.watch_compile(on_phase=on_phase), log.watching(during):
                    run = attempt(oracle.run, function)
                if run.error is not None:
                    is_usable = not torch_internals.is_device_failure(run.error)
                    found, why = _judged_error(oracle, run.error, is_usable=is_usable)
                else:
                    # what the first one gives was compared when the module was checked
                    is_compared = order.compares_values and variant > 0
                    found, why = _judged(oracle, run.value, function) if is_compared else ([], "")
                unjudged += [f"{during} of the inputs {why}"] if why else []
                for fault in found:
                    fault = msgspec.structs.replace(fault, evidence={**fault.evidence, "call": call.index})
                    faults.setdefault(fault_key(fault), with_variant(fault, variant + 1))
                if is_usable:
                    oracle.snapshot.restore()
                if run.error is not None:
                    break
            seen = judged(log, order, in_variants=True)
        if not is_usable:
            break
        pristine.restore()
        count += seen.count
        for fault in seen.faults:
            faults.setdefault(fault_key(fault), fault)
    torch.compiler.reset()
    untested = "; ".join(dict.fromkeys(unjudged))
    return Observation(faults=tuple(faults.values()), recompiles=count, untested=untested), is_usable


def _judged_error(oracle: Oracle, error: BaseException, *, is_usable: bool) -> tuple[list[Fault], str]:
    """Make a fault of what a compiled run raised, or say why it is none."""
    if isinstance(error, NotObservedError):
        return [], f"is not compared: {error_text(error)}"
    eager = attempt(oracle.eager) if is_usable else None
    if eager is not None and eager.error is not None:
        return [], f"fails in eager mode too: {error_line(eager.error)}"
    return [fault_from_error(error)], ""


def _judged(oracle: Oracle, record: RunRecord, function: Callable[..., Any]) -> tuple[list[Fault], str]:
    """Make faults of what differs, or say why nothing is known."""
    judged = attempt(oracle.judge, record, function)
    if isinstance(judged.error, NotObservedError):
        return [], f"is not compared: {error_text(judged.error)}"
    if judged.error is not None:
        return [], f"fails in eager mode: {error_line(judged.error)}"
    return faults_from_comparison(judged.value), ""


def _oracle(
    module: nn.Module, order: ProbeOrder, call: GoldenCall, variant: int, root_inputs: VariantInputs
) -> Oracle | None:
    if order.path == "":
        args, kwargs = root_inputs(variant)
    else:
        folder = Path(variant_folder(order.folder, variant))
        if not golden_file(folder, order.path, call.index).exists():
            return None
        apply_golden_state(module, folder, order.path, call.index)
        args, kwargs = load_golden(folder, order.path, call.index)
    compile_views_anew(args, kwargs)
    train = GENERATED if order.train else None
    return Oracle(
        module, args, kwargs, call.context, seed=order.seed, train=train, tolerance=order.tolerance_for(order.path)
    )
