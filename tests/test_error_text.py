from __future__ import annotations

import pytest

from compilebisect.error_text import LONGEST_TEXT, error_line, error_lines, error_text, traceback_text


class _RaisesInText(Exception):
    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self.raised = raised

    def __str__(self) -> str:
        raise self.raised


class _NoText(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


@pytest.mark.parametrize("raised", [ValueError("no"), KeyboardInterrupt(), SystemExit(0), RecursionError()])
def test_a_text_that_raises_is_said_so_by_all_forms(raised: BaseException) -> None:
    error = _RaisesInText(raised)
    said = f"<its text cannot be made: {type(raised).__name__}>"
    assert error_text(error) == said
    assert error_line(error) == f"_RaisesInText: {said}"
    assert said in error_lines(error)
    assert "_RaisesInText" in traceback_text(error)


def test_a_text_that_is_no_string_is_said_so() -> None:
    assert error_text(_NoText()) == "<its text cannot be made: TypeError>"


def test_a_huge_text_is_cut_in_its_middle() -> None:
    text = error_text(ValueError("begin" + "x" * 5_000_000 + "end"))
    assert text.startswith("begin") and text.endswith("end")
    assert len(text) < LONGEST_TEXT + 100
    assert "characters left out" in text


def test_lone_surrogates_are_spelled_out() -> None:
    assert error_text(ValueError("\ud800x")) == "\\ud800x"
    traceback_text(ValueError("\ud800x")).encode()


def test_a_class_of_a_module_is_named_with_it_and_notes_are_kept() -> None:
    error = _NoText()
    error.__notes__ = ["a note", 3]  # type: ignore[attr-defined]
    lines = error_lines(error)
    assert lines.startswith(f"{__name__}._NoText: ")
    assert lines.endswith("a note")


def test_an_error_without_text_is_its_name_alone() -> None:
    assert error_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert error_lines(KeyboardInterrupt()) == "KeyboardInterrupt"
