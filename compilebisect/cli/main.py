"""The click group: finds the command, with `run` as the default, and loads only the one in use."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from compilebisect import __version__
from compilebisect.cli.files import check_output
from compilebisect.cli.output import tell
from compilebisect.core.nearest import did_you_mean
from compilebisect.error_text import LONGEST_TRACEBACK, error_text
from compilebisect.errors import CompilebisectError

# name: (module, attribute, one line of help). Modules are loaded when their command is called.
_COMMANDS = {
    "run": ("compilebisect.cli.run", "run_command", "Find the modules that break torch.compile (the default)."),
    "init": ("compilebisect.cli.init", "init_command", "Write a starter input spec from forward()'s signature."),
    "show": ("compilebisect.cli.show", "show_command", "Show a report again, in any format."),
    "diff": ("compilebisect.cli.diff", "diff_command", "Compare two reports: new, fixed, changed, unchanged findings."),
    "verify": ("compilebisect.cli.verify", "verify_command", "Say whether a repro script still shows its fault here."),
    "reduce": ("compilebisect.cli.reduce", "reduce_command", "Make a script smaller that shows a fault."),
    "doctor": ("compilebisect.cli.doctor", "doctor_command", "Check that this machine is able to compile."),
}
_DEFAULT = "run"
_GROUP_OPTIONS = ("--help", "-h", "--version")


class _LazyGroup(click.Group):
    """Group that loads a command's module on use, and takes words that name no command as those of `run`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0]
        if first not in _COMMANDS and first not in _GROUP_OPTIONS:
            if ":" not in first and not first.startswith("-") and (near := did_you_mean(first, _COMMANDS)):
                raise click.UsageError(f"unknown command {first!r}{near}", ctx=ctx)
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="compilebisect", message="%(prog)s %(version)s")
def command_line() -> None:
    """Find out which module of a PyTorch model breaks torch.compile, and prove it.

    \b
    compilebisect TARGET --input-spec SPEC.json [options]

    TARGET is path/to/file.py:Name or package.module:Name. `compilebisect run --help` lists all options.
    """


def run_command_line(words: Sequence[str]) -> int:
    """Run one command and return its exit status; errors that users can mend become one message on stderr."""
    if not words:
        tell(command_line.get_help(click.Context(command_line, info_name="compilebisect")))
        return CompilebisectError.exit_status
    try:
        status = command_line.main(list(words), prog_name="compilebisect", standalone_mode=False)
        check_output()  # of what click printed by itself
    except click.ClickException as error:
        tell(f"error: {_usage_message(error)}")
        return CompilebisectError.exit_status
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except CompilebisectError as error:
        tell(f"error: {error_text(error, LONGEST_TRACEBACK)}")
        return error.exit_status
    return status if isinstance(status, int) else 0


def _usage_message(error: click.ClickException) -> str:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    return f"{message}\nTry '{context.command_path} --help'."
