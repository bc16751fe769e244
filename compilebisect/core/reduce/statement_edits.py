"""Edits of whole statements: left out, or replaced by what they contain."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from compilebisect.core.reduce.script_text import Block, Edit, ScriptText, end_line, first_line

MOST_BLANK_LINES = 2


def without(script: ScriptText, doomed: Collection[ast.stmt]) -> str:
    """Return the text without some statements; a body that loses all of its statements becomes `pass`."""
    return script.edited(removals(script, doomed))


def behind_kept_lines(script: ScriptText) -> list[ast.stmt]:
    """Return the statements of functions that come after a line to keep, or within a statement that begins with it."""
    found: list[ast.stmt] = []
    for block in script.blocks():
        if isinstance(block.owner, ast.ClassDef) or script.function_of(block.statements[0]) is None:
            continue
        holders = [number for number, item in enumerate(block.statements) if script.has_kept_line(item)]
        is_within = isinstance(block.owner, ast.stmt) and block.owner.lineno in script.kept
        if is_within and block.field == "body" and not holders:
            found += block.statements
        elif holders:
            found += block.statements[holders[-1] + 1 :]
    return found


def removals(script: ScriptText, doomed: Collection[ast.stmt]) -> list[Edit]:
    """Return the edits that take away some statements, with the comments that belong to them."""
    edits: list[Edit] = []
    for block in [Block(script.tree, "body", script.tree.body, 0), *script.blocks()]:
        flags = [statement in doomed for statement in block.statements]
        if all(flags) and block.field != "body":
            before = script.line_end(_end_of_previous_section(block))
            edits.append(Edit(before, script.line_end(end_line(block.statements[-1]))))
        elif all(flags) and block.owner is not script.tree:
            edits.append(_body_to_pass(script, block))
        else:
            edits += [_run_away(script, block, first, last) for first, last in _runs(flags)]
    return _with_joined_gaps(edits)


def _with_joined_gaps(edits: list[Edit]) -> list[Edit]:
    """Make one gap of those that meet, such as at the ends of a body and of the one around it."""
    joined: list[Edit] = []
    for edit in sorted(edits, key=lambda edit: (edit.start, -edit.end)):
        if joined and edit.end <= joined[-1].end:
            continue  # inside what goes anyway
        if joined and joined[-1].end >= edit.start and not (joined[-1].text + edit.text).strip("\n"):
            edit = Edit(joined[-1].start, edit.end, max(joined.pop().text, edit.text))
        joined.append(edit)
    return joined


def _runs(flags: list[bool]) -> Iterator[tuple[int, int]]:
    """Yield the first and last position of each run of true flags."""
    start = None
    for position, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = position
        elif not flag and start is not None:
            yield start, position - 1
            start = None


def _end_of_previous_section(block: Block) -> int:
    for field in ("orelse", "handlers", "body"):
        part = getattr(block.owner, field, None)
        if field != block.field and part:
            return end_line(part[-1])
    raise ValueError(f"nothing before {block.field}")


def _body_to_pass(script: ScriptText, block: Block) -> Edit:
    first, last = block.statements[0], block.statements[-1]
    start = _first_line_with_comments(script, first, 0)
    line = script.lines[start - 1]
    place = script.line_start(start) + len(line) - len(line.lstrip())
    if script.lines[first.lineno - 1][: first.col_offset].strip() and not getattr(first, "decorator_list", ()):
        place = script.span(first)[0]  # on the line of its header
    return Edit(place, script.line_end(end_line(last)), "pass")


def _run_away(script: ScriptText, block: Block, first: int, last: int) -> Edit:
    """Return the edit that takes away a run of statements with their comments, and blank lines that are too many."""
    statements, is_script = block.statements, block.owner is script.tree
    start, end = first_line(statements[first]), end_line(statements[last])
    previous_end = end_line(statements[first - 1]) if first else 0
    if last + 1 < len(statements) and first_line(statements[last + 1]) == end:
        return Edit(script.span(statements[first])[0], script.span(statements[last + 1])[0])
    if previous_end == start:
        return Edit(script.span(statements[first - 1])[1], script.span(statements[last])[1])
    start = _first_line_with_comments(script, statements[first], previous_end)
    before = _blank_lines(script, range(start - 1, previous_end, -1))
    after = _blank_lines(script, range(end + 1, len(script.lines) + 1))
    wanted = min(max(before, after), MOST_BLANK_LINES)
    if end + after >= len(script.lines) or (first == 0 and not is_script):
        wanted = 0
    return Edit(script.line_start(start - before), script.line_start(end + after + 1), "\n" * wanted)


def _first_line_with_comments(script: ScriptText, statement: ast.stmt, previous_end: int) -> int:
    """Return where the comment above a statement begins; the head of the file belongs to no statement."""
    line = first_line(statement)
    while line - 1 > previous_end and line > 1 and script.lines[line - 2].lstrip().startswith("#"):
        line -= 1
    return first_line(statement) if line == 1 else line


def _blank_lines(script: ScriptText, numbers: range) -> int:
    """Return how many of some lines are blank before one is not."""
    for count, number in enumerate(numbers):
        if script.lines[number - 1].strip():
            return count
    return len(numbers)


def unwrapped(script: ScriptText, statement: ast.stmt) -> Iterator[str]:
    """Yield the texts in which a compound statement is replaced by one of its blocks."""
    start, end = script.span(statement)
    if isinstance(statement, ast.If) and script.text.startswith("elif", start):
        return
    handlers = getattr(statement, "handlers", ())
    for owner, field in [(statement, "body"), (statement, "orelse"), *((item, "body") for item in handlers)]:
        block = getattr(owner, field, None)
        if isinstance(block, list) and block:
            if field == "orelse" and script.text.startswith("elif", script.span(block[0])[0]):
                # the same chain without its first branch
                yield script.edited([Edit(start, script.span(block[0])[0] + 2)])
            else:
                yield script.edited([Edit(start, end, _dedented(script, block, statement.col_offset))])


def _dedented(script: ScriptText, block: list[ast.stmt], column: int) -> str:
    """Return the text of a block as it stands in a block that begins at `column`."""
    surplus = block[0].col_offset - column
    first, last = first_line(block[0]), end_line(block[-1])
    if script.lines[first - 1][: block[0].col_offset].strip() and not getattr(block[0], "decorator_list", ()):
        return script.text[script.span(block[0])[0] : script.span(block[-1])[1]]
    inside_strings = {
        line
        for statement in block
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant | ast.JoinedStr)
        for line in range(node.lineno + 1, end_line(node) + 1)
    }
    lines = []
    for number in range(first, last + 1):
        line = script.lines[number - 1]
        is_moved = number not in inside_strings and not line[:surplus].strip()
        lines.append(line[surplus:] if is_moved else line)
    return "\n".join(lines)[column:]
