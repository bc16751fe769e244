"""Proves faults in a second thread, while the walk goes on in the first."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from compilebisect.core.findings import CauseKey, Verdicts, cause_key
from compilebisect.core.outcome import Kind
from compilebisect.core.report import Repro
from compilebisect.core.unit_result import IntroducedFault
from compilebisect.errors import CompilebisectError
from compilebisect.search.bisection import Bisection
from compilebisect.search.proofs import Prover

# While the walk goes on, a model has to fit so many times into a GPU's memory: its own workers hold it as well.
_COPIES = 6
# A time is proved by measuring it again on the same machine, which a script that runs anywhere cannot promise.
UNPROVABLE = (Kind.SLOWDOWN,)
_NO_SCRIPT = Repro(path="", note="no script could be written: the module cannot be rebuilt outside its model")


class _Proof(msgspec.Struct):
    """A fault to prove, and what came of it; it holds the fault, whose id would else be another one's some day."""

    item: IntroducedFault
    number: int
    repro: Repro | None = None

    @property
    def stem(self) -> str:
        return f"early_{self.number}" if self.repro is not None else f".early_{self.number}"


class BackgroundProofs:
    """A context manager around the walk and the search for findings.

    Findings have no numbers before the walk's end, so a script that is proved lies in `out` as `early_1.py` and so
    on, and gets its final name in `enter`.
    """

    def __init__(self, bisection: Bisection, out: Path, environment: Mapping[str, str]) -> None:
        self._bisection = bisection
        self._out = out
        self._environment = environment
        self._thread = threading.Thread(target=self._work, name="proofs", daemon=True)
        self._queue: queue.Queue[_Proof | None] = queue.Queue()
        self._proofs: dict[int, _Proof] = {}  # by the fault's id
        self._causes: set[CauseKey] = set()
        self._wanted: set[int] | None = None
        self._is_called_off = threading.Event()
        self._error: Exception | None = None

    def __enter__(self) -> BackgroundProofs:
        # Nor may anything run beside a clock.
        is_timed = Kind.SLOWDOWN in self._bisection.settings.check
        if self._bisection.description.device_share * _COPIES <= 1 and not is_timed:
            self._bisection.on_introduced = self._add_early
        self._thread.start()
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.call_off()
        for proof in self._proofs.values():
            for left in self._out.glob(f"{proof.stem}.*"):
                left.unlink()

    def finish(self, verdicts: Verdicts) -> None:
        """Wait until each finding has its proof.

        Raises:
            KeyboardInterrupt: the user did not wait; `enter` has what was proved until then.
        """
        items = [verdicts.faults[finding.id] for finding in verdicts.findings if finding.kind not in UNPROVABLE]
        self._wanted = {id(item) for item in items}
        for item in items:
            self._add(item)
        self._queue.put(None)
        self._bisection.serve_errands_until(lambda: not self._thread.is_alive())
        if self._error is not None:
            raise self._error

    def call_off(self) -> None:
        """End the thread; what it works on keeps its best script so far, unproved."""
        self._is_called_off.set()
        self._queue.put(None)
        self._bisection.errands.close()
        self._thread.join()

    def repro_of(self, item: IntroducedFault) -> Repro | None:
        """Return what came of the proof of a fault, None where it was not tried or did not come to its end."""
        proof = self._proofs.get(id(item))
        return None if proof is None else proof.repro

    def add_note(self, item: IntroducedFault, note: str) -> None:
        """Add to what is said of the script of a fault."""
        proof = self._proofs[id(item)]
        if proof.repro is not None:
            said = "; ".join(text for text in (proof.repro.note, note) if text)
            proof.repro = msgspec.structs.replace(proof.repro, note=said)

    def enter(self, verdicts: Verdicts) -> None:
        """Give the findings their repros, and the scripts their names."""
        for position, finding in enumerate(verdicts.findings):
            proof = self._proofs.get(id(verdicts.faults[finding.id]))
            if proof is None or proof.repro is None:
                continue
            repro = proof.repro
            if repro.path:
                name = f"repro_{finding.id}"
                _rename(self._out, proof.stem, name)
                repro = msgspec.structs.replace(repro, path=f"{name}.py")
            verdicts.findings[position] = msgspec.structs.replace(finding, repro=repro)

    def _add_early(self, item: IntroducedFault) -> None:
        """Take a fault that the walk found, unless it is likely to be part of a finding that is taken."""
        path = item.instances[0] if item.instances else item.path
        cause = cause_key(self._bisection.walk.tree, path, item)
        # A hang is told by the clock, so nothing else may run beside it.
        if cause not in self._causes and item.fault.kind is not Kind.TIMEOUT:
            self._causes.add(cause)
            self._add(item)

    def _add(self, item: IntroducedFault) -> None:
        if id(item) not in self._proofs:
            proof = self._proofs[id(item)] = _Proof(item, len(self._proofs) + 1)
            self._queue.put(proof)

    def _work(self) -> None:
        prover = Prover(self._bisection, self._environment, is_called_off=self._is_called_off.is_set)
        try:
            while (proof := self._queue.get()) is not None:
                if self._is_called_off.is_set() or (self._wanted is not None and id(proof.item) not in self._wanted):
                    continue
                unproved = proof.stem
                try:
                    repro = prover.prove(proof.item, self._out / f"{proof.stem}.py") or _NO_SCRIPT
                except KeyboardInterrupt:
                    proof.repro = prover.unproved("interrupted before it was proved in a fresh process")
                    if proof.repro is not None:
                        _rename(self._out, unproved, proof.stem)
                    return
                except CompilebisectError as error:
                    note = f"its proof failed: {error.what}"
                    repro = prover.unproved(note) or Repro(path="", note=note)
                proof.repro = repro
                if repro.path:
                    _rename(self._out, unproved, proof.stem)
                    repro = msgspec.structs.replace(repro, path=f"{proof.stem}.py")
                self._bisection.progress.script_made(prover.what, repro)
        except Exception as error:  # noqa: BLE001 - it is the main thread's
            self._error = error


def _rename(folder: Path, old: str, new: str) -> None:
    for suffix in (".py", ".safetensors"):
        (folder / f"{new}{suffix}").unlink(missing_ok=True)
        if (folder / f"{old}{suffix}").exists():
            (folder / f"{old}{suffix}").rename(folder / f"{new}{suffix}")
