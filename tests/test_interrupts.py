from __future__ import annotations

import os
import signal

import pytest

from compilebisect.interrupts import ENDING_SIGNALS, noted_interrupts


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_signals_are_told_once_and_where_somebody_asks(number: int) -> None:
    before = signal.getsignal(number)
    with noted_interrupts() as interrupts:
        for _ in range(3):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.check()
        assert interrupts.count == 3 and interrupts.is_impatient
    assert signal.getsignal(number) == before


def test_without_a_signal_nothing_is_told() -> None:
    with noted_interrupts() as interrupts:
        interrupts.check()
    assert not interrupts.is_impatient


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with noted_interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.count == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
