"""Short texts that several renderings share: summaries, places, lists of module paths."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from compilebisect.core.outcome import Kind
from compilebisect.core.report import Finding, Location, Report, Repro, checked_kinds
from compilebisect.core.words import CONTROL_CHARACTERS, plural
from compilebisect.settings import DEFAULT_KINDS

# Of why a module is untested, so many characters are said in the one line that sums up.
_LONGEST_REASON = 200
# Marks of the drawings.
TICK = "\N{CHECK MARK}"
CROSS = "\N{BALLOT X}"
DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"

_CONTROL = re.compile(CONTROL_CHARACTERS)
# What GitHub, Azure and TeamCity take for a command wherever it stands in a line: `##[error]`, `##vso[...]`.
_COMMAND = re.compile(r"##(\w*)\[")
# And where it begins a line: `::error::`. Colours may stand before it.
_LINE_COMMAND = re.compile(r"^((?:[^\S\n]|\x1b\[[\d;]*m)*)::", re.MULTILINE)


def visible(text: str) -> str:
    """Return text with control characters written out, so that user code cannot steer a terminal or a log."""
    if text.isprintable() and "##" not in text:  # most texts, and looking for it takes a third of a large document
        return text
    text = _CONTROL.sub(lambda match: match.group().encode("unicode_escape", "surrogatepass").decode("ascii"), text)
    return _COMMAND.sub(r"##\1\\[", text)


def without_commands(text: str, colon: str = r"\\:") -> str:
    """Return lines of which none begins as a command to GitHub does; `colon` stands in for the first of its colons."""
    return _LINE_COMMAND.sub(rf"\1{colon}:", text)


def plain_lines(text: str) -> str:
    """Return text of several lines that neither a terminal nor a log viewer obeys."""
    return without_commands(visible(text))


def one_line(text: str) -> str:
    """Return text without line ends and control characters."""
    return visible(" ".join(text.split()))


def shortened(text: str, limit: int = 500) -> str:
    """Return text in one line, without the middle of what is too long."""
    if len(text) > limit:
        text = f"{text[: limit // 2]} ... {text[-limit // 2 :]}"
    return one_line(text)


def code_line(code: str) -> str:
    """Return a line of source for display: spaces inside it stay."""
    return visible(" ".join(code.strip().splitlines()))


def kind_name(kind: Kind | str) -> str:
    """Return a kind or status as people say it: `graph break`."""
    return (kind.value if isinstance(kind, Kind) else kind).replace("_", " ")


def root_name(report: Report) -> str:
    """Return what the root is called on screen: its class name."""
    for entry in report.modules:
        if not entry.path:
            return one_line(entry.cls)
    return one_line(report.target.rpartition(":")[2]) or "model"


def module_name(report: Report, path: str) -> str:
    """Return a module's path, or the class name for the root."""
    return one_line(path) if path else root_name(report)


def modules_of(finding: Finding) -> tuple[str, ...]:
    """Return all modules that introduce the fault, the reported one first."""
    return (finding.module, *(path for path in finding.also_in if path != finding.module))


def region_of(finding: Finding) -> tuple[str, ...]:
    """Return the modules whose interplay brings the fault, or nothing."""
    region = finding.evidence.get("region")
    if not isinstance(region, (list, tuple)):
        return ()
    return tuple(path for path in region if isinstance(path, str))


def evidence_text(finding: Finding, name: str) -> str:
    """Return a text of a finding's evidence, empty where it has none."""
    value = finding.evidence.get(name)
    return value if isinstance(value, str) else ""


def impact_of(finding: Finding) -> str:
    """Return what a divergence does to the output of the whole model, where that was measured."""
    impact = finding.evidence.get("impact")
    if not isinstance(impact, dict) or not isinstance(impact.get("text"), str):
        return ""
    where = impact.get("where")
    text = f"{where}: {impact['text']}" if isinstance(where, str) and where != "output" else impact["text"]
    gradients = impact.get("gradients")
    if isinstance(gradients, dict) and isinstance(gradients.get("text"), str):
        which = f" ({gradients['where']})" if isinstance(gradients.get("where"), str) else ""
        text = f"output {text}; gradients{which} {gradients['text']}"
    return one_line(text)


