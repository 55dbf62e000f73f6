"""`journal report`: a journal as one page to look at."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent import __version__
from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.journal_list import Selection, selection_options
from ticket_agent.cli.journal_records import request_of
from ticket_agent.cli.options import default_state_dir, state_dir_option
from ticket_agent.cli.output import emit_json, fail, plain
from ticket_agent.cli.output_file import STDOUT, output_file
from ticket_agent.cli.status import journal_view
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.record import Record
    from ticket_agent.journal.report import Label
    from ticket_agent.journal.timeline import Timeline
    from ticket_agent.journal.view import JournalView

__all__ = ["report"]

MOST = 2_000
"""Operations on one page unless asked otherwise."""


@click.command()
@state_dir_option
@click.option(
    "--html", "target", required=True, metavar="FILE", help="Write the page here; - is standard output."
)
@selection_options
@click.option(
    "--limit",
    type=click.IntRange(1, 20_000),
    default=MOST,
    show_default=True,
    help="Newest ones only.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line about the page.")
def report(
    *, state_dir: Path | None, target: str, limit: int, force: bool, as_json: bool, **asked: Any
) -> None:
    """Draw a timeline: operations as lanes, crashes and restarts as marks, uncertain times hatched.

    The page is one file that needs no network and holds no script. It shows names out of the tickets as they
    are; `journal export` makes a copy of the journal without them, which can be drawn as well. PREFIX is the
    beginning of a ticket id or of a journal key.
    """
    if target == STDOUT and as_json:
        fail("--json and the page cannot both go to standard output; name a file", Exit.USAGE)
    directory = state_dir or default_state_dir()
    view = journal_view(directory)
    # Which processes there were is told by all operations, whichever are drawn.
    every = list(view.records.values())
    selection = Selection(**asked)
    chosen = [record for record in every if selection.takes(record)]
    newest = sorted(chosen, key=lambda record: (record.history[0].unix_ms, record.sequence))[-limit:]
    page, timeline = _page(directory, view, every, newest, dropped=len(chosen) - len(newest))
    with output_file(target, force=force, state_dir=directory) as stream:
        stream.write(page)
    _say(target, page, timeline, every, as_json=as_json)
    sys.exit(int(Exit.DEGRADED if view.quarantined else Exit.OK))


def _page(
    directory: Path, view: JournalView, every: list[Record], newest: list[Record], *, dropped: int
) -> tuple[bytes, Timeline]:
    from ticket_agent.journal.report import Facts, render_report  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.timeline import timeline_of  # noqa: PLC0415 - start-up time

    now = now_ms()
    timeline = timeline_of(
        every,
        view.starts,
        shown=newest,
        cursor=view.cursor,
        running=view.owner is not None,
        now_unix_ms=now,
    )
    facts = Facts(
        source=str(directory),
        program=f"ticket-agent {__version__}",
        made_unix_ms=now,
        retained=len(every),
        left_out=_left_out(view, every, newest, dropped),
        problems=_problems(view),
    )
    return render_report(timeline, facts, _label).encode(), timeline


def _label(record: Record) -> Label:
    from ticket_agent.journal.report import Label  # noqa: PLC0415 - start-up time

    request = request_of(record)
    return Label(
        ticket=str(request.get("id", record.key)),
        action=str(request.get("action", "?")),
        subject=str(request.get("subject_ref", "-")),
    )


def _left_out(view: JournalView, every: list[Record], newest: list[Record], dropped: int) -> list[str]:
    said = []
    if dropped:
        said.append(f"{dropped} older operations are left out; --limit shows more, filters show others.")
    unasked = len(every) - len(newest) - dropped
    if unasked:
        said.append(f"{unasked} operations do not fit the filters and are left out.")
    if view.segments:
        count = len(view.segments)
        said.append(
            f"Older operations that moved to the archive ({count} segment{'s' if count != 1 else ''}) "
            "are left out."
        )
    return said


def _problems(view: JournalView) -> list[str]:
    said = [f"Quarantined: ops/{item.name}: {item.reason}" for item in view.quarantined]
    if view.cursor_problem is not None:
        said.append(f"The cursor: {view.cursor_problem}")
    held = view.cursor.held
    if held is not None:
        said.append(
            f"Gap held: admissions {held.first} to {held.through} of hive epoch {held.epoch} may have been "
            f"lost: {held.reason}"
        )
    return said


def _say(target: str, page: bytes, timeline: Timeline, every: list[Record], *, as_json: bool) -> None:
    shown, size = len(timeline.lanes), len(page)
    if as_json:
        emit_json(
            "report",
            {
                "file": target,
                "bytes": size,
                "operations": shown,
                "retained": len(every),
                "starts": len(timeline.lives),
                "crashes": timeline.crashes,
                "uncertain_windows": len(timeline.windows),
            },
        )
        return
    where = "standard output" if target == STDOUT else target
    click.echo(
        f"wrote {plain(where)}: {size} bytes, {shown} of {len(every)} operations, "
        f"{len(timeline.lives)} starts, {timeline.crashes} crashes, "
        f"{len(timeline.windows)} uncertain windows",
        err=target == STDOUT,
    )
