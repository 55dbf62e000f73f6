"""`journal explain`: what recovery would decide now for one operation, and why; nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.journal_records import brief, find
from ticket_agent.cli.options import agent_options, config_from, default_state_dir
from ticket_agent.cli.output import emit_json, plain, state_text, styled
from ticket_agent.cli.status import journal_view

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.config import AgentConfig
    from ticket_agent.journal.explain import Explanation
    from ticket_agent.journal.record import Record

__all__ = ["directory_of", "explain_operation", "explained", "members"]


@click.command(name="explain")
@agent_options
@click.argument("operation")
@click.option("--against-hive", is_flag=True, help="Read the facts from the hive instead of assuming them.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def explain_operation(*, operation: str, against_hive: bool, as_json: bool, **options: Any) -> None:
    """Say what recovery would decide now for one operation, by which rule and which facts.

    Without --against-hive no hive is asked: facts that only it knows are assumed and marked so. With it,
    visible results, the admission and the outcome of an executing operation are read; nothing is written.
    The hive's console has one client, so the agent must not be connected at that time.
    """
    directory, config = directory_of(options, ask_hive=against_hive)
    view = journal_view(directory)
    record = find(list(view.records.values()), operation)
    ((_, told),) = explained([record], view.cursor, config)
    if as_json:
        emit_json("explanation", brief(record) | members(told))
    else:
        _print(record, told)


def directory_of(options: dict[str, Any], *, ask_hive: bool) -> tuple[Path, AgentConfig | None]:
    """The state directory, and the configuration where a hive or a file of it is needed."""
    config = config_from(options) if ask_hive or options.get("config") is not None else None
    if config is not None:
        return config.state_dir, config if ask_hive else None
    return options.get("state_dir") or default_state_dir(), None


def explained(
    records: list[Record], cursor: Any, config: AgentConfig | None
) -> list[tuple[Record, Explanation]]:
    """Explain each record, by one look at the hive of ``config`` or, without one, by assumption."""
    from ticket_agent.agent.relay.words import effects_of  # noqa: PLC0415 - start-up time
    from ticket_agent.cli.journal_facts import hive_facts, offline_facts  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.explain import explain  # noqa: PLC0415 - start-up time

    if config is None:
        found = [(record, offline_facts(record, cursor)) for record in records]
    else:
        with hive_facts(config, cursor) as hive:
            found = [(record, hive.of(record)) for record in records]
    return [
        (
            record,
            explain(
                record,
                facts.facts,
                known=facts.known,
                outcome=facts.outcome,
                effects=effects_of(record.family),
            ),
        )
        for record, facts in found
    ]


def members(told: Explanation) -> dict[str, Any]:
    """An explanation as members of a JSON line."""
    return {
        "decision": told.decision.name.lower(),
        "rule": told.rule,
        "effect": told.effect,
        "facts": {
            name.value: {"says": words, "known": known.value} for name, (words, known) in told.facts.items()
        },
        "observed": told.outcome,
        "otherwise": list(told.otherwise),
    }


def _print(record: Record, told: Explanation) -> None:
    click.echo(f"operation  {plain(record.key)}, {state_text(record.state.value)}")
    for words, known in told.facts.values():
        mark = styled(known.value, "yellow" if known.value == "assumed" else None)
        click.echo(f"fact       {words} ({mark})")
    if told.outcome is not None:
        click.echo(f"observed   {plain(told.outcome)}")
    click.echo(f"rule       {told.rule}")
    click.echo(f"next       {plain(told.effect)}")
    for other in told.otherwise:
        click.echo(f"otherwise  {other}")
    if told.assumed:
        click.echo("to read what is assumed here: --against-hive")
