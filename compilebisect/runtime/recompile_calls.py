"""Calls of a compiled module in a row with the same inputs: is it compiled again, and is each of them right?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from compilebisect.attempt import attempt
from compilebisect.core.messages import ProbeOrder
from compilebisect.core.outcome import Fault
from compilebisect.core.recompile import CALLS_IN_A_ROW, Recompiles, judge_recompiles
from compilebisect.error_text import error_line
from compilebisect.runtime import torch_internals
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.recompiles import RecompileLog
from compilebisect.runtime.record import RunRecord
from compilebisect.runtime.row_of_calls import FAILS_LATER, Row, RowVerdict, compiled_row


def call_again(
    compile_anew: Callable[[], Callable[..., Any]],
    function: Callable[..., Any],
    first: RunRecord | None,
    oracle: Oracle,
    log: RecompileLog,
    order: ProbeOrder,
) -> tuple[Recompiles, RowVerdict]:
    """Call what was compiled some more times with the same inputs, each time in the state that the last call left.

    Args:
        compile_anew: resets Dynamo and compiles the module.
        function: was called once.
        first: what that call left, where it was found right and the values of these calls are to be compared.
        oracle: calls it.
        log: what was compiled again in that first call.
        order: says how it was compiled.
    """
    # Between the first call and these ones eager mode ran: the first of the row starts where that first call did.
    oracle.snapshot.restore()
    row = Row(oracle, function, first)
    notes: tuple[str, ...] = ()
    try:
        if row.call():
            with torch_internals.error_on_recompile():
                for _ in range(CALLS_IN_A_ROW - 1):
                    if not row.call():
                        break
        seen = judged(log, order)
    except torch_internals.RecompileError:
        if first is not None:  # what fails in compiled code alone is an error, however little else can be told then
            row = compiled_row(oracle, compile_anew, first)
        seen = Recompiles(0, ())
        if order.looks_for_recompiles and row.error is None:
            made_again = attempt(_compiled_again, log, oracle, order)
            if made_again.error is None:
                seen = made_again.value
            elif torch_internals.is_device_failure(made_again.error):
                raise made_again.error from None
            else:
                notes = (f"{FAILS_LATER}: {error_line(made_again.error)}",)
    finally:
        oracle.snapshot.restore()
    verdict = row.judge(compile_anew)
    return seen, replace(verdict, notes=(*verdict.notes, *notes))


def _compiled_again(log: RecompileLog, oracle: Oracle, order: ProbeOrder) -> Recompiles:
    # Which code is made makes no difference to whether it is made again, and this backend's costs the least.
    seen = _row_of_calls(log.empty(), oracle, order, "eager")
    return seen if seen.count else _row_of_calls(log.empty(), oracle, order, order.backend)


def _row_of_calls(log: RecompileLog, oracle: Oracle, order: ProbeOrder, backend: str) -> Recompiles:
    """Compile anew and call in a row; where each call compiles again, go on until Dynamo would give up."""
    torch.compiler.reset()
    function = torch.compile(oracle.module, backend=backend, dynamic=order.dynamic)
    oracle.snapshot.restore()
    number = 0
    calls = CALLS_IN_A_ROW
    while number < calls:
        number += 1
        with log.watching(f"call {number}"):
            oracle.run_again(function)
        if number == CALLS_IN_A_ROW and any(_is_endless(fault, order) for fault in judged(log, order).faults):
            calls = torch_internals.user_recompile_limit() + 2
    return judged(log, order)


def _is_endless(fault: Fault, order: ProbeOrder) -> bool:
    return _is_own(fault, order) and fault.evidence["count"] >= CALLS_IN_A_ROW - 1


def judged(log: RecompileLog, order: ProbeOrder, *, in_variants: bool = False) -> Recompiles:
    """Tell faults from what was to be expected; with modules fenced, only the module's own, unless all are wanted."""
    can_turn_dynamic = order.dynamic is None and torch_internals.makes_sizes_dynamic()
    limit = torch_internals.user_recompile_limit()
    seen = judge_recompiles(log.events, can_turn_dynamic=can_turn_dynamic, limit=limit, in_variants=in_variants)
    if not order.fenced or order.tells_of_below:
        return seen
    # Fences break graphs, so that frames are compiled apart which otherwise are not.
    return Recompiles(seen.count, tuple(fault for fault in seen.faults if _is_own(fault, order)))


def _is_own(fault: Fault, order: ProbeOrder) -> bool:
    return fault.owners in ((), (order.path,))
