"""What to change so that a graph break is gone, by torch's type of it; and what of torch may do alone: a switch, or a
decorator of the function that is called.

Types that are not listed keep the hint that torch gives. Each switch and decorator was seen to admit what it is listed
for with torch 2.11, 2.13 and 2.15; whether it does so in a user's module is tried there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from compilebisect.core.outcome import Fault
from compilebisect.core.words import plural

_IS_COMPILING = "if not torch.compiler.is_compiling():"


class Switch(msgspec.Struct, frozen=True):
    """A config of `torch._dynamo.config` that may admit what breaks the graph.

    `functions` are the dotted names to add where it is a set of functions; else it is set to True.
    """

    name: str
    functions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The line that sets it."""
        name = f"torch._dynamo.config.{self.name}"
        if not self.functions:
            return f"{name} = True"
        added = ", ".join(function.removeprefix("builtins.") for function in self.functions)
        return f"{name}.add({added})" if len(self.functions) == 1 else f"{name} |= {{{added}}}"


class Decorator(msgspec.Struct, frozen=True):
    """One of torch's decorators, by its dotted name, for the function that is called where the graph breaks.

    With `is_taken_off` that function has it, and the cure is to be without.
    """

    name: str
    is_taken_off: bool = False

    def text(self, function: str) -> str:
        """Say in code what is done to a function."""
        return f"{function} without {self.name}" if self.is_taken_off else f"{self.name}({function})"


class Cure(msgspec.Struct, frozen=True):
    """A remedy in words, and what may do alone, to be tried in this order: sets of switches, then decorators."""

    hint: str
    switches: tuple[tuple[Switch, ...], ...] = ()
    decorators: tuple[Decorator, ...] = ()


class _Rule(msgspec.Struct, frozen=True):
    """A cure for graph-break types that fit a pattern, where the line of code, or torch's message, fits another.

    In the message only the developer's context tells what was called: hints name `print` and others as examples.
    """

    type: str
    cure: Cure
    code: str = ""
    message: str = ""

    def fits(self, fault: Fault) -> bool:
        code = fault.location.code if fault.location else ""
        return (
            re.search(self.type, fault.type) is not None
            and re.search(self.code, code) is not None
            and re.search(self.message, fault.message) is not None
        )


