"""The one door to all renderings: a report and a format's name give a text."""

from __future__ import annotations

from importlib import import_module

from compilebisect.core.nearest import did_you_mean, quoted
from compilebisect.core.report import Report, report_json
from compilebisect.errors import UsageError
from compilebisect.render.wording import without_commands

FORMATS = ("tree", "json", "markdown", "html", "junit", "sarif", "github")
DEFAULT_WIDTH = 100


def render(
    report: Report, format_name: str, *, width: int = DEFAULT_WIDTH, color: bool = False, folder: str = ""
) -> str:
    """Return the report in one of `FORMATS`.

    Modules of formats are imported when they are first asked for, so that nobody waits for those not in use.

    Args:
        report: what to show.
        format_name: one of `FORMATS`.
        width: columns that the tree may use.
        color: whether the tree may hold colour codes.
        folder: where the report's repro scripts lie; it is put before their paths.

    Raises:
        UsageError: there is no such format.
    """
    if format_name not in FORMATS:
        raise UsageError(
            f"unknown format {format_name!r}{did_you_mean(format_name, FORMATS)}", fix=f"Choose of {quoted(FORMATS)}."
        )
    if format_name == "json":
        return report_json(report).decode("utf-8")
    if format_name == "tree":
        from compilebisect.render.tree import tree_text

        return tree_text(report, width=width, color=color, folder=folder)
    module = import_module(f"compilebisect.render.{format_name}")
    text: str = getattr(module, f"{format_name}_text")(report, folder=folder)
    # What is printed may end in the log of a CI job. The other formats begin no line with a text of the user.
    colon = {"markdown": r"\\:", "html": "&#58;", "junit": "&#58;"}.get(format_name)
    return text if colon is None else without_commands(text, colon)
