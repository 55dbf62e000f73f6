"""`journal gc`: which finished operations may move to the archive, which stay and why; and moving them."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import limits_of, now_ms, opened_store
from ticket_agent.cli.journal_records import request_of
from ticket_agent.cli.options import agent_options, config_from
from ticket_agent.cli.output import age, emit_json, fail, plain, table
from ticket_agent.cli.status import journal_view, require_used
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ticket_agent.config import AgentConfig
    from ticket_agent.journal.record import Record
    from ticket_agent.journal.retention import Judged
    from ticket_agent.journal.space import Limits
    from ticket_agent.journal.view import JournalView

__all__ = ["collect_garbage"]

HEADERS = ["SEQ", "EPOCH", "TICKET", "ENDED", "STAYS", "WHY"]


@click.command(name="gc")
@agent_options
@click.option("--dry-run", is_flag=True, help="Only say what would move and what stays; works on a copy.")
@click.option("--against-hive", is_flag=True, help="Look which version-1 tickets the hive still shows.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per operation, then one for the whole.")
def collect_garbage(*, dry_run: bool, against_hive: bool, as_json: bool, **options: Any) -> None:
    """Move finished operations that retention lets go into the archive, however few they are.

    A running agent does this by itself once enough of them may leave; this needs the state directory for
    itself, except with --dry-run. Without --against-hive every version-1 ticket of the hive's present life
    stays, because the hive may still show it.
    """
    config = config_from(options)
    require_used(config.state_dir)
    limits = replace(limits_of(config), retire_batch=1)
    asked = config if against_hive else None
    moved = None
    if not dry_run:
        moved, keep = _move(config, limits, asked)
    view = journal_view(config.state_dir)
    if dry_run:
        keep = _keep(view, asked)
    judged = _judge(view, limits, keep)
    if dry_run:
        _tell(judged, limits, as_json=as_json)
    code = Exit.DEGRADED if view.quarantined or view.cursor_problem is not None else Exit.OK
    _sum_up(judged, moved, code, as_json=as_json)
    sys.exit(int(code))


def _keep(view: JournalView, config: AgentConfig | None) -> set[str]:
    """Keys of version-1 tickets that the hive shows, or may show when it is not asked."""
    from ticket_agent.agent.keys import RELAY_FAMILY, V1_FAMILY, base_of, pair_of_relay  # noqa: PLC0415 - as above

    entries = [(entry.key, entry.family, entry.epoch) for entry in view.records.entries()]
    v1 = [(key, epoch) for key, family, epoch in entries if family == V1_FAMILY]
    relayed = {key for key, family, _ in entries if family == RELAY_FAMILY}
    if config is None:
        present = max([view.cursor.epoch, *(epoch for _, _, epoch in entries)])
        return {key for key, epoch in v1 if epoch == present} | relayed
    from ticket_agent.cli.journal_facts import hive_facts  # noqa: PLC0415 - start-up time

    with hive_facts(config, view.cursor) as hive:
        shown = _bases(hive.callers)
    # Under whichever name: an earlier admission is what proves that the pair was dispatched before.
    return {key for key, _ in v1 if base_of(key)[0] in shown} | {
        key for key in relayed if f"v1/{pair_of_relay(key)}" in shown
    }


def _bases(lines: Iterable[str]) -> set[str]:
    from ticket_agent.agent.keys import base_key  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.errors import ProtocolError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.spec import parse_spec  # noqa: PLC0415 - pydantic

    found = set()
    for line in lines:
        try:
            found.add(base_key(parse_spec(line.encode("utf-8"), source="raw")))
        except ProtocolError:
            continue
    return found


def _judge(view: JournalView, limits: Limits, keep: set[str]) -> list[Judged[Record]]:
    from ticket_agent.journal.retention import judge_retention  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.view import completed_through  # noqa: PLC0415 - start-up time

    return judge_retention(
        [record for record in view.records.values() if record.terminal],
        limits=limits,
        now_unix_ms=now_ms(),
        keep=keep,
        completed_through=completed_through(view, limits),
    )


def _move(config: AgentConfig, limits: Limits, asked: AgentConfig | None) -> tuple[int, set[str]]:
    from ticket_agent.journal.errors import JournalError, JournalPoisonedError  # noqa: PLC0415 - start-up time

    moved = 0
    with opened_store(config, limits=limits) as store:
        # Under the fence: no agent takes a ticket that this look does not see.
        keep = _keep(journal_view(config.state_dir), asked)
        try:
            while (left := store.retire(keep=keep)) > 0:
                moved += left
        except JournalPoisonedError as error:
            fail(f"{moved} moved; {error}", Exit.POISONED)
        except JournalError as error:
            fail(f"{moved} moved; {error}", Exit.FAILURE)
    return moved, keep


def _why(entry: Judged[Record], limits: Limits) -> str:
    from ticket_agent.journal.retention import Stays  # noqa: PLC0415 - start-up time

    match entry.stays:
        case None:
            return "old enough, and nothing needs it"
        case Stays.COUNT:
            return f"one of the newest {limits.retain_records}"
        case Stays.VISIBLE:
            return "the hive shows its request, or may"
        case Stays.NEWEST:
            return "the highest sequence of its kind, from which the next is counted"
        case Stays.AGE:
            return f"ended less than {limits.retain_ms // 86_400_000} days ago"
        case Stays.FENCE:
            return "an operation before it has not ended"


def _tell(judged: list[Judged[Record]], limits: Limits, *, as_json: bool) -> None:
    rows = []
    for entry in judged:
        record, stays = entry.record, entry.stays
        if as_json:
            names = ("key", "family", "epoch", "sequence", "changed_unix_ms")
            told = {name: getattr(record, name) for name in names}
            verdict = {"stays": stays is not None, "reason": stays, "why": _why(entry, limits)}
            emit_json("retention", told | verdict)
            continue
        rows.append(
            [
                str(record.sequence),
                str(record.epoch),
                plain(str(request_of(record).get("id", record.key))),
                age(record.changed_unix_ms, now_ms()),
                stays.value if stays is not None else "no",
                _why(entry, limits),
            ]
        )
    if rows:
        click.echo(table(HEADERS, rows))


def _sum_up(judged: list[Judged[Record]], moved: int | None, code: Exit, *, as_json: bool) -> None:
    stay = Counter(entry.stays.value for entry in judged if entry.stays is not None)
    leave = len(judged) - stay.total()
    if as_json:
        told = {"may_leave": leave, "moved": moved, "stay": dict(sorted(stay.items())), "exit": int(code)}
        emit_json("gc", told)
        return
    kinds = ", ".join(f"{count} by {name}" for name, count in sorted(stay.items()))
    stays = f"{stay.total()} stay" + (f" ({kinds})" if kinds else "")
    if moved is None:
        click.echo(f"{leave} may leave, {stays}; nothing was moved")
    else:
        click.echo(f"{moved} moved to the archive; {stays}")
