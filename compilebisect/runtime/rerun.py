"""Running a module once on given inputs under the switches of a golden call, with a record of all that it left."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from compilebisect.core.call import CallContext
from compilebisect.core.tolerance import FLOORS
from compilebisect.runtime.cotangents import Cotangents, made_up_cotangent
from compilebisect.runtime.figures import dtype_name, is_inexact
from compilebisect.runtime.grad_leaves import GradLeaves
from compilebisect.runtime.loss import Loss
from compilebisect.runtime.observing import NotObservedError, observed
from compilebisect.runtime.record import RunRecord, alias_pairs
from compilebisect.runtime.state import StateSnapshot
from compilebisect.runtime.stopwatch import Stopwatch
from compilebisect.runtime.tensor_copy import UNSUPPORTED, TensorCloner, storage_key
from compilebisect.runtime.tensor_state import version_of
from compilebisect.runtime.values import clone_value, map_tensors, tensors_in

#: No cotangents by the path of an output: they are made up for all outputs.
GENERATED: Cotangents = {}


def run_once(
    module_callable: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context: CallContext,
    *,
    seed: int = 0,
    snapshot: StateSnapshot | None = None,
    restores: bool = True,
    module: nn.Module | None = None,
    train: Cotangents | Loss | None = None,
    stopwatch: Stopwatch | None = None,
) -> RunRecord:
    """Run a module as in its golden call; the given inputs stay as they are.

    Args:
        module_callable: the module, or what was compiled from it.
        args: golden positional arguments.
        kwargs: golden keyword arguments.
        context: grad mode, autocast and training flag of the golden call.
        seed: for all random number generators.
        snapshot: the state to start from; put back before the run, not after it. Changes are told against it.
        restores: False starts from the state that there is, and only compares it with the snapshot afterwards.
        module: whose parameters and buffers count, where there is no snapshot to tell.
        train: runs backward too, from these cotangents (`GENERATED` for made-up ones) or from this loss of the output,
            and collects gradients. A call that ran without grad mode is none of a backward pass.
        stopwatch: runs during the call of the module, and during the backward pass.

    Raises:
        NotObservedError: the arguments cannot be copied, or what the run leaves cannot be read.
        Exception: whatever the module raises.
    """
    if snapshot is not None:
        if restores:
            observed("its state cannot be put back", snapshot.restore)
        module = snapshot.module if module is None else module  # not `or`: a module may have a `__bool__`
    if module is None and isinstance(module_callable, nn.Module):
        module = module_callable
    owned = _owned_tensors(module)
    running: contextlib.AbstractContextManager[Any] = stopwatch or contextlib.nullcontext()
    if context.grad_mode != "grad":
        train = None
    with _switches(module, context):
        inputs = observed("its arguments cannot be copied", _Inputs, args, kwargs, needs_grad=train is not None)
        if train is not None:
            _drop_gradients(owned)
        seed_all(seed)
        generators = _generator_states()
        with _autocast(context), running:  # for the forward alone, as torch wants it
            output = module_callable(*inputs.args, **inputs.kwargs)
        generators_after = _generator_states()
    named_outputs = observed("what it returns cannot be read", tensors_in, output, "output")
    if train is not None:
        with running:
            _run_backward(output, named_outputs, train, seed)
    if _is_cuda_in_use():
        torch.cuda.synchronize()  # an error on the device must show in the run that made it

    def record() -> RunRecord:
        inputs.check_unchanged()
        return RunRecord(
            output=_frozen(output, owned),
            inputs_after=map_tensors((inputs.args, inputs.kwargs), detached),
            state=snapshot.changes() if snapshot is not None else {},
            grads=_collect_gradients(inputs.leaves, owned) if inputs.leaves is not None else {},
            requires_grad=frozenset(path for path, tensor in named_outputs if tensor.requires_grad),
            aliases=alias_pairs(output, [*inputs.named, *((f"state.{path}", tensor) for path, tensor in owned)]),
            noise_dtype=_coarsest_dtype([tensor for _, tensor in [*inputs.named, *owned]], context),
            draws_random=generators != generators_after,
            draws_end=generators_after,
        )

    return observed("what it leaves cannot be read", record)


class _Inputs:
    """Copies of a call's arguments for one run; `leaves` collects their gradients, where those are wanted."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, needs_grad: bool) -> None:
        self.leaves = GradLeaves(args, kwargs) if needs_grad else None
        copies = (self.leaves.args, self.leaves.kwargs) if self.leaves is not None else clone_value((args, kwargs))
        self.args, self.kwargs = copies
        self.named = [*tensors_in(self.args, "inputs.args"), *tensors_in(self.kwargs, "inputs.kwargs")]
        originals = {id(tensor) for _, tensor in tensors_in((args, kwargs))}
        shared = [(path, tensor) for path, tensor in self.named if id(tensor) in originals]
        self._shared = [(path, tensor, version_of(tensor)) for path, tensor in shared]

    def check_unchanged(self) -> None:
        """See to it that what could not be copied was not written to: the next run would start from something else.

        Raises:
            NotObservedError: it was.
        """
        for path, tensor, version in self._shared:
            if version_of(tensor) != version:
                raise NotObservedError(f"it writes into {path}, a {type(tensor).__name__} that cannot be copied")


