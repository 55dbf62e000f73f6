"""`journal replay`: what a restart does for every open operation, as a plan or done."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import (
    console,
    events_for,
    exit_of,
    exit_of_hive,
    opened_agent,
    opened_store,
    provider_table,
    stop_on_signals,
)
from ticket_agent.cli.journal_explain import directory_of, explained, members
from ticket_agent.cli.journal_records import brief, request_of
from ticket_agent.cli.options import agent_options, config_from
from ticket_agent.cli.output import emit_json, fail, plain, state_text, table
from ticket_agent.cli.status import journal_view, require_used
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ticket_agent.agent.loop import Agent
    from ticket_agent.config import AgentConfig
    from ticket_agent.journal.explain import Explanation
    from ticket_agent.journal.record import Record
    from ticket_agent.journal.store import JournalStore
    from ticket_agent.journal.view import JournalView

__all__ = ["replay_operations"]

PLAN_HEADERS = ["SEQ", "TICKET", "ACTION", "STATE", "NEXT", "NEEDS THE HIVE FOR", "BECAUSE"]
DONE_HEADERS = ["SEQ", "TICKET", "ACTION", "BEFORE", "AFTER", "OUTCOME", "NOTE"]
_NEEDS = {"observe": "an observation", "publish": "the publication", "dispatch": "READY and the effect"}
_LOOKED_UP = {"visible": "visible results", "admission": "the admission"}


@click.command(name="replay")
@agent_options
@click.option("--apply", "apply_it", is_flag=True, help="Do it: observe and publish; nothing is dispatched.")
@click.option(
    "--against-hive", is_flag=True, help="Plan by facts read from the hive instead of assumed ones."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line per operation, then one for the whole.")
def replay_operations(*, apply_it: bool, against_hive: bool, as_json: bool, **options: Any) -> None:
    """Say what a restart would do for every open operation; with --apply, do it.

    The plan only reads: with the agent dead or alive, on a copy, without root. --apply stops nobody else: it
    needs the state directory and the console for itself. It finds out what became of what was dispatched and
    publishes what is decided. It takes no new ticket and dispatches nothing: a ticket that was not begun
    stays as it is, unless it is over (expired, forgotten, Worker gone, result visible).
    """
    if apply_it:
        _apply(options, as_json=as_json)
    else:
        _plan(options, against_hive=against_hive, as_json=as_json)


# -- the plan ----------------------------------------------------------------------------------------------


def _plan(options: dict[str, Any], *, against_hive: bool, as_json: bool) -> None:
    directory, config = directory_of(options, ask_hive=against_hive)
    view = journal_view(directory)
    readable, unparsable = _parsable([record for record in view.records.values() if not record.terminal])
    held_back = _held_back(readable, directory, config)
    told = explained(readable, view.cursor, config) if readable else []
    code = _code_of_plan(view, unparsable, [explanation for _, explanation in told])
    if as_json:
        for record, explanation in told:
            planned = members(explanation) | {
                "needs_hive": _needs(explanation),
                "uncertain_after": explanation.uncertain,
                "behind": held_back.get(record.key),
            }
            emit_json("planned", brief(record) | planned)
        for key, why in unparsable.items():
            emit_json("left-alone", {"key": key, "reason": why})
        emit_json("plan", {"open": len(told) + len(unparsable), "exit": int(code)})
    else:
        _print_plan(view, told, held_back, unparsable, asked=against_hive)
    sys.exit(int(code))


def _parsable(records: list[Record]) -> tuple[list[Record], dict[str, str]]:
    """Open records in the agent's order, and why it leaves the others alone."""
    if not records:
        return [], {}
    from ticket_agent.agent.keys import V2_FAMILY  # noqa: PLC0415 - start-up time
    from ticket_agent.agent.operation import spec_of  # noqa: PLC0415 - pydantic
    from ticket_agent.protocol.errors import ProtocolError  # noqa: PLC0415 - start-up time

    found: list[Record] = []
    unparsable: dict[str, str] = {}
    for record in sorted(records, key=lambda one: (one.epoch, one.family == V2_FAMILY, one.sequence)):
        try:
            spec_of(record)
        except ProtocolError as error:
            unparsable[record.key] = str(error)
        else:
            found.append(record)
    return found, unparsable


