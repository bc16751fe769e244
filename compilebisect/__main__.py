"""Entry of the command line: turns whatever ends a command into a message and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from compilebisect.interrupts import end_like_an_interrupt
from compilebisect.streams import guarded_streams

INTERNAL_ERROR_STATUS = 125
INTERRUPTED_STATUS = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; no traceback is ever shown without `-v`.

    Args:
        arguments: words after the program's name; those of the process where None.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    with guarded_streams():
        try:
            end_like_an_interrupt()
            from compilebisect.cli.main import run_command_line

            return run_command_line(words)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED_STATUS
        # The last door: users get a message, and with -v the traceback. Even what is no `Exception` must not reach
        # Python, which would exit with 1, as if there were findings.
        except BaseException as error:  # noqa: BLE001
            _tell_internal_error(error, is_verbose=bool({"-v", "--verbose"}.intersection(words)))
            return INTERNAL_ERROR_STATUS


def _tell_internal_error(error: BaseException, *, is_verbose: bool) -> None:
    import traceback  # here, as they are seldom needed and slow to import

    from compilebisect.error_text import error_line, traceback_text
    from compilebisect.render.wording import plain_lines

    if is_verbose:
        print(plain_lines(traceback_text(error)), file=sys.stderr)
    # the last line of the innermost frame is enough to tell two reports of it apart
    frame = traceback.extract_tb(error.__traceback__)[-1]
    print(
        f"error: compilebisect itself failed: {plain_lines(error_line(error))}\n"
        f"({os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}) Please report this"
        + ("." if is_verbose else ", with the output of the same command with -v."),
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