_LOGGING = f"Move logging out of forward, or guard it: `{_IS_COMPILING} logger.info(...)`."
_TIME = Cure("Take times around the compiled part, not inside.")
_SCALARS = (Switch("capture_scalar_outputs"),)
_SIZES = (Switch("capture_dynamic_output_shape_ops"),)
_ITEM = Cure(
    "Keep the value in a tensor: compute with the 0-d tensor itself, and call .item(), .tolist(), int() or float() "
    "outside of the compiled part.",
    (_SCALARS,),
)
_CUSTOM_OPERATOR = Cure(
    "Wrap the call in a custom operator (torch.library.custom_op, with a fake kernel by register_fake), so that "
    "Dynamo need not look inside; or move it out of the compiled part.",
    decorators=(Decorator("torch._dynamo.dont_skip_tracing"), Decorator("torch.compiler.allow_in_graph")),
)
_RULES = (
    _Rule(
        r"Failed to trace builtin operator|can't actually be reordered",
        Cure(
            f"Drop the print, move it out of the compiled part, or guard it: `{_IS_COMPILING} print(...)`.",
            (
                (Switch("reorderable_logging_functions", ("builtins.print",)),),
                (Switch("ignore_logging_functions", ("builtins.print",)),),
            ),
        ),
        message=r"context: (builtin print\b|fn: <built-in function print>)",
    ),
    _Rule(
        r"Failed to trace builtin operator|Unsupported method call",
        Cure(f"Move file access and input out of forward, or guard them: `{_IS_COMPILING} ...`."),
        code=r"\bopen\(|\binput\(|\.write\(",
    ),
    _Rule(
        r"Failed to trace builtin operator|[Bb]uiltin",
        Cure(
            "Use what Dynamo can trace: tensor operators, or plain Python on numbers. What does not depend on tensors "
            "belongs into __init__; the rest into a custom operator (torch.library.custom_op)."
        ),
    ),
    *(
        _Rule(
            r"logging\.Logger",
            Cure(_LOGGING, ((Switch("ignore_logging_functions", (f"logging.Logger.{name}",)),),)),
            code=rf"\.{name}\(",
        )
        for name in ("debug", "info", "warning", "error", "exception", "critical", "log")
    ),
    _Rule(r"logging\.Logger", Cure(_LOGGING)),
    _Rule(
        r"skipped",
        Cure(
            f"Warn once outside of forward, or guard it: `{_IS_COMPILING} warnings.warn(...)`.",
            ((Switch("reorderable_logging_functions", ("warnings.warn",)),),),
        ),
        message=r"context: module: _?warnings\b",
    ),
    _Rule(r"time function", _TIME),
    _Rule(r"skipped", _TIME, message=r"context: module: time\b"),
    _Rule(
        r"skipped",
        Cure("Draw random numbers with torch (torch.rand, torch.randint), or outside of the compiled part."),
        message=r"qualname: Random\.",
    ),
    _Rule(
        r"Data-dependent (branching|assertion)|UserError|constrain_as_size|Assertion failed",
        Cure(
            "Give the assert a constant message, or none (an f-string is evaluated), and one 0-d tensor as its test, "
            "not `a and b`: Dynamo then keeps the check in the graph, as torch._assert_async(condition) does."
        ),
        code=r"^assert\b",
    ),
    _Rule(
        r"Data-dependent branching|UserError|constrain_as_size",
        Cure(
            "Compute both sides and choose with torch.where(condition, a, b); use torch.cond where a side is costly; a "
            "branch that only raises becomes torch._assert_async(condition)."
        ),
    ),
    _Rule(r"Tensor\.item\(\)|[Dd]ata[- ]dependent operator|Tensor\.tolist", _ITEM),
    _Rule(
        r"Backend compiler exception",
        Cure(
            "Register a fake kernel for the operator that is named there (torch.library.register_fake); an operator of "
            "the backward pass counts too."
        ),
        message=r"Explanation: Backend compiler .* failed with \w+\.\w+\.\w+\. ",
    ),
    _Rule(
        r"Dynamic shape operator \(no meta kernel\)|fake tensors|fake impl|meta kernel",
        Cure(
            "Register a fake kernel for the operator (torch.library.register_fake), which gives an empty tensor of "
            "the right shape, dtype and strides."
        ),
    ),
    _Rule(
        r"Dynamic shape operator",
        Cure(
            "Keep the shape fixed: torch.where or a mask of 0 and 1 instead of nonzero, unique or an index by a "
            "boolean mask (torch.nonzero_static where the number of places has a bound).",
            (_SIZES, (*_SIZES, *_SCALARS)),
        ),
    ),
    _Rule(
        r"torch\.compiler\.disable|torch\._dynamo\.disable",
        Cure(
            "Take torch.compiler.disable off the function, or call it outside of the compiled part.",
            decorators=(Decorator("torch.compiler.disable", is_taken_off=True),),
        ),
    ),
    _Rule(
        r"torch\._dynamo\.graph_break",
        Cure("Take the call of torch._dynamo.graph_break() away."),
    ),
    _Rule(
        r"[Nn]umpy|ndarray",
        Cure("Use torch's counterpart of the NumPy function, or call it outside of the compiled part."),
    ),
    _Rule(
        r"Tensor\.requires_grad_|setattr\(\) on Tensor\.requires_grad",
        Cure("Set requires_grad before the compiled part; inside, detach() gives a tensor without gradient."),
    ),
    _Rule(
        r"Tensor\.backward|autograd\.grad",
        Cure("Call backward() outside of the compiled forward; torch.func.grad can be traced."),
    ),
    _Rule(
        r"sort with non-constant",
        Cure("Sort tensors with torch.sort or torch.stack(...).sort() instead of sorted()."),
    ),
    _Rule(
        r"context manager|contextmanager",
        Cure("Put the `with` block around the compiled part, or use one of torch's own context managers."),
    ),
    _Rule(
        r"skipped|Unsupported function call|C/C\+\+|[Uu]nsupported callable|no traceable __call__",
        _CUSTOM_OPERATOR,
    ),
)


def cure_of(fault: Fault) -> Cure:
    """Return the remedy for a graph break; torch's own first hint, with nothing to try, where none is known."""
    return next((rule.cure for rule in _RULES if rule.fits(fault)), Cure(fault.hint))


class CureCheck(msgspec.Struct, frozen=True):
    """What was seen with one cure and all other breaks mended: whether it helps, and the graphs of the module."""

    cure: str
    helps: bool
    graphs: int


def checked_hint(hint: str, checks: Sequence[CureCheck], *, has_others: bool) -> str:
    """Return a hint with what was seen when its switches and decorators were tried."""
    others = ", with its other breaks mended" if has_others else ""
    helping = [check for check in checks if check.helps]
    said = [
        f"With `{check.cure}` {_seen(check)}{others}"
        + (", without the output (tried)." if "ignore_logging" in check.cure else " (tried).")
        for check in helping
    ]
    if not helping:
        said = [f"`{check.cure}` does not help here (tried)." for check in checks]
    return " ".join([hint, *said]).strip()


def _seen(check: CureCheck) -> str:
    if not check.graphs:  # what else breaks leaves no graph
        return "this break is gone"
    return f"this module has {plural(check.graphs, 'graph')}"


def evidence_of(checks: Sequence[CureCheck]) -> Mapping[str, Any]:
    """Return checks as the report holds them."""
    return {"cures": [msgspec.to_builtins(check) for check in checks]} if checks else {}
