"""Live progress on standard error: drawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from compilebisect.core.report import Finding, Repro
from compilebisect.progress import ProgressListener, SilentProgress
from compilebisect.render.wording import kind_name, one_line, place, plain_lines, repro_remark, seconds

Clock = Callable[[], float]
_SHOWN_PROBES = 6


class RunClock:
    """What both listeners know of a run: since when it and each running probe last, and how much is left."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._first_probe: float | None = None
        self._done_at_first = 0
        self.running: dict[str, tuple[str, str, float]] = {}
        self.phase = ""
        self.proof = ""
        self.done = 0
        self.total = 0

    def begin(self, path: str, class_name: str, rung: str, done: int, total: int) -> None:
        """Note that a probe starts."""
        now = self._clock()
        if self._first_probe is None:
            self._first_probe, self._done_at_first = now, done
        # a probe that climbs the ladder is still the same check
        start = self.running[path][2] if path in self.running else now
        self.running[path] = (class_name, rung, start)
        self.done, self.total = done, total

    def end(self, path: str, done: int, total: int) -> tuple[str, float]:
        """Note that a probe ended and return its module's class and its seconds."""
        now = self._clock()
        class_name, _, start = self.running.pop(path, ("", "", now))
        self.done, self.total = done, total
        return class_name, now - start

    def elapsed_s(self) -> float:
        """Return the seconds since the run began."""
        return self._clock() - self._start

    def probe_s(self, path: str) -> float:
        """Return the seconds since a running probe began."""
        return self._clock() - self.running[path][2]

    def remaining_s(self) -> float | None:
        """Return the estimated seconds that are left, None while nothing is known."""
        finished = self.done - self._done_at_first
        if self._first_probe is None or finished <= 0:
            return None
        return (self._clock() - self._first_probe) / finished * max(self.total - self.done, 0)