def _held_back(
    records: list[Record], directory: Path, config: AgentConfig | None
) -> Mapping[str, dict[str, Any]]:
    """By key: the earlier operation that must move first, and what is shared with it."""
    if len(records) < 2:  # noqa: PLR2004 - nobody to stand behind
        return {}
    from ticket_agent.agent.operation import UNDECIDED, open_operation, spec_of  # noqa: PLC0415 - pydantic
    from ticket_agent.agent.replay import behind  # noqa: PLC0415 - start-up time
    from ticket_agent.config import AgentConfig  # noqa: PLC0415 - pydantic

    settings = config or AgentConfig(state_dir=directory)
    # Lanes follow from the requests alone: this namespace is never connected.
    providers = provider_table(settings, console(settings), epoch=lambda: 1)
    operations = []
    for record in records:
        spec = spec_of(record)
        operations.append(open_operation(record, spec, providers.provider_of(record, spec)))
    lanes = {op.record.key: op.record.state in UNDECIDED for op in operations}
    return {
        key: {
            "key": first.record.key,
            "sequence": first.record.sequence,
            "shares": "lane" if lanes[key] else "worker",
        }
        for key, first in behind(operations).items()
    }


def _needs(told: Explanation) -> list[str]:
    """What of this step only the hive can give; the facts among it were assumed."""
    decision = told.decision.name.lower()
    if decision in {"finish", "nothing"}:
        return []
    needs = [_LOOKED_UP[name] for name in told.assumed if name in _LOOKED_UP]
    if decision in _NEEDS and told.outcome is None:
        needs.append(_NEEDS[decision])
    return needs


def _code_of_plan(view: JournalView, unparsable: Mapping[str, str], told: list[Explanation]) -> Exit:
    if view.quarantined or view.cursor_problem is not None or view.cursor.held is not None or unparsable:
        return Exit.DEGRADED
    return Exit.UNCERTAIN if any(explanation.uncertain for explanation in told) else Exit.OK


def _print_plan(
    view: JournalView,
    told: list[tuple[Record, Explanation]],
    held_back: Mapping[str, dict[str, Any]],
    unparsable: Mapping[str, str],
    *,
    asked: bool,
) -> None:
    rows = []
    for record, explanation in told:
        first = held_back.get(record.key)
        wait = f"; behind admission {first['sequence']} of its {first['shares']}" if first is not None else ""
        rows.append(
            [
                *_names(record),
                state_text(record.state.value),
                explanation.decision.name.lower().replace("_", "-"),
                ", ".join(_needs(explanation)) or "nothing",
                plain(explanation.effect if explanation.outcome is not None else explanation.reason) + wait,
            ]
        )
    if rows:
        click.echo(table(PLAN_HEADERS, rows))
    for key, why in unparsable.items():
        click.echo(f"left alone: {plain(key)}: its request cannot be parsed: {plain(why)}")
    if not told and not unparsable:
        click.echo("nothing is open")
    else:
        uncertain = sum(explanation.uncertain for _, explanation in told)
        click.echo(f"open: {len(told) + len(unparsable)}; may stay uncertain: {uncertain}; nothing was done")
        hints = [] if asked else ["to read what is assumed here: --against-hive"]
        click.echo("; ".join([*hints, "to do it: --apply"]))
    if view.quarantined:
        click.echo(f"{len(view.quarantined)} unreadable record(s); see `ticket-agent journal verify`")
    if view.cursor_problem is not None:
        click.echo(f"cursor: {plain(view.cursor_problem)}")
    if view.cursor.held is not None:
        held = view.cursor.held
        click.echo(f"a gap is held: admissions {held.first}..{held.through}; see `ticket-agent status`")


