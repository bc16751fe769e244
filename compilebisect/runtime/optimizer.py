"""The optimizer that `--optimizer` names, and its step as something that runs and is compared like a module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from compilebisect.core.call import CallContext
from compilebisect.core.module_tree import OPTIMIZER_PATH, GoldenCall, ModuleRecord
from compilebisect.core.nearest import did_you_mean
from compilebisect.error_text import error_text
from compilebisect.errors import UsageError

#: Steps in a row: the first one makes the state, and whatever is compiled again after the second one is so each time.
STEPS = 4
_WHERE = "--optimizer"
#: Tells of each step, by its number from 1.
Around = Callable[[int], AbstractContextManager[Any]]


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """Return a class of `torch.optim` by its name in any case.

    Raises:
        UsageError: there is none of this name, or its step needs a closure.
    """
    base = torch.optim.Optimizer
    known = {
        found.__name__.lower(): found
        for found in vars(torch.optim).values()
        if isinstance(found, type) and issubclass(found, base) and found is not base
    }
    cls = known.get(name.lower())
    if cls is None:
        names = sorted(found.__name__ for found in known.values())
        near = did_you_mean(name.lower(), list(known))
        raise UsageError(
            f"torch.optim has no optimizer {name!r}{near}", where=_WHERE, fix=f"Use one of {', '.join(names)}."
        )
    closure = inspect.signature(cls.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UsageError(
            f"the step of {cls.__name__} calls a closure, which cannot be compiled by itself",
            where=_WHERE,
            fix="Name an optimizer whose step needs none.",
        )
    return cls


def optimizer_record(steps: OptimizerSteps) -> ModuleRecord:
    """Describe the optimizer as the tree lists it, beside the modules."""
    call = GoldenCall(index=0, signature="steps", count=STEPS, context=CallContext("no_grad", (), True))
    name = steps.cls.__name__
    return ModuleRecord(
        path=OPTIMIZER_PATH, class_name=name, class_id=f"torch.optim:{name}", config=repr(steps.options), calls=(call,)
    )


class OptimizerSteps(nn.Module):
    """Makes an optimizer anew for parameters and gradients by name, lets it step, and returns what it did to them."""

    def __init__(self, choice: dict[str, Any]) -> None:
        super().__init__()
        self.cls = optimizer_class(choice["name"])
        self.options = {name: value for name, value in choice.items() if name != "name"}

    @property
    def coarseness(self) -> float:
        """How exact an update is at best where the optimizer computes in bfloat16; else 0."""
        # Source: torch/optim/_muon.py (`_zeropower_via_newtonschulz`), torch 2.11 to 2.15; it rounds several products.
        return 8 * 2.0**-7 if self.cls.__name__ == "Muon" else 0.0

    def make(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer.

        Raises:
            UsageError: it does not take these options or parameters.
        """
        try:
            return self.cls(list(parameters), **self.options)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{self.cls.__name__} cannot be made: {error_text(error)}",
                where=_WHERE,
                fix='Give options that it takes, as in \'{"name": "sgd", "lr": 0.1}\'.',
            ) from error

    def forward(self, parameters: dict[str, torch.Tensor], gradients: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Step in eager mode.

        Args:
            parameters: the values that they start from, by name.
            gradients: for each step the same; a parameter may have none.
        """
        return self.run(parameters, gradients)

    def with_compiled(
        self, compile_step: Callable[[Any], Callable[..., Any]], around: Around
    ) -> Callable[..., dict[str, Any]]:
        """Return a function that does the same with a compiled step; `around` is entered around each one."""
        return lambda *args: self.run(*args, compile_step=compile_step, around=around)

    def run(
        self,
        parameters: dict[str, torch.Tensor],
        gradients: dict[str, torch.Tensor],
        *,
        compile_step: Callable[[Any], Callable[..., Any]] | None = None,
        around: Around = lambda number: nullcontext(),
    ) -> dict[str, Any]:
        """Step, and return `parameters`, `updates` (the way that they went, in float64) and `state` by name."""
        own = {name: nn.Parameter(tensor.detach().clone()) for name, tensor in parameters.items()}
        for name, gradient in gradients.items():
            own[name].grad = gradient.detach().clone()
        optimizer = self.make(own.values())
        step = optimizer.step if compile_step is None else compile_step(optimizer.step)
        for number in range(1, STEPS + 1):
            with around(number):
                step()
        return {
            "parameters": {name: tensor.detach() for name, tensor in own.items()},
            "updates": {
                name: tensor.detach().to(torch.float64) - parameters[name].detach().to(torch.float64)
                for name, tensor in own.items()
                if tensor.is_floating_point()
            },
            "state": {name: dict(optimizer.state[tensor]) for name, tensor in own.items() if tensor in optimizer.state},
        }
