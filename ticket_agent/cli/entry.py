"""The process around a command: standard streams that exist, one line for an error, the documented code."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from ticket_agent.cli.output import fail
from ticket_agent.cli.root import cli
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PROGRAM", "enter"]

PROGRAM = "ticket-agent"


def enter(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process; what it raises for the user's or the system's sake is one line."""
    _secure_streams()
    # Some supervisors ignore it for their children too; nobody could then tell how a program of ours ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        code = cli.main(arguments, prog_name=PROGRAM, standalone_mode=False)
    except NoArgsIsHelpError as error:
        error.show()
        sys.exit(int(Exit.USAGE))
    except click.UsageError as error:
        fail(_usage_line(error), Exit.USAGE)
    except click.ClickException as error:
        fail(error.format_message(), Exit.FAILURE)
    except click.Abort:
        fail("interrupted", Exit.FAILURE)
    except OSError as error:
        _end_after(error)
    sys.exit(code if isinstance(code, int) else int(Exit.OK))


def _usage_line(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx is not None else PROGRAM
    return f"{error.format_message().rstrip('.')}; see: {command} --help"


def _secure_streams() -> None:
    """Give the process all three standard descriptors, and output that no character can break.

    A closed one would be given to the next file that is opened: a journal's record could then receive what
    somebody writes to standard error.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _end_after(error: OSError) -> NoReturn:
    """End after an error of the system that no command knows better."""
    reason = error.strerror or str(error)
    try:
        sys.stdout.flush()
    except OSError:
        # What is still buffered would fail once more when the interpreter ends.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # Only the output has no name: whatever else is opened, is opened by name.
    what = str(error.filename) if error.filename is not None else "cannot write the output"
    fail(f"{what}: {reason}", Exit.FAILURE)