def _names(record: Record) -> list[str]:
    request = request_of(record)
    return [
        str(record.sequence),
        plain(str(request.get("id", record.key))),
        plain(str(request.get("action", "?"))),
    ]


# -- done --------------------------------------------------------------------------------------------------


def _apply(options: dict[str, Any], *, as_json: bool) -> None:
    stop = stop_on_signals()
    # The table tells what moved; the log adds what went wrong, unless more was asked for.
    config = config_from(options | {"log_level": options.get("log_level") or "warning"})
    require_used(config.state_dir)
    with (
        opened_store(config) as store,
        opened_agent(config, store, events_for(config), serves=False) as agent,
    ):
        before = list(store.open_records())
        epoch = agent.intake.epoch
        problem, failed = _replayed(agent, stop)
        code = failed if failed is not None else _code_after(agent, store)
        _report(agent, store, before, epoch, code, as_json=as_json)
        if problem:
            fail(problem, code)
    sys.exit(int(code))


def _replayed(agent: Agent, stop: Any) -> tuple[str, Exit | None]:
    """Replay; an error comes back with its code, because what was done before it must still be told."""
    from ticket_agent.agent.replay import replay  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.errors import JournalError, JournalPoisonedError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.errors import ProtocolError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.namespace import HiveError  # noqa: PLC0415 - start-up time

    try:
        replay(agent, stop)
    except JournalPoisonedError as error:
        return str(error), Exit.POISONED
    except JournalError as error:
        return str(error), Exit.DEGRADED
    except HiveError as error:
        return str(error), exit_of_hive(error)
    except ProtocolError as error:
        return f"the hive wrote what no hive should: {error}", Exit.FAILURE
    return "", None


def _code_after(agent: Agent, store: JournalStore) -> Exit:
    """Degraded before uncertain before refused before fine."""
    from ticket_agent.journal.transitions import State  # noqa: PLC0415 - start-up time

    code = exit_of(agent, store)
    if code in {Exit.POISONED, Exit.DEGRADED}:
        return code
    operations = agent.operations.values()
    # Also one that no observation reached: nobody may take it for decided.
    if any(op.record.state is State.EXECUTING for op in operations):
        return Exit.UNCERTAIN
    refused = any(op.record.state is State.PERSISTED and op.may_publish for op in operations)
    return Exit.HIVE_REFUSED if refused else Exit.OK


def _report(
    agent: Agent, store: JournalStore, before: list[Record], epoch: int, code: Exit, *, as_json: bool
) -> None:
    rows = []
    for record in before:
        after = store.records[record.key]
        note = _note(agent, after)
        if as_json:
            moved = {"before": record.state.value, "after": after.state.value, "note": note or None}
            emit_json("replayed", brief(after) | moved)
            continue
        outcome = after.result.outcome if after.result is not None else None
        rows.append(
            [
                *_names(record),
                state_text(record.state.value),
                state_text(after.state.value),
                state_text(outcome) if outcome is not None else "-",
                plain(note),
            ]
        )
    left = store.open_records()
    if as_json:
        emit_json(
            "replay",
            {"before": len(before), "open": len(left), "epoch": agent.intake.epoch, "exit": int(code)},
        )
        return
    if rows:
        click.echo(table(DONE_HEADERS, rows))
    if agent.intake.epoch != epoch:
        click.echo(f"the hive has rebooted: its epoch is now {agent.intake.epoch}, before it was {epoch}")
    click.echo(f"open before: {len(before)}; open now: {len(left)}; dispatched: 0")


def _note(agent: Agent, after: Record) -> str:
    """Why an operation is where it is now."""
    if after.key in agent.unparsable:
        return f"left alone: its request cannot be parsed: {agent.unparsable[after.key]}"
    if after.terminal:
        return after.withdrawn or (after.result.message if after.result is not None else "")
    op = agent.operations.get(after.key)
    if op is None:
        return ""
    if not op.waiting:
        return "waits for an earlier operation of its lane"
    return op.waiting
