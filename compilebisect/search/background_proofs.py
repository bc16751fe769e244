"""Proves faults in a second thread, while the walk goes on in the first."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import shutil
import threading
from collections.abc import Callable, Mapping
from types import TracebackType

import msgspec

from compilebisect.core.findings import CauseKey, Verdicts, cause_key
from compilebisect.core.outcome import Kind
from compilebisect.core.report import Finding, Repro
from compilebisect.core.unit_result import IntroducedFault
from compilebisect.error_text import error_line
from compilebisect.search.bisection import Bisection
from compilebisect.search.proofs import Prover
from compilebisect.search.report_folder import SUFFIXES, ReportFolder

# While the walk goes on, a model has to fit so many times into a GPU's memory: its own workers hold it as well.
_COPIES = 6
# A time is proved by measuring it again on the same machine, which a script that runs anywhere cannot promise.
UNPROVABLE = (Kind.SLOWDOWN,)
# How often a thread that was called off is looked at.
_POLL_S = 0.05


class _Proof(msgspec.Struct):
    """A fault to prove, and what came of it; it holds the fault, whose id would else be another one's some day."""

    item: IntroducedFault
    stem: str = ""  # of the script's name, until the findings are numbered
    repro: Repro | None = None


class BackgroundProofs:
    """A context manager around the walk and the search for findings.

    Findings have no numbers before the walk's end, so a script that is proved lies in `folder` as `early_1.py` and so
    on, and gets its final name too in `enter`. The early ones are there until the end: a report may name them.

    Args:
        bisection: the walk.
        folder: where the scripts go.
        environment: of the processes that run them.
        on_proved: called by the walk's thread when a fault has its script, before that is shown to anybody.
        is_impatient: whether nobody waits for the end of the work under way, once it was called off.
    """

    def __init__(
        self,
        bisection: Bisection,
        folder: ReportFolder,
        environment: Mapping[str, str],
        *,
        on_proved: Callable[[], object],
        is_impatient: Callable[[], bool],
    ) -> None:
        self._bisection = bisection
        self._folder = folder
        self._on_proved = on_proved
        self._is_impatient = is_impatient
        self._environment = environment
        self._thread = threading.Thread(target=self._work, name="proofs", daemon=True)
        self._queue: queue.Queue[_Proof | None] = queue.Queue()
        self._proofs: dict[int, _Proof] = {}  # by the fault's id
        self._numbers = itertools.count(1)
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
            if proof.stem:
                self._remove(f".{proof.stem}")
                if cls is None:  # else the report on disk may name it
                    self._remove(proof.stem)

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
        while self._thread.is_alive() and not self._is_impatient():
            self._thread.join(_POLL_S)

    def with_repros(self, verdicts: Verdicts) -> list[Finding]:
        """Return the findings with what is proved by now."""
        return [
            finding if repro is None else msgspec.structs.replace(finding, repro=repro)
            for finding in verdicts.findings
            for repro in [self.repro_of(verdicts.faults[finding.id])]
        ]

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
                name = self._folder.free_stem(f"repro_{finding.id}")
                try:
                    self._copy(proof.stem, name)
                except OSError as error:
                    note = f"the script could not be given its name: {error.strerror or error}"
                    repro = msgspec.structs.replace(repro, note="; ".join(filter(None, [repro.note, note])))
                    proof.stem = ""  # what there is of it stays
                else:
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
            proof = self._proofs[id(item)] = _Proof(item)
            self._queue.put(proof)

    def _work(self) -> None:
        prover = Prover(self._bisection, self._environment, is_called_off=self._is_called_off.is_set)
        try:
            while (proof := self._queue.get()) is not None:
                if self._is_called_off.is_set() or (self._wanted is not None and id(proof.item) not in self._wanted):
                    continue
                proof.stem = self._folder.free_stem(f"early_{next(self._numbers)}")
                script = self._folder.path / f".{proof.stem}.py"
                try:
                    repro = prover.prove(proof.item, script)
                except KeyboardInterrupt:
                    unproved = prover.unproved("interrupted before it was proved in a fresh process")
                    proof.repro = None if unproved is None else self._named(proof, unproved)
                    return
                except Exception as error:  # noqa: BLE001 - what costs a script must not cost the finding
                    note = f"no script: its proof failed: {error_line(error)}"
                    repro = Repro(path="", note=note)
                    with contextlib.suppress(OSError):  # a full disk does not take the script either
                        repro = prover.unproved(note) or repro
                proof.repro = repro = self._named(proof, repro)
                self._bisection.errands.do(self._on_proved)
                self._bisection.progress.script_made(prover.what, repro)
        except KeyboardInterrupt:
            return  # called off; what is proved is entered all the same
        except Exception as error:  # noqa: BLE001 - it is the main thread's
            self._error = error

    def _named(self, proof: _Proof, repro: Repro) -> Repro:
        """Let a script be seen under the name that it has until the findings are numbered."""
        if not repro.path:
            return repro
        try:
            self._copy(f".{proof.stem}", proof.stem)
        except OSError as error:
            return Repro(path="", note=f"the script could not be kept: {error_line(error)}")
        self._remove(f".{proof.stem}")
        return msgspec.structs.replace(repro, path=f"{proof.stem}.py")

    def _copy(self, old: str, new: str) -> None:
        """Give a script, and its tensors where it has some, a second name."""
        for suffix in SUFFIXES:
            source, target = (self._folder.path / f"{stem}{suffix}" for stem in (old, new))
            if source.exists():
                try:
                    os.link(source, target)
                except OSError:  # not all file systems have links
                    shutil.copyfile(source, target)

    def _remove(self, stem: str) -> None:
        for suffix in SUFFIXES:
            with contextlib.suppress(OSError):
                (self._folder.path / f"{stem}{suffix}").unlink()