def hanging_on(finding: Finding) -> list[tuple[str, str]]:
    """Return what is no finding by itself and hangs on this one, each kind of it with a label."""
    rows = []
    for name, label in (("not_proved", "behind it"), ("follows", "follows")):
        texts = finding.evidence.get(name)
        if isinstance(texts, list | tuple) and texts:
            rows.append((label, one_line("; ".join(map(str, texts)))))
    return rows


def place(location: Location | None) -> str:
    """Return `model.py:31 in MLP.forward`, or an empty string."""
    if location is None:
        return ""
    text = f"{location.file}:{location.line}"
    return one_line(f"{text} in {location.function}" if location.function else text)


def short_place(location: Location) -> str:
    """Return `model.py:31`, without folders."""
    return one_line(f"{posixpath.basename(location.file.replace(chr(92), '/'))}:{location.line}")


def source_path(report: Report, location: Location) -> str:
    """Return the file of a location as seen from where the run was started, with forward slashes."""
    file = location.file.replace("\\", "/")
    target = report.target.rpartition(":")[0].replace("\\", "/")
    if not target.endswith(".py") or posixpath.isabs(file) or re.match("[A-Za-z]:/", file):
        return file
    return posixpath.normpath(posixpath.join(posixpath.dirname(target), file))


def repro_path(repro: Repro, folder: str) -> str:
    """Return the path of a script, with the folder that the report lies in."""
    return one_line(f"{folder.rstrip('/')}/{repro.path}" if folder and not repro.path.startswith("/") else repro.path)


def repro_remark(repro: Repro) -> str:
    """Return what is to be known about a script: `verified, 1 op, 24 lines`."""
    parts = ["verified" if repro.verified else "NOT verified"]
    if 0 < repro.shown < repro.runs:
        parts = [f"flaky: {repro.shown} of {plural(repro.runs, 'run')}"]
    if repro.ops:
        parts.append(plural(repro.ops, "op"))
    if repro.lines:
        parts.append(plural(repro.lines, "line"))
    if repro.imports_user_code:
        parts.append("imports your code")
    if repro.note:
        parts.append(one_line(repro.note))
    return ", ".join(parts)


def no_repro_remark(finding: Finding) -> str:
    """Say that a finding has no script, and why where its kind tells."""
    if finding.kind is Kind.SLOWDOWN:
        return "none: seconds hold for one machine, so a script could prove nothing elsewhere"
    return "none"


def kind_counts(findings: Iterable[Finding]) -> str:
    """Return `1 crash, 2 graph breaks`, worst first."""
    counts = Counter(finding.kind for finding in findings)
    return ", ".join(plural(counts[kind], kind_name(kind)) for kind in Kind if counts[kind])


def headline(report: Report) -> str:
    """Return the one line that says how the run came out."""
    if report.findings:
        guilty = {path for finding in report.findings for path in modules_of(finding)}
        text = (
            f"{plural(len(report.findings), 'finding')} ({kind_counts(report.findings)}), "
            f"introduced by {len(guilty)} of {plural(len(report.modules), 'module')}"
        )
    else:
        idle = idle_count(report)
        has_inherited = any(entry.origin == "inherited" for entry in report.modules)
        text = "healthy: " if report.complete and not has_inherited and not report.uncovered else ""
        text += f"no findings in {plural(len(report.modules) - idle, 'module')}"
        if idle:
            has_untested = any(entry.status == "untested" for entry in report.modules)
            text += f" ({idle} not called, skipped or untested)" if has_untested else f" ({idle} not called or skipped)"
        if has_inherited:
            text += "; what was left out is not healthy"
        if (kinds := checked_kinds(report)) and set(kinds) < set(DEFAULT_KINDS):
            text += f"; looked for {', '.join(map(kind_name, kinds))} alone"
    text += f"; {plural(report.timing.compiles, 'compile')} in {seconds(report.timing.total_s)}"
    if report.uncovered:
        text = f"NOT ALL WAS TESTED, {uncovered_text(report)}; {text}"
    return text if report.complete else f"INCOMPLETE, stopped early: {text}"


