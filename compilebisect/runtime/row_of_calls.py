"""What calls of a compiled module in a row give, each in the state that the last one left, beside those in eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from compilebisect.attempt import attempt
from compilebisect.core.recompile import CALLS_IN_A_ROW
from compilebisect.error_text import error_line
from compilebisect.runtime import torch_internals
from compilebisect.runtime.compare import Comparison
from compilebisect.runtime.key_text import same_atom
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.record import RunRecord
from compilebisect.runtime.tensor_copy import is_plain
from compilebisect.runtime.tensor_state import bits_equal
from compilebisect.runtime.values import clone_value, is_atomic

Function = Callable[..., Any]
#: How a note begins about a row that has no end.
FAILS_LATER = "fails when it is called again in the state that it left"


@dataclass(frozen=True)
class RowVerdict:
    """The first call of a row that goes wrong: its number, 1 for the first, and how.

    Either `comparison` has differences, or `error` is what compiled code raised and eager mode did not. `is_right` says
    that all calls were compared and none went wrong, `notes` why the row could not be looked at, `has_excused` that
    something differs and is right all the same.
    """

    number: int = 0
    comparison: Comparison | None = None
    error: BaseException | None = None
    is_right: bool = False
    notes: tuple[str, ...] = ()
    has_excused: bool = False


class Row:
    """Compiled calls in a row with the records of what they left.

    `first` is the record of a compiled call that was found right; without one nothing is kept.
    """

    def __init__(self, oracle: Oracle, function: Function, first: RunRecord | None) -> None:
        self._oracle, self._function, self._first = oracle, function, first
        # What a module keeps may be what it returned, which the next call then changes under our hands.
        self._is_stateful = bool(oracle.eager().state)
        self.records: list[RunRecord] = []
        self.error: BaseException | None = None

    def call(self) -> bool:
        """Call once more; returns whether that went well.

        Raises:
            Exception: code was compiled again where that is not allowed, or the device is gone.
        """
        run = attempt(self._oracle.run_again, self._function)
        if run.error is None:
            self._keep(run.value)
        elif isinstance(run.error, torch_internals.RecompileError) or torch_internals.is_device_failure(run.error):
            raise run.error
        self.error = run.error
        return run.error is None

    def notes(self) -> tuple[str, ...]:
        """Say why the row ended early, where it did."""
        return (f"{FAILS_LATER}: {error_line(self.error)}",) if self.error is not None else ()

    def judge(self, renew: Callable[[], Function]) -> RowVerdict:
        """Compare each call with the same one of a row in eager mode; the state is put back afterwards.

        Args:
            renew: compiles the module anew, for rows with other random numbers.
        """
        if self._first is None or isinstance(self.error, torch.OutOfMemoryError):  # what is kept here takes memory, too
            return RowVerdict(notes=self.notes())
        if self.error is None and all(record is self._first for record in self.records):
            return RowVerdict(is_right=True)
        eager = attempt(self._eager_row, len(self.records) + (self.error is not None))
        self._oracle.snapshot.restore()
        if eager.error is not None:  # user code in a state that the model's own run never reached
            return RowVerdict(notes=(f"{FAILS_LATER}: {error_line(eager.error)}",), has_excused=True)
        has_excused = False
        for number, (ours, theirs) in enumerate(zip(eager.value, self.records, strict=False), start=1):
            if self._oracle.agrees(ours, theirs):
                continue
            oracle = self._oracle.after(number - 1, ours, renew)
            comparison = oracle.judge(theirs, self._function)
            has_excused = has_excused or comparison.has_excused
            if not comparison.is_equal:
                return RowVerdict(number, comparison)
        if self.error is not None:
            return RowVerdict(len(self.records) + 1, error=self.error)
        return RowVerdict(is_right=True, has_excused=has_excused)

    def _keep(self, record: RunRecord) -> None:
        if self._first is None:
            return
        is_again = not self._is_stateful and _is_same(self._first, record)
        self.records.append(self._first if is_again else self._kept(record))  # so that equal ones take memory once

    def _eager_row(self, count: int) -> list[RunRecord]:
        self._oracle.snapshot.restore()
        return [self._kept(self._oracle.run_again(self._oracle.module)) for _ in range(count)]

    def _kept(self, record: RunRecord) -> RunRecord:
        if not self._is_stateful:
            return record
        output, inputs_after = clone_value((record.output, record.inputs_after))
        return replace(record, output=output, inputs_after=inputs_after)


def compiled_row(oracle: Oracle, compile_anew: Callable[[], Function], first: RunRecord) -> Row:
    """Compile anew and call in a row; what is compiled again may be so."""
    row = Row(oracle, compile_anew(), first)
    oracle.snapshot.restore()
    for _ in range(CALLS_IN_A_ROW):
        if not row.call():
            break
    oracle.snapshot.restore()
    return row


def _is_same(one: RunRecord, other: RunRecord) -> bool:
    """Say whether two runs left the same, to the last bit."""
    ours, theirs = one.parts(), other.parts()
    for part, nodes in ours.items():
        if len(nodes) != len(theirs[part]):
            return False
        for left, right in zip(nodes, theirs[part], strict=True):
            if left.path != right.path or type(left.value) is not type(right.value):
                return False
            if left.keys is None and not _is_same_leaf(left.value, right.value):
                return False
    return one.requires_grad == other.requires_grad and one.aliases == other.aliases


def _is_same_leaf(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        is_readable = is_plain(one) and is_plain(other)
        return is_readable and one.stride() == other.stride() and bits_equal(one, other)
    if isinstance(one, (np.ndarray, np.generic)):
        return bool(np.array_equal(one, other))
    return not is_atomic(one) or same_atom(one, other)
