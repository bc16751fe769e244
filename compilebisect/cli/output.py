"""Puts a rendering on standard output as wide and as colourful as that allows."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from compilebisect.cli.files import write_data, write_output
from compilebisect.core.report import Report
from compilebisect.render import render
from compilebisect.render.wording import plain_lines

_PIPE_WIDTH = 100
_MAX_WIDTH = 120


def print_report(report: Report, format_name: str, folder: str) -> None:
    """Write a report to standard output.

    Args:
        report: what to show.
        format_name: one of `render.FORMATS`.
        folder: where its repro scripts lie.
    """
    text = render(report, format_name, width=output_width(), color=has_color(), folder=folder)
    if format_name == "tree":
        write_output(text)
    else:
        write_data(text)


@contextmanager
def no_collector() -> Iterator[None]:
    """Leave cycles of objects alone meanwhile: looking for them takes a third of the time of a large report."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def output_width() -> int:
    """Return the columns to use: the terminal's, within reason, or a fixed number elsewhere."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return _PIPE_WIDTH
    return min(shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns, _MAX_WIDTH)


def has_color() -> bool:
    """Whether standard output gets colour codes: on a terminal that has them, unless NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def tell(text: str) -> None:
    """Write lines to standard error, in which texts of the user steer neither a terminal nor the log of a CI job."""
    click.echo(plain_lines(text), err=True)
