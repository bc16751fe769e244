"""Makes the text of a Python script smaller by edits at places of its syntax tree; what stays is left word for word."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator
from typing import TypeVar

from compilebisect.core.reduce import number_edits, signature_edits, unread_names
from compilebisect.core.reduce.class_edits import class_edits
from compilebisect.core.reduce.expression_edits import expression_edits
from compilebisect.core.reduce.import_edits import without_short_names
from compilebisect.core.reduce.rename_edits import rename_edits
from compilebisect.core.reduce.script_text import FUNCTIONS, Edit, ScriptText
from compilebisect.core.reduce.search import smallest_subset
from compilebisect.core.reduce.statement_edits import behind_kept_lines, unwrapped, without

T = TypeVar("T")
Steps = Generator[str, bool, T]


def simplifications(
    source: str, is_frozen: Callable[[ast.stmt], bool], keep_lines: frozenset[str], *, keep_numbers: bool = False
) -> Generator[str, bool, str]:
    """Propose smaller and smaller texts of a script; send back whether the fault still shows with it.

    Each text that is proposed parses, is smaller than the smallest one that showed the fault, and is proposed once.
    A caller that runs out of time keeps the last text that it accepted.

    Args:
        source: the script; it is taken to show the fault.
        is_frozen: says of a top-level statement, by what it is and not where it stands, whether it must stay as it is.
        keep_lines: lines, stripped, that are neither edited nor left out, such as the one that the fault points to.
        keep_numbers: leave numbers as they are, as where they decide how long the script runs.

    Returns:
        The smallest text that showed the fault.

    Raises:
        SyntaxError: where `source` does not parse.
    """
    reduction = _Reduction(source, is_frozen, keep_lines, keep_numbers)
    while True:
        before = reduction.text
        yield from reduction.round()
        # What failed is tried again only when nothing else is left to do: most of it fails for the same reasons.
        if reduction.text == before and not reduction.forget_failures():
            return reduction.text


class _Reduction:
    """The smallest text so far, and what was asked."""

    def __init__(
        self, source: str, is_frozen: Callable[[ast.stmt], bool], keep_lines: frozenset[str], keep_numbers: bool
    ) -> None:
        self._is_frozen, self._keep_lines, self._keep_numbers = is_frozen, keep_lines, keep_numbers
        self._script = self._parse(source)
        self._frozen, self._kept = self._script.frozen_texts(), self._script.kept_texts()
        self._seen: set[str] = set()
        self._failed: set[Hashable] = set()
        self._forgot_at = source

    @property
    def text(self) -> str:
        return self._script.text

    def forget_failures(self) -> bool:
        """Let single edits be tried again that failed with an earlier text; false where there was none."""
        if self._forgot_at == self.text:
            return False
        self._forgot_at = self.text
        self._failed.clear()
        return True

    def round(self) -> Steps[None]:
        """Go through all passes once, those first that may take away most."""
        yield from self._cut_behind_kept_lines()
        yield from self._sweep()
        yield from self._tidy()
        # One test, and with small tensors all that follow are quicker.
        yield from self._numbers_at_once()
        yield from self._statements_at(0)
        yield from self._sweep()
        yield from self._subset(_unfrozen_parts(self._script))
        classes = [block for block in self._script.blocks() if isinstance(block.owner, ast.ClassDef)]
        yield from self._subset([item for block in classes for item in block.statements])
        depth = 1
        while any(block.depth >= depth for block in self._script.blocks()):
            yield from self._statements_at(depth)
            depth += 1
        yield from self._singles(_unwrapped_texts)
        yield from self._sweep()
        yield from self._singles(_class_texts)
        yield from self._singles(_renamed_texts)
        yield from self._singles(_signature_texts)
        yield from self._singles(_expression_texts)
        yield from self._sweep()
        yield from self._singles(_parameter_texts)
        yield from self._offer(without_short_names(self._script))
        yield from self._numbers_at_once()
        if not self._keep_numbers:
            yield from self._singles(_number_texts)

    def _numbers_at_once(self) -> Steps[None]:
        if not self._keep_numbers:
            yield from self._offer(self._script.edited(number_edits.all_at_once(self._script)))

    def _offer(self, text: str) -> Steps[bool]:
        """Propose a text where it is allowed and smaller, and take it where it shows the fault."""
        if text == self.text:
            return True
        if text in self._seen:
            return False
        self._seen.add(text)  # what is not allowed now is not later, as texts only become smaller
        if (script := self._allowed(text)) is None:
            return False
        shows = yield text
        if shows:
            self._script = script
        return shows

    def _allowed(self, text: str) -> ScriptText | None:
        try:
            script = self._parse(text)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(text, "<candidate>", "exec", dont_inherit=True)  # finds more than the parser alone
        except (SyntaxError, ValueError):
            return None
        if script.frozen_texts() != self._frozen or not script.kept_texts() >= self._kept:
            return None
        return script if _order(script) < _order(self._script) else None

    def _parse(self, text: str) -> ScriptText:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own affair
            return ScriptText(text, self._is_frozen, self._keep_lines)

    def _cut_behind_kept_lines(self) -> Steps[None]:
        """Leave out what follows the kept lines in their functions; then the same, but for what is returned."""
        script = self._script
        doomed = behind_kept_lines(script)
        if doomed and not (yield from self._offer(without(script, doomed))):
            yield from self._offer(without(script, [item for item in doomed if not isinstance(item, ast.Return)]))

    def _sweep(self) -> Steps[None]:
        """Leave out what nothing reads, all in one go as far as it goes; what stays is for the searches."""
        passes = (
            unread_names.without_unread_definitions,
            unread_names.without_unread_imports,
            unread_names.without_unread_values,
        )
        script, before = self._script, None
        while before != script.text:
            before = script.text
            for sweep in passes:
                script = self._parse(sweep(script))
        if not (yield from self._offer(script.text)):
            for sweep in passes:
                yield from self._offer(sweep(self._script))

    def _tidy(self) -> Steps[None]:
        yield from self._offer(signature_edits.without_docstrings(self._script))
        yield from self._offer(self._script.edited(signature_edits.annotation_edits(self._script)))

    def _statements_at(self, depth: int) -> Steps[None]:
        yield from self._subset(
            [
                item
                for block in self._script.blocks()
                if block.depth == depth and not isinstance(block.owner, ast.ClassDef)
                for item in block.statements
            ]
        )

    def _subset(self, statements: Collection[ast.stmt]) -> Steps[None]:
        """Leave out as many of some statements as possible."""
        script = self._script
        keys = {
            item: ("statement", _place(script, item), script.segment(item))
            for item in statements
            if not (isinstance(item, ast.Pass) or script.has_kept_line(item))
        }
        members = [item for item, key in keys.items() if key not in self._failed]
        if not members:
            return
        search, accepted = smallest_subset(members, allow_empty=True), set(members)
        try:
            kept = next(search)
            while True:
                away = accepted.difference(kept)
                key = keys[next(iter(away))] if len(away) == 1 else None
                shows = False
                if key is None or key not in self._failed:
                    shows = yield from self._offer(without(script, set(members).difference(kept)))
                if shows:
                    accepted = set(kept)
                elif key is not None:
                    # One that failed alone is not tried again before all else is done: the search asks for it anew
                    # after each success.
                    self._failed.add(key)
                kept = search.send(shows)
        except StopIteration as stop:
            self._failed.update(keys[item] for item in stop.value)

    def _singles(self, find: Callable[[ScriptText], Iterable[tuple[Hashable, str]]]) -> Steps[None]:
        """Try edits one by one, each once; after a success on the new text."""
        is_changed = True
        while is_changed:
            is_changed = False
            for key, text in find(self._script):
                if key in self._failed or text == self.text:
                    continue
                if (yield from self._offer(text)):
                    is_changed = True
                    break
                self._failed.add(key)


def _order(script: ScriptText) -> tuple[int, int, int]:
    """Return what makes a text smaller: fewer lines, then fewer characters, then smaller numbers."""
    return (*script.size(), sum(number_edits.weight(node.value) for node in number_edits.numbers(script)))


def _unfrozen_parts(script: ScriptText) -> list[ast.stmt]:
    """Return the top-level statements that may go: those that bind nothing that frozen ones read."""
    read = set().union(*(unread_names.names_read(statement) for statement in script.frozen))
    return [statement for statement in script.editable if not read.intersection(unread_names.names_bound(statement))]


def _place(script: ScriptText, node: ast.AST) -> str:
    """Return the names of the definitions around a node."""
    names = []
    found: ast.AST | None = node
    while (found := script.parents.get(found) if found is not None else None) is not None:
        names.append(getattr(found, "name", None) or "")
    return ".".join(names)


def _unwrapped_texts(script: ScriptText) -> Iterator[tuple[Hashable, str]]:
    for block in script.blocks():
        for statement in block.statements:
            if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                for number, text in enumerate(unwrapped(script, statement)):
                    yield ("unwrap", _place(script, statement), script.segment(statement), number), text


def _class_texts(script: ScriptText) -> Iterator[tuple[Hashable, str]]:
    for edits in class_edits(script):
        yield _line_key("class", script, edits), script.edited(edits)


def _renamed_texts(script: ScriptText) -> Iterator[tuple[Hashable, str]]:
    for statement, edits in rename_edits(script):
        names = tuple(edit.text for edit in edits)
        yield ("rename", _place(script, statement), script.segment(statement), names), script.edited(edits)


def _signature_texts(script: ScriptText) -> Iterator[tuple[Hashable, str]]:
    for edit in [
        *signature_edits.decorator_edits(script),
        *signature_edits.annotation_edits(script),
        *signature_edits.default_edits(script),
    ]:
        yield _line_key("signature", script, [edit]), script.edited([edit])


def _expression_texts(script: ScriptText) -> Iterator[tuple[Hashable, str]]:
    for node, edits in expression_edits(script):
        start = script.span(node)[0]
        moved = tuple(Edit(edit.start - start, edit.end - start, edit.text) for edit in edits)
        yield ("expression", _place(script, node), script.segment(node), moved), script.edited(edits)


def _parameter_texts(script: ScriptText) -> Iterator[tuple[Hashable, str]]:
    for edits in signature_edits.parameter_edits(script):
        yield _line_key("parameter", script, edits), script.edited(edits)


def _number_texts(script: ScriptText) -> Iterator[tuple[Hashable, str]]:
    found = list(number_edits.numbers(script))
    values = {node.value for node in found if isinstance(node.value, int | float)}
    for value in sorted(values, reverse=True):
        for new in number_edits.smaller(value):
            edits = [Edit(*script.span(node), new) for node in found if node.value == value]
            yield ("numbers", value, new), script.edited(edits)
    for node in found:
        assert isinstance(node.value, int | float)
        for new in number_edits.smaller(node.value):
            edit = Edit(*script.span(node), new)
            yield _line_key("number", script, [edit]), script.edited([edit])


def _line_key(kind: str, script: ScriptText, edits: list[Edit]) -> Hashable:
    """Return what an edit does, in words that stay the same as other parts of the text change."""
    parts = []
    for edit in edits:
        start = script.text.rfind("\n", 0, edit.start) + 1
        end = script.text.find("\n", edit.end)
        parts.append((script.text[start:end], edit.start - start, edit.text))
    return (kind, *parts)