class PlainProgress:
    """Writes one line per event."""

    def __init__(self, stream: TextIO, *, is_verbose: bool = False, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._is_verbose = is_verbose
        self._run = RunClock(clock)

    def phase_started(self, text: str) -> None:
        """Say what begins."""
        self._say(f"{one_line(text)} …")

    def probe_started(self, path: str, class_name: str, rung: str, done: int, total: int) -> None:
        """Note the start; with -v say it."""
        self._run.begin(path, class_name, rung, done, total)
        if self._is_verbose:
            self._say(f"[{done}/{total}] {one_line(path or class_name)}: {one_line(rung)} …")

    def probe_finished(self, path: str, status: str, done: int, total: int) -> None:
        """Say how a module's check ended, and how long the rest may take."""
        class_name, took_s = self._run.end(path, done, total)
        name = f"{one_line(path)} {one_line(class_name)}".strip()
        left_s = self._run.remaining_s()
        left = f", about {seconds(left_s)} left" if left_s and done < total else ""
        self._say(f"[{done}/{total}] {name}: {kind_name(status)} ({seconds(took_s)}{left})")

    def proof_went_on(self, text: str) -> None:
        """Say what is done."""
        self._say(f"{one_line(text)} …")

    def script_made(self, what: str, repro: Repro) -> None:
        """Say whether there is a script, and where it lies until the findings are numbered."""
        self._say(_script_line(what, repro))

    def finding_made(self, finding: Finding) -> None:
        """Say the finding in one line."""
        self._say(_finding_line(finding))

    def warned(self, text: str) -> None:
        """Say the warning."""
        self._say(f"warning: {one_line(text)}")

    def _say(self, line: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        line = plain_lines(line)
        print(line.encode(encoding, "replace").decode(encoding), file=self._stream, flush=True)


class LiveProgress:
    """Draws running probes and the time left at the bottom of a terminal; findings scroll above."""

    def __init__(self, console: Console, *, is_verbose: bool = False, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._is_verbose = is_verbose
        self._run = RunClock(clock)
        self._spinner = Spinner("dots")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        run = self._run
        # the listener's methods run in another thread than the drawing: work on a copy
        running = list(run.running.items())
        head = Text(f"{run.done}/{run.total} units  " if run.total else "", "bold")
        head.append(f"{seconds(run.elapsed_s())} so far")
        left_s = run.remaining_s()
        if left_s is not None and run.done < run.total:
            head.append(f", about {seconds(left_s)} left", "dim")
        if run.phase and not running and not run.proof:
            head.append(f"  {run.phase}", "dim")
        self._spinner.update(text=head)
        yield self._spinner
        for path, (class_name, rung, _) in running[:_SHOWN_PROBES]:
            line = Text("  ", no_wrap=True, overflow="ellipsis")
            line.append(one_line(path or class_name), "bold").append(f"  {one_line(class_name)}", "cyan")
            line.append(f"  {one_line(rung)}  {seconds(run.probe_s(path)) if path in run.running else ''}", "dim")
            yield line
        if len(running) > _SHOWN_PROBES:
            yield Text(f"  and {len(running) - _SHOWN_PROBES} more", "dim")
        if run.proof:
            yield Text(f"  {run.proof}", "dim", no_wrap=True, overflow="ellipsis")

    def phase_started(self, text: str) -> None:
        """Show what begins."""
        self._run.phase = one_line(text)
        if self._is_verbose:
            self._console.print(Text(f"{self._run.phase} …", "dim"))

    def probe_started(self, path: str, class_name: str, rung: str, done: int, total: int) -> None:
        """Show the probe among the running ones."""
        self._run.begin(path, class_name, rung, done, total)

    def probe_finished(self, path: str, status: str, done: int, total: int) -> None:
        """Take the probe from the running ones; with -v leave a line."""
        class_name, took_s = self._run.end(path, done, total)
        if self._is_verbose:
            self._console.print(Text(f"{one_line(path or class_name)}: {kind_name(status)} ({seconds(took_s)})", "dim"))

    def proof_went_on(self, text: str) -> None:
        """Show what is done beside the probes."""
        self._run.proof = one_line(text)
        if self._is_verbose:
            self._console.print(Text(f"{self._run.proof} …", "dim"))

    def script_made(self, what: str, repro: Repro) -> None:
        """Leave a line."""
        self._run.proof = ""
        self._console.print(Text(_script_line(what, repro), "yellow"), no_wrap=True, overflow="ellipsis")

    def finding_made(self, finding: Finding) -> None:
        """Leave a line, cut to the terminal's width: the whole text follows with the report."""
        self._console.print(Text(_finding_line(finding), "yellow"), no_wrap=True, overflow="ellipsis")

    def warned(self, text: str) -> None:
        """Leave a line."""
        self._console.print(Text(f"warning: {one_line(text)}", "magenta"))


def _script_line(what: str, repro: Repro) -> str:
    return one_line(f"{what}: {f'{repro.path}: ' if repro.path else ''}{repro_remark(repro)}")


def _finding_line(finding: Finding) -> str:
    where = f" at {place(finding.location)}" if finding.location else ""
    module = one_line(finding.module) or "the root"
    more = f" and {len(finding.also_in)} more" if finding.also_in else ""
    return f"{one_line(finding.id)}: {kind_name(finding.kind)} in {module}{more}{where}: {one_line(finding.summary)}"


@contextmanager
def progress_on_stderr(*, is_quiet: bool, is_verbose: bool) -> Iterator[ProgressListener]:
    """Give the listener that suits standard error, and clear its drawing at the end."""
    if is_quiet:
        yield SilentProgress()
        return
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainProgress(sys.stderr, is_verbose=is_verbose)
        return
    listener = LiveProgress(console, is_verbose=is_verbose)
    # Nothing of ours writes to the standard streams meanwhile, and redirecting them would break `--format json`.
    with Live(
        listener, console=console, transient=True, refresh_per_second=8, redirect_stdout=False, redirect_stderr=False
    ):
        yield listener
