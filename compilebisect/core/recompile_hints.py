"""What to change so that a function is not compiled again, by what made it so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from compilebisect.core.guard_text import Cause

if TYPE_CHECKING:
    from compilebisect.core.recompile import RecompileEvent

_BY_CAUSE = {
    Cause.RANK: "Give it tensors with the same number of dims in every call.",
    Cause.STRIDE: "Give it tensors of the same memory layout in every call, for example with .contiguous().",
    Cause.DTYPE: "Give it tensors of one dtype, or cast them before the call.",
    Cause.DEVICE: "Give it tensors on one device.",
    Cause.LAYOUT: "Give it tensors of one kind: all dense or all sparse, of one device and one subclass.",
    Cause.REQUIRES_GRAD: "Call it with inputs that all require gradients, or detach() those that need none.",
    Cause.LENGTH: "Keep {subject} at a fixed length: write into a tensor that is allocated once, or pad the list.",
    Cause.KEYS: "Use the same keys in the same order in every call.",
    Cause.PRESENCE: "Create {subject} in __init__, so that it is there in the first call.",
    Cause.TYPE: "Keep {subject} of one type.",
    Cause.IDENTITY: "Use the same object in every call, not a new function or class each time.",
    Cause.ALIASING: "Pass either the same tensor in every call or always different ones.",
}
_GLOBAL_STATE = {
    "grad_mode": "Call it in one grad mode only: each mode is compiled apart.",
    "autocast": "Call it either always or never under autocast, and in one dtype.",
    "default_dtype": "Do not change torch's default dtype between calls.",
}


def hint_for(group: Sequence[RecompileEvent], *, between_instances: bool = False) -> str:
    """Return the remedy for recompiles that have one cause."""
    last = group[-1]
    if between_instances:
        return (
            f"Make {last.subject or 'what differs'} a buffer or an argument, so that the instances share code, "
            "or raise torch._dynamo.config.recompile_limit above their number."
        )
    if last.cause is Cause.SIZE:
        return _hint_for_size(group)
    if last.cause is Cause.VALUE:
        return _hint_for_value(last)
    if last.cause is Cause.GLOBAL_STATE:
        return next((hint for name, hint in _GLOBAL_STATE.items() if last.subject.startswith(name)), _STATE)
    return _BY_CAUSE.get(last.cause, "").format(subject=last.subject or "it")


_STATE = "Set torch's global state once, before the first call."


def _hint_for_size(group: Sequence[RecompileEvent]) -> str:
    last = group[-1]
    if last.guard.replace(" ", "").startswith("2<=") or last.is_of_size_one:
        return (
            f"A size of 0 or 1 is always compiled apart from larger ones. Avoid it in dim {last.dim} of "
            f"{last.subject}, or try torch._dynamo.decorators.mark_unbacked."
        )
    if last.before.isdigit() and not last.frames:
        return (
            f"Mark the dim with torch._dynamo.mark_dynamic({last.subject}, {last.dim}) before the call, compile with "
            "dynamic=True, or pad to a few sizes."
        )
    return (
        "The line makes the size part of the compiled code: a branch, a loop or a Python number depends on it. "
        "Compute with tensors there, or pad to a few sizes."
    )


def _hint_for_value(last: RecompileEvent) -> str:
    subject = last.subject
    if last.before == "None" or last.after == "None":
        return f"Create {subject} in __init__ or before the first call, so that it is never None there."
    if subject.endswith(".training"):
        return "Do not switch between train() and eval() from call to call."
    if not last.is_attribute:
        return (
            f"Where {subject} takes part in arithmetic, pass it as a tensor (torch.tensor(...)); where it counts or "
            "chooses (range, an index, a branch), keep to a few values."
        )
    if last.before in ("True", "False") or last.before[:1] in ("'", '"'):
        return (
            f"Do not change {subject} in forward: each of its values is compiled apart. Set it before the first call, "
            "or choose with a tensor (torch.where)."
        )
    text = f"Do not change {subject} in forward: count outside, or keep the number in a buffer and update it in place."
    if last.before.lstrip("-").isdigit():
        text += " torch._dynamo.config.allow_unspec_int_on_nn_module = True also makes such integers dynamic."
    return text