def uncovered_text(report: Report) -> str:
    """Return which modules nothing is known of, the first with the reason; empty where all was tested or covered."""
    if not report.uncovered:
        return ""
    more = len(report.uncovered) - 1
    text = f"no verdict on {untested_text(report, report.uncovered[0].path)}"
    return f"{text}, nor on {plural(more, 'more module')}" if more else text


def untested_text(report: Report, path: str) -> str:
    """Return a module of which nothing is known, and why."""
    reason = next((part.reason for part in report.uncovered if part.path == path), "")
    return one_line(f"{module_name(report, path)} ({reason[:_LONGEST_REASON]})")


def idle_count(report: Report) -> int:
    """Return how many modules were skipped or untested, or neither ran nor hold one that did."""
    active: set[str] = set()
    for entry in report.modules:
        if entry.status not in ("not_called", "skipped", "untested"):
            parts = entry.path.split(".") if entry.path else []
            active.update(".".join(parts[:length]) for length in range(len(parts) + 1))
    return sum(entry.status in ("skipped", "untested") or entry.path not in active for entry in report.modules)


def seconds(value: float) -> str:
    """Return a duration as people read it: `0.8 s`, `34 s`, `2 min 05 s`."""
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 99.5:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def environment_line(report: Report) -> str:
    """Return the versions and the device in one line."""
    environment = report.environment
    named: Mapping[str, str | None] = {
        "compilebisect": environment.compilebisect,
        "torch": environment.torch,
        "triton": environment.triton,
        "CUDA": environment.cuda,
        "Python": environment.python,
    }
    parts = [f"{name} {value}" for name, value in named.items() if value]
    return one_line(", ".join([*parts, *([environment.device] if environment.device else [])]))


def notes_with_modules(report: Report) -> list[tuple[str, tuple[str, ...]]]:
    """Return each distinct note once with the modules that it is about; none for notes about the whole run."""
    modules: dict[str, list[str]] = {note: [] for note in report.notes}
    for entry in report.modules:
        for note in entry.notes:
            modules.setdefault(note, []).append(entry.path)
    return [(note, tuple(paths)) for note, paths in modules.items()]


def compressed_paths(paths: Iterable[str]) -> list[str]:
    """Return paths with runs of numbers folded: `layers.1.mlp`, `layers.2.mlp` become `layers.{1…2}.mlp`.

    Paths that differ in one numeric component alone are folded; the order of first appearance is kept.
    """
    groups: list[tuple[list[str], list[int]]] = []  # parts of the first path, and the numbers that were folded in
    folds: dict[tuple[str, str], tuple[int, int]] = {}  # what stands before and behind a number: group and column
    for path in dict.fromkeys(paths):
        parts = path.split(".")
        sides = {
            column: (".".join([*parts[:column], ""]), ".".join(["", *parts[column + 1 :]]))
            for column, part in enumerate(parts)
            if part.isdecimal()
        }
        fitting = min((folds[side] for side in sides.values() if side in folds), default=None)
        if fitting is None:
            folds.update({side: (len(groups), column) for column, side in sides.items()})
            groups.append((parts, []))
            continue
        position, column = fitting
        pattern, numbers = groups[position]
        if not numbers:  # from now on no other column of this group can be folded
            numbers.append(int(pattern[column]))
            for other, part in enumerate(pattern):
                if part.isdecimal() and other != column:
                    del folds[".".join([*pattern[:other], ""]), ".".join(["", *pattern[other + 1 :]])]
        numbers.append(int(parts[column]))
    columns = dict(folds.values())
    return [_folded(pattern, columns.get(position), numbers) for position, (pattern, numbers) in enumerate(groups)]


def _folded(pattern: list[str], column: int | None, numbers: list[int]) -> str:
    if column is None or not numbers:
        return ".".join(pattern)
    return ".".join([*pattern[:column], "{" + number_ranges(numbers) + "}", *pattern[column + 1 :]])


def number_ranges(numbers: Iterable[int]) -> str:
    """Return `0…3,5` for 0, 1, 2, 3 and 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}…{high}" for low, high in runs)
