"""Gives a fault its repro script: found among the kinds of case, made smaller, and proved in fresh processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from compilebisect.core.messages import Answer, KeepTensorsOrder, ReproOrder
from compilebisect.core.outcome import Rung
from compilebisect.core.quoting import literal
from compilebisect.core.report import Repro
from compilebisect.core.repro_case import ReproCase
from compilebisect.core.unit_result import IntroducedFault, Probe
from compilebisect.error_text import error_text
from compilebisect.errors import CannotTestError
from compilebisect.repro.check_part import model_lines
from compilebisect.repro.prove import Confirmation, confirm, report_entry
from compilebisect.repro.script import (
    UnwritableCase,
    line_count,
    place_code,
    saved_keys,
    script_text,
    write_script,
    write_text,
)
from compilebisect.repro.standby import Standby
from compilebisect.repro.verify import Proof, Verification, judge
from compilebisect.search.ablation import ablation_lines, with_head_lines
from compilebisect.search.bisection import Bisection
from compilebisect.search.reducing import Reduced, Reduction
from compilebisect.search.script_runner import ScriptRunner

_CANNOT_BE_REBUILT = "the module cannot be rebuilt outside its model"
LEVELS = ("standalone", "saved", "import")
_CASES_TIMEOUT_S = 300.0
# Beyond its own deadline a script needs time to import torch and to run eager.
_START_S = 60.0


class Prover:
    """Works on one fault after the other, in a thread of its own; `what` names the present one.

    An interrupt is a `KeyboardInterrupt` out of what the thread asks of the bisection's errands; `is_called_off` tells
    those of the same that wait for something else.
    """

    def __init__(
        self,
        bisection: Bisection,
        environment: Mapping[str, str],
        *,
        is_called_off: Callable[[], bool],
    ) -> None:
        self._bisection = bisection
        self._environment = environment
        self._is_called_off = is_called_off
        self._runner = ScriptRunner(bisection.errands, fresh_interpreter=bisection.needs_fresh_interpreter)
        self._trials = bisection.scratch / "trials"
        self._written: tuple[ReproCase, Path, int] | None = None  # the script of the present fault
        self._unwritable: list[str] = []
        self.what = ""

    def prove(self, item: IntroducedFault, script: Path) -> Repro:
        """Write the script of a fault to `script`, shrink it and prove it; the entry says why where there is none."""
        self._written = None
        self._unwritable = []
        self.what = f"{item.fault.kind.value} in {item.path or 'the root'}"
        self._say("writing a script")
        runs = self._bisection.settings.repro_runs if self._bisection.settings.reduce_seconds > 0 else 0
        with Standby(runs, python=sys.executable, env=self._environment) as standby:
            return self._prove(item, script, standby)

    def _prove(self, item: IntroducedFault, script: Path, standby: Standby) -> Repro:
        found = self._first_that_shows(self._cases(item, script.stem), script)
        if found is None:
            return Repro(path="", note=f"no script: {'; '.join(dict.fromkeys(self._unwritable)) or _CANNOT_BE_REBUILT}")
        case, first = found
        write_script(case, script)
        self._written = (case, script, case.operator_count)
        if first is None:  # in a fork nothing showed it; a fresh process may differ
            return self._entry(case, self._confirm(case, script), case.operator_count)
        reduced = self._reduce(case, first, script)
        if reduced is None:
            return self._entry(case, self._confirm(case, script), case.operator_count)
        self._say("proving")
        write_text(case, reduced.text, script)
        self._keep_tensors(reduced.text, script)
        with ThreadPoolExecutor(max_workers=1) as pool:
            confirming = pool.submit(self._confirm, case, script, standby)
            ladder = ablation_lines(case, script, self._runner, environment=self._with_user_folders(case))
            confirmation = confirming.result()
        if confirmation.shown:
            if ladder:  # comments, so what was run is still what stands there
                script.write_text(with_head_lines(script.read_text(encoding="utf-8"), ladder), encoding="utf-8")
            return self._entry(case, confirmation, reduced.operators)
        write_script(case, script)
        return self._entry(case, self._confirm(case, script), case.operator_count, "the smaller script did not verify")

    def unproved(self, note: str) -> Repro | None:
        """Return the entry of a script that was written, and not proved for the reason in `note`."""
        if self._written is None:
            return None
        _, script, operators = self._written
        text = script.read_text(encoding="utf-8")
        return Repro(path=script.name, ops=operators, lines=line_count(text), model_lines=model_lines(text), note=note)

    def _first_that_shows(
        self, cases: Iterator[ReproCase], script: Path
    ) -> tuple[ReproCase, Verification | None] | None:
        """Return the first case whose script shows the fault in a fork, else the first that could be written."""
        kept: ReproCase | None = None
        for case in cases:
            trial = self._trials / script.name
            try:
                write_script(case, trial)
            except UnwritableCase as error:
                self._unwritable.append(error_text(error))
                continue
            end = self._runner.run(trial, timeout_s=self._timeout_s(case), environment=_user_folders(case))
            seen = judge(end, case.fault, place_code(case))
            if seen.proof is Proof.SHOWN:
                return case, seen
            kept = kept or case
        return None if kept is None else (kept, None)

    def _reduce(self, case: ReproCase, first: Verification, script: Path) -> Reduced | None:
        budget_s = self._bisection.settings.reduce_seconds
        if budget_s <= 0:
            return None
        before = line_count(script.read_text(encoding="utf-8"))

        def on_smaller(text: str) -> None:
            self._say(f"reducing, {before} lines to {line_count(text)}")

        self._say("reducing")
        reduction = Reduction(
            case,
            first,
            self._runner,
            self._trials,
            budget_s=budget_s,
            environment=_user_folders(case),
            script_dir=script.parent,
            on_smaller=on_smaller,
        )
        try:
            reduction.run()
        except KeyboardInterrupt:
            best = reduction.best()
            write_text(case, best.text, script)
            self._written = (case, script, best.operators)
            raise
        return reduction.best()

    def _keep_tensors(self, text: str, script: Path) -> None:
        saved = script.with_suffix(".safetensors")
        if saved.exists():
            payload = msgspec.msgpack.encode(KeepTensorsOrder(str(saved), saved_keys(text)))
            self._ask("keep_tensors", payload, "writing the tensors of a script")

    def _confirm(self, case: ReproCase, script: Path, standby: Standby | None = None) -> Confirmation:
        return confirm(
            script,
            case.fault,
            runs=self._bisection.settings.repro_runs,
            env=self._with_user_folders(case),
            python=sys.executable,
            timeout_s=self._timeout_s(case),
            code=place_code(case),
            is_called_off=self._is_called_off,
            standby=standby,
        )

    def _entry(self, case: ReproCase, confirmation: Confirmation, operators: int, *notes: str) -> Repro:
        assert self._written is not None
        return report_entry(case, self._written[1], confirmation, operators=operators, notes=notes)

    def _timeout_s(self, case: ReproCase) -> float:
        return max(self._bisection.settings.timeout_s, case.deadline_s, 60.0) + _START_S

    def _with_user_folders(self, case: ReproCase) -> dict[str, str]:
        return {**self._environment, **_user_folders(case)}

    def _say(self, doing: str) -> None:
        self._bisection.progress.proof_went_on(f"{self.what}: {doing}")

    def _cases(self, item: IntroducedFault, name: str) -> Iterator[ReproCase]:
        settings = self._bisection.settings
        path = item.path if item.seen_in is None else item.seen_in
        unit = self._bisection.walk.unit_of[path]
        probe = Probe(
            unit=unit.id,
            path=path,
            rung=Rung.EAGER if item.fault.shows_with_any_backend else None,
            purpose="repro",
            in_place=bool(item.fault.evidence.get("only_in_place")),
            variants=self._bisection.description.variants if item.fault.evidence.get("in_variants") else 0,
        )
        for level in LEVELS:
            order = ReproOrder(
                probe=self._bisection.order_for(probe),
                fault=item.fault,
                tensors=str(self._bisection.scratch),
                name=name,
                level=level,
                deadline_s=min(settings.timeout_s, 60.0),
                config=tuple((name, literal(value)) for name, value in settings.config),
            )
            payload = msgspec.msgpack.encode(order)
            try:
                # What the walk does meanwhile may clear golden calls away, so each level asks for them again.
                if not probe.in_place and self._bisection.errands.do(lambda: self._bisection.store.prepare(probe)):
                    return
                answer = self._ask("repro_cases", payload, "writing a repro script")
            except CannotTestError as error:
                self._bisection.notes.append(f"{self.what}: {error.what}")
                continue
            yield from sorted(msgspec.msgpack.decode(answer.cases, type=list[ReproCase]), key=_size)

    def _ask(self, function: str, payload: bytes, doing: str) -> Answer:
        """Have a worker with the model do something.

        Raises:
            CannotTestError: it says that it cannot, or did not survive.
        """
        bisection = self._bisection

        def ask() -> Answer:
            worker, answer = bisection.ask_one(bisection.idle_worker, function, payload, _CASES_TIMEOUT_S, doing)
            bisection.give_back(worker)
            return answer

        return bisection.errands.do(ask)


def _user_folders(case: ReproCase) -> dict[str, str]:
    # A trial lies in a folder of its own, from where the user's files are elsewhere than from the final one.
    folders = [file.folder for file in case.user_files]
    return {"REPRO_CODE": ":".join(folders)} if folders else {}


def _size(case: ReproCase) -> int:
    try:
        return line_count(script_text(case, script_dir=Path()))
    except UnwritableCase:
        return sys.maxsize