def _drop_gradients(owned: list[tuple[str, torch.Tensor]]) -> None:
    for _, tensor in owned:
        if tensor.is_leaf:
            tensor.grad = None


def seed_all(seed: int) -> None:
    """Seed the generators of torch (all devices), numpy and `random`."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _owned_tensors(module: nn.Module | None) -> list[tuple[str, torch.Tensor]]:
    if module is None:
        return []
    named = [*module.named_parameters(), *module.named_buffers()]
    return [(path, tensor) for path, tensor in named if not nn.parameter.is_lazy(tensor)]


@contextlib.contextmanager
def _switches(module: nn.Module | None, context: CallContext) -> Iterator[None]:
    if module is not None and module.training != context.training:
        module.train(context.training)
    with contextlib.ExitStack() as stack:
        if context.grad_mode == "inference":
            stack.enter_context(torch.inference_mode())
        else:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(context.grad_mode == "grad"))
        yield


@contextlib.contextmanager
def _autocast(context: CallContext) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for device, dtype in context.autocast:
            stack.enter_context(torch.autocast(device, dtype=getattr(torch, dtype)))
        yield


def _is_cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call] # torch left it without annotations


def _generator_states() -> str:
    states = [torch.get_rng_state()]
    if _is_cuda_in_use():
        states += torch.cuda.get_rng_state_all()
    return hashlib.sha256(b"".join(state.numpy().tobytes() for state in states)).hexdigest()


def _run_backward(output: Any, named: list[tuple[str, torch.Tensor]], train: Cotangents | Loss, seed: int) -> None:
    with torch.inference_mode(False), torch.enable_grad():
        if callable(train):
            loss = train(output)
            if loss is not None:
                loss.backward()  # type: ignore[no-untyped-call] # torch left it without annotations
            return
        roots = {id(tensor): (path, tensor) for path, tensor in named if tensor.requires_grad and is_inexact(tensor)}
        chosen: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, (path, tensor) in enumerate(roots.values()):
            given = train.get(path)
            if given is not None and given.shape == tensor.shape:
                chosen.append((tensor, given.to(tensor.device, tensor.dtype)))
            elif given is not None or not train:  # another shape than the golden call's is a finding of its own
                chosen.append((tensor, made_up_cotangent(tensor, seed + number + 1)))
        if chosen:
            torch.autograd.backward([tensor for tensor, _ in chosen], [cotangent for _, cotangent in chosen])


def _collect_gradients(leaves: GradLeaves, owned: list[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor | None]:
    grads = leaves.gradients()
    grads.update((path, tensor.grad) for path, tensor in owned if tensor.is_leaf and tensor.requires_grad)
    found = {path: None if grad is None else detached(grad) for path, grad in grads.items()}
    _drop_gradients(owned)
    return found


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Detach a tensor, where its kind can be."""
    try:
        return tensor.detach()
    except UNSUPPORTED:
        return tensor


def _frozen(output: Any, owned: list[tuple[str, torch.Tensor]]) -> Any:
    """Detach the outputs, and copy those that the next `restore()` would change under our hands."""
    keys = {storage_key(tensor) for _, tensor in owned} - {None}
    shared = [tensor for _, tensor in tensors_in(output) if storage_key(tensor) in keys]
    cloner = TensorCloner([detached(tensor) for tensor in shared])
    ids = {id(tensor) for tensor in shared}

    def freeze(tensor: torch.Tensor) -> torch.Tensor:
        return cloner.clone(detached(tensor)) if id(tensor) in ids else detached(tensor)

    return map_tensors(output, freeze)


def _coarsest_dtype(tensors: list[torch.Tensor], context: CallContext) -> str:
    """Name the floating dtype with the largest eps that takes part; 8-bit weights are constants, not results."""
    names = {dtype_name(tensor.dtype) for tensor in tensors if is_inexact(tensor)}
    names |= {dtype for _, dtype in context.autocast}
    known = [name for name in names if name in FLOORS and not name.startswith("float8")]
    return max(known, key=lambda name: FLOORS[name].eps, default="")
