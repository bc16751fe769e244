"""Makes a repro script smaller while it shows the same fault, within a budget of seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from compilebisect.core.outcome import Kind
from compilebisect.core.reduce.case_settings import simpler_settings
from compilebisect.core.reduce.graph import smaller_graphs
from compilebisect.core.reduce.python_source import simplifications
from compilebisect.core.repro_case import Graph, ReproCase
from compilebisect.repro.check_part import is_check, kept_lines, may_read_garbage, model_lines, with_joined_move
from compilebisect.repro.script import UnwritableCase, place_code, script_text, with_deadline, write_text
from compilebisect.repro.verify import Proof, Verification, judge
from compilebisect.repro.wording import expected_text
from compilebisect.search.script_runner import HANG_S, ScriptRunner

T = TypeVar("T")
# A candidate may take this many times as long as the script that it comes from, and at least so many seconds.
_SLOWER = 4.0
_LEAST_S = 15.0
# A smaller script whose results differ this many times less than at first shows rounding, not the fault.
_FAINTER = 30.0
_FIGURES = re.compile(r"largest difference (\S+) of (\S+)\)")
# A script this small (the model's lines of code, operators of a graph) gets the time of this many runs more.
_SMALL_LINES, _SMALL_OPERATORS, _POLISH_RUNS = 15, 3, 3


def drive(
    steps: Generator[T, bool, T], shows: Callable[[T], bool], take: Callable[[T], None], is_over: Callable[[], bool]
) -> bool:
    """Answer the candidates of a search until it is done or time is over; returns whether it was done.

    Args:
        steps: proposes candidates and is sent whether each shows the fault.
        shows: says so.
        take: gets each one that does.
        is_over: whether time is over.
    """
    try:
        candidate = next(steps)
        while not is_over():
            answer = shows(candidate)
            if answer:
                take(candidate)
            candidate = steps.send(answer)
    except StopIteration:
        return True
    return False


class Reduced(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest script that showed the fault, its graph's operators, and how many candidates were run."""

    text: str
    operators: int
    runs: int


class Reduction:
    """Shrinks the script of one case, which was seen to show its fault in `first`.

    `folder` gets the candidates, which are run one at a time; `script_dir` is where the script will lie in the end and
    look for the user's files from. Once it is small, `polish_s` seconds are left, by default those of a few runs.
    `on_smaller` is told of each better script.
    """

    def __init__(
        self,
        case: ReproCase,
        first: Verification,
        runner: ScriptRunner,
        folder: Path,
        *,
        budget_s: float,
        environment: Mapping[str, str],
        script_dir: Path | None = None,
        polish_s: float | None = None,
        on_smaller: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._original = case
        if case.fault.kind is Kind.TIMEOUT:
            case = msgspec.structs.replace(case, deadline_s=min(case.deadline_s, HANG_S))
        self._case, self._first, self._runner = case, first, runner
        self._path = folder / "candidate.py"
        self._end = time.monotonic() + budget_s
        self._environment = environment
        self._on_smaller = on_smaller
        self._timeout_s = max(_SLOWER * first.seconds, _LEAST_S)
        self._code = place_code(case)
        self._answers: dict[str, bool] = {}
        self._runs_before = runner.runs
        self._script_dir = script_dir or folder
        self._text = self._first_text = self._text_of(case)
        write_text(case, self._text, self._path)
        self._operators = case.operator_count
        self._is_small = False
        self._polish_s = _POLISH_RUNS * max(first.seconds, 1.0) if polish_s is None else polish_s

    def run(self) -> bool:
        """Shrink; returns False where the budget ended it. An interrupt leaves the best so far."""
        self._hurry()
        settings = simpler_settings(self._case)
        if not drive(settings, self._shows_case, self._take_case, self._is_over):
            return False
        if self._case.graph is not None:
            steps = smaller_graphs(self._case.graph)
            if not drive(steps, self._shows_graph, self._take_graph, self._is_over):
                return False
        is_hang = self._case.fault.kind is Kind.TIMEOUT
        lines = kept_lines(self._text, self._code, keeps_seeds=self._case.fault.kind is Kind.DIVERGENCE)
        texts = simplifications(self._text, is_check, lines, keep_numbers=is_hang)
        is_done = drive(texts, self._shows, self._take_text, self._is_over)
        joined = with_joined_move(self._text)
        if joined != self._text and self._shows(joined):
            self._take_text(joined)
        return is_done

    def _hurry(self) -> None:
        """Leave only a little time once the script is small: what is left to gain is not worth the user's wait."""
        if not self._is_small and self._operators <= _SMALL_OPERATORS and model_lines(self._text) <= _SMALL_LINES:
            self._is_small = True
            self._end = min(self._end, time.monotonic() + self._polish_s)

    def _is_over(self) -> bool:
        return time.monotonic() >= self._end

    def best(self) -> Reduced:
        """Return the smallest script so far, with the case's own deadline."""
        text = self._text
        if self._case.fault.kind is Kind.TIMEOUT:
            text = with_deadline(text, self._original.deadline_s)
            text = text.replace(expected_text(self._case), expected_text(self._original))
        return Reduced(text=text, operators=self._operators, runs=self._runner.runs - self._runs_before)

    def _shows(self, text: str) -> bool:
        if self._case.fault.kind is Kind.DIVERGENCE and may_read_garbage(text, self._first_text):
            return False
        if text not in self._answers:
            self._path.write_text(text, encoding="utf-8")
            end = self._runner.run(self._path, timeout_s=self._timeout_s, environment=self._environment)
            seen = judge(end, self._case.fault, self._code)
            self._answers[text] = seen.proof is Proof.SHOWN and not self._is_faint(seen)
        return self._answers[text]

    def _shows_case(self, case: ReproCase) -> bool:
        try:
            return self._shows(self._text_of(case))
        except UnwritableCase:
            return False

    def _shows_graph(self, graph: Graph) -> bool:
        return self._shows_case(msgspec.structs.replace(self._case, graph=graph))

    def _is_faint(self, seen: Verification) -> bool:
        before, after = _relative_difference(self._first.line), _relative_difference(seen.line)
        return before is not None and after is not None and after < before / _FAINTER

    def _text_of(self, case: ReproCase) -> str:
        return script_text(case, script_dir=self._script_dir)

    def _text_of_graph(self, graph: Graph) -> str:
        return self._text_of(msgspec.structs.replace(self._case, graph=graph))

    def _take_case(self, case: ReproCase) -> None:
        self._case = case
        self._take_text(self._text_of(case))

    def _take_graph(self, graph: Graph) -> None:
        case = msgspec.structs.replace(self._case, graph=graph)
        self._operators = case.operator_count
        self._take_text(self._text_of_graph(graph))

    def _take_text(self, text: str) -> None:
        self._text = text
        self._hurry()
        self._on_smaller(text)


def _relative_difference(line: str) -> float | None:
    figures = _FIGURES.search(line)
    if figures is None or float(figures[2]) == 0:
        return None
    return float(figures[1]) / float(figures[2])
