"""How commands speak: tables for people, JSON for programs, one line for an error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ticket_agent.journal.text import plain, stamp
from ticket_agent.protocol.redaction import redact_tickets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ticket_agent.exits import Exit

__all__ = [
    "OUTPUT_SCHEMA",
    "age",
    "emit_json",
    "fail",
    "plain",
    "size",
    "stamp",
    "state_text",
    "styled",
    "table",
]

OUTPUT_SCHEMA = "ticket-agent-output/v1"

STATE_COLOURS = {
    "prepared": "cyan",
    "executing": "yellow",
    "provider-result-persisted": "blue",
    "result-published": "blue",
    "terminal": "green",
    "uncertain": "magenta",
    "quarantined": "red",
    "confirmed": "green",
    "rejected": "red",
    "stale": "yellow",
}


def fail(text: str, code: Exit) -> NoReturn:
    """Say in one line what is wrong and what to do, and end with the documented code."""
    with contextlib.suppress(OSError):
        click.echo(f"ticket-agent: {plain(redact_tickets(' '.join(text.split())))}", err=True)
    sys.exit(int(code))


def emit_json(kind: str, document: Mapping[str, Any]) -> None:
    """Print one JSON line of the versioned output schema."""
    click.echo(json.dumps({"schema": OUTPUT_SCHEMA, "kind": kind, **document}, separators=(",", ":")))


def styled(text: str, colour: str | None, *, bold: bool = False) -> str:
    """Colour a text unless ``NO_COLOR`` is set or the output is no terminal."""
    if colour is None or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, fg=colour, bold=bold)


def state_text(state: str) -> str:
    """A journal state or outcome in its colour."""
    return styled(state, STATE_COLOURS.get(state))


def age(then_ms: int, now_ms: int) -> str:
    """How long ago, in the largest fitting unit; a time in the future is shown as such."""
    seconds = (now_ms - then_ms) / 1000
    if seconds < 0:
        return f"in {_span(-seconds)}"
    return f"{_span(seconds)} ago"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"  # noqa: PLR2004 - precision of display


def size(count: int) -> str:
    """Bytes in the largest unit that leaves at least one of it."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:  # noqa: PLR2004 - the step between these units
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table, columns aligned by visible width."""
    cells = [list(headers), *[list(row) for row in rows]]
    widths = [max(len(click.unstyle(row[column])) for row in cells) for column in range(len(headers))]
    lines = []
    for index, row in enumerate(cells):
        padded = [
            cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)
        ]
        line = "  ".join(padded).rstrip()
        lines.append(styled(line, "white", bold=True) if index == 0 else line)
    return "\n".join(lines)
