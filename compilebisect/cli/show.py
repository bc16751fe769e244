"""The `show` command: renders a saved report again."""

from __future__ import annotations

import os

import click

from compilebisect.cli.files import read_report
from compilebisect.cli.options import Nearest
from compilebisect.cli.output import no_collector, print_report
from compilebisect.render import FORMATS


@click.command("show")
@click.argument("path", metavar="REPORT.json")
@click.option("--format", "format_name", type=Nearest("format", FORMATS), default="tree", help="What to print.")
def show_command(path: str, format_name: str) -> None:
    """Show a report again, in any format; `-` reads it from standard input."""
    with no_collector():
        report = read_report(path)
        folder = str(report.settings.get("out", "")) if path == "-" else os.path.dirname(path)
        print_report(report, format_name, folder)
