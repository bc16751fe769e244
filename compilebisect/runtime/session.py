"""A worker's session: the model, its inputs and the settings that hold in this process."""

from __future__ import annotations

import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compilebisect.attempt import attempt
from compilebisect.core.call import CallContext
from compilebisect.core.input_spec import parse_spec
from compilebisect.core.messages import CaptureOrder, Description
from compilebisect.core.module_tree import OPTIMIZER_PATH
from compilebisect.core.nearest import did_you_mean
from compilebisect.error_text import error_line, error_text
from compilebisect.errors import BadFork, CannotTestError, CompilebisectError, EagerFailure, UsageError
from compilebisect.runtime import torch_internals
from compilebisect.runtime.cotangents import CotangentHooks
from compilebisect.runtime.describe import module_records, watch_methods
from compilebisect.runtime.golden import CallLog, Capture, golden_file, watch_calls
from compilebisect.runtime.inputs import build_inputs, check_signature, load_inputs_function
from compilebisect.runtime.kept_values import save_values
from compilebisect.runtime.loss import DEFAULT_LOSS, Loss, load_loss
from compilebisect.runtime.observing import NotObservedError
from compilebisect.runtime.optimizer import OptimizerSteps, optimizer_record
from compilebisect.runtime.record import RunRecord
from compilebisect.runtime.rerun import run_once
from compilebisect.runtime.state import StateSnapshot
from compilebisect.runtime.target import load_target
from compilebisect.runtime.traceback_text import user_traceback
from compilebisect.runtime.user_code import user_code
from compilebisect.settings import Settings

# Beyond this many compiles of one function Dynamo falls back to eager in silence; instances of a unit share their code.
_RECOMPILE_LIMIT = 1024


