"""The `diff` command: which findings are new, fixed, changed or unchanged between two reports."""

from __future__ import annotations

import click

from compilebisect.cli.files import read_report, write_output
from compilebisect.cli.output import has_color, no_collector, output_width
from compilebisect.core.report_diff import diff_reports


@click.command("diff")
@click.argument("base_path", metavar="BASE.json")
@click.argument("new_path", metavar="NEW.json")
def diff_command(base_path: str, new_path: str) -> int:
    """Compare the findings of two reports.

    Exits 1 when there are new ones, else 0.
    """
    from compilebisect.render.diff import diff_text

    if base_path == new_path == "-":
        raise click.UsageError("only one of the reports can come from standard input")
    with no_collector():
        base, new = read_report(base_path), read_report(new_path)
        diff = diff_reports(base, new)
        write_output(diff_text(diff, base, new, width=output_width(), color=has_color()))
    return 1 if diff.new else 0