class Session:
    """The model as loaded, never changed for good: whoever runs it restores it afterwards."""

    def __init__(self, settings: Settings) -> None:
        """Load the model.

        Raises:
            CompilebisectError: the target, the device or a config is wrong.
        """
        self.settings = settings
        self._input_sets = 1
        self.new_operators = torch_internals.NewOperators()
        torch_internals.prepare_compile_process(use_cache=settings.cache)
        for name, value in settings.config:
            _set_config(name, value)
        torch_internals.raise_recompile_limit(_RECOMPILE_LIMIT)  # the user's own limit is counted against, not obeyed
        _check_backend(settings.backend)
        self.device = _device(settings.device)
        torch.manual_seed(settings.seed)
        target = load_target(settings.target, settings.init)
        self.root_dir = target.root_dir
        self.model: nn.Module = target.model
        if isinstance(self.model, torch.jit.ScriptModule):
            raise CannotTestError(
                "the model is a ScriptModule, which torch.compile leaves alone", fix="Name the module before scripting."
            )
        _undo_compilation(self.model)
        self._check_values()
        with user_code(self._not_ready):
            if settings.dtype is not None:
                self.model.to(getattr(torch, settings.dtype))
            self.model.to(self.device)
            self.model.train(settings.train)
        torch_internals.forbid_tf32()  # after the user's code, which may have allowed it
        if "torch._dynamo.config.suppress_errors" not in dict(settings.config):
            torch_internals.show_errors()  # this, too
        if any(nn.parameter.is_lazy(tensor) for tensor in self._tensors()):
            self._make_lazy_parameters()
        self.optimizer = OptimizerSteps(settings.optimizer) if settings.optimizer is not None else None
        if self.optimizer is not None:
            self.optimizer.make(self._trainable().values())  # options that it does not take are told at once

    def _make_lazy_parameters(self) -> None:
        """Run the model once in eager mode, as it takes a call to make the parameters of lazy modules.

        Raises:
            EagerFailure: the model does not run on these inputs.
        """
        log = CallLog(self.model)
        args, kwargs = self.inputs()
        eager = torch.compiler.set_stance("force_eager")
        with eager, torch.no_grad(), watch_calls(self.model, log.note) as failed_in:
            error = attempt(self.model, *args, **kwargs).error
        if error is not None:
            raise self._eager_failure(error, failed_in, log.last_signatures) from error

    def _check_values(self) -> None:
        """Check that the model's tensors hold something that it can run with."""
        for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            if tensor.is_meta:
                raise CannotTestError(
                    f"'{name}' is on the meta device: it has a shape and no values, so the model cannot run",
                    fix="Build the model with values, or give it some before you return it: `to_empty` and an init.",
                )

    def _not_ready(self, error: BaseException, trace: str) -> CompilebisectError:
        return CannotTestError(
            f"the model cannot be moved to {self.device} and set up: {error_line(error)}",
            fix="See to it that `.to()`, `.train()` and, with lazy modules, a first call work.",
            detail=trace,
        )

    def inputs(self, variant: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Build the inputs of one variant anew."""
        settings = self.settings
        if settings.inputs is not None:
            variants = load_inputs_function(settings.inputs, device=self.device, seed=settings.seed)
            self._input_sets = len(variants)
            return variants[variant]
        spec = parse_spec(settings.spec)
        check_signature(spec, self.model.forward)
        return build_inputs(
            spec,
            variant=variant,
            device=self.device,
            dtype=self._dtype(),
            spec_dir=Path(settings.spec_dir),
            seed=settings.seed,
        )

    def describe(self) -> Description:
        """Run the model once in eager mode and tell what it is made of.

        Raises:
            EagerFailure: the model does not run on these inputs.
        """
        log = CallLog(self.model)
        args, kwargs = self.inputs()
        started = time.perf_counter()

        snapshot = StateSnapshot(self.model)
        # What the user's own code compiles inside a forward has to run in eager mode here.
        eager = torch.compiler.set_stance("force_eager")
        context, loss = self.context(), self.loss()
        with eager, watch_methods(self.model) as methods, watch_calls(self.model, log.note) as failed_in:
            seed = self.settings.seed
            error = attempt(run_once, self.model, args, kwargs, context, seed=seed, snapshot=snapshot, train=loss).error
        if isinstance(error, NotObservedError) and not log.calls:  # it was not even begun
            raise CannotTestError(f"the model's inputs cannot be handed to it: {error_text(error)}") from error
        if isinstance(error, CompilebisectError):
            raise error
        if error is not None and not isinstance(error, NotObservedError):
            raise self._eager_failure(error, failed_in, log.last_signatures) from error
        seconds = time.perf_counter() - started
        snapshot.restore()
        if not log.calls:
            raise CannotTestError("the model's forward was never called", fix="Check that TARGET names the model.")
        cuda = self.device.type == "cuda"
        return Description(
            modules=(
                *module_records(self.model, log.calls, log.dropped, methods),
                *([optimizer_record(self.optimizer)] if self.optimizer is not None else []),
            ),
            root_dir=self.root_dir,
            device=torch.cuda.get_device_name(self.device) if cuda else "cpu",
            torch=str(torch.__version__),
            triton=_triton_version(),
            cuda=torch.version.cuda if cuda else None,
            variants=self._variant_count(),
            eager_s=seconds,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            device_share=_device_share(self.device) if cuda else 0.0,
        )

    def capture(self, order: CaptureOrder) -> dict[str, dict[int, str]]:
        """Run the model in eager mode and keep the wanted calls in files; returns by path and index why not."""
        args, kwargs = self.inputs(order.variant)
        snapshot = StateSnapshot(self.model)
        loss = self.loss()
        hooks = CotangentHooks() if loss is not None else None
        wanted = {path: set(calls) for path, calls in order.wanted.items() if path != OPTIMIZER_PATH}
        capture = Capture(self.model, wanted, Path(order.folder), hooks)
        record: RunRecord | None = None
        with torch.compiler.set_stance("force_eager"), watch_calls(self.model, capture.note):
            try:
                record = run_once(
                    self.model,
                    args,
                    kwargs,
                    self.context(),
                    seed=self.settings.seed,
                    snapshot=snapshot,
                    train=loss,
                )
            except NotObservedError:
                if OPTIMIZER_PATH in order.wanted:
                    raise
            finally:
                if hooks is not None:
                    hooks.remove()
        snapshot.restore()
        if OPTIMIZER_PATH in order.wanted and record is not None:
            parameters = {name: parameter.detach() for name, parameter in self._trainable().items()}
            gradients = {name: record.grads[name] for name in parameters if record.grads.get(name) is not None}
            kept = {"args": (parameters, gradients), "kwargs": {}}
            save_values(kept, golden_file(Path(order.folder), OPTIMIZER_PATH, 0))
        return capture.failures

    def _trainable(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def _variant_count(self) -> int:
        if self.settings.inputs is None:
            return parse_spec(self.settings.spec).variant_count
        return self._input_sets

    def loss(self) -> Loss | None:
        """Return what the backward pass of the whole model starts from; None where only the forward is checked."""
        settings = self.settings
        if not settings.train:
            return None
        train = parse_spec(settings.spec).train if settings.inputs is None else None
        return load_loss(train.loss if train is not None else DEFAULT_LOSS, settings.spec_dir)

    def context(self) -> CallContext:
        """Return the circumstances in which the whole model is called."""
        return CallContext("grad" if self.settings.train else "no_grad", (), self.settings.train)

    def _tensors(self) -> list[torch.Tensor]:
        return [*self.model.parameters(), *self.model.buffers()]

    def _dtype(self) -> torch.dtype:
        for tensor in self._tensors():
            if tensor.is_floating_point():
                return tensor.dtype
        return getattr(torch, self.settings.dtype) if self.settings.dtype else torch.get_default_dtype()

    def _eager_failure(self, error: BaseException, failed_in: list[str], signatures: dict[str, str]) -> EagerFailure:
        path = failed_in[0] if failed_in else ""
        signature = signatures.get(path, "")
        name = f"module '{path}'" if path else "the model"
        return EagerFailure(
            f"the model fails in eager mode, so it cannot be bisected: {error_line(error)}",
            where=f"{name} ({type(self.model.get_submodule(path)).__name__})",
            fix=f"It has to run without torch.compile first. {_called_with(signature)}".rstrip(),
            detail=user_traceback(error),
        )


def _undo_compilation(model: nn.Module) -> None:
    """Take away what the user compiled already, inside the model: each module is to be compiled alone."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if torch_internals.is_compiled(child):
                setattr(module, name, child._orig_mod)
        module.__dict__.pop("_compiled_call_impl", None)


def _check_backend(name: str) -> None:
    if not torch_internals.has_backend(name):
        known = torch.compiler.list_backends(None)
        raise UsageError(
            f"torch knows no backend '{name}'{did_you_mean(name, known)}",
            where="--backend",
            fix=f"Use one of {', '.join(name for name in sorted(known) if '_TESTING_ONLY' not in name)}.",
        )


def _called_with(signature: str) -> str:
    """Say which tensors a module was given: their dtypes and shapes."""
    tensors = re.findall(r"torch\.(\w+)(\(\d*(?:, ?\d*)*\))", signature)
    shown = ", ".join(f"{dtype} {shape}" for dtype, shape in tensors[:12])
    return f"This module was called with tensors {shown}." if shown else ""


def _set_config(name: str, value: Any) -> None:
    try:
        torch_internals.set_config(name, value)
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise UsageError(
            f"torch has no config '{name}' that takes {value!r}: {error_text(error)}",
            where="--config",
            fix="Write it as torch._inductor.config.NAME=VALUE or torch._dynamo.config.NAME=VALUE.",
        ) from error


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        if torch_internals.is_in_bad_fork():
            raise BadFork("CUDA was set up before this process was forked")
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            raise CannotTestError(
                f"there is no device '{name}': torch sees {count} CUDA devices",
                where="--device",
                fix="Use --device cpu, or run `compilebisect doctor`.",
            )
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    return device


def _device_share(device: torch.device) -> float:
    total = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.max_memory_reserved(device) / total


def _triton_version() -> str | None:
    module = sys.modules.get("triton")
    return str(getattr(module, "__version__", "")) or None if module else None
