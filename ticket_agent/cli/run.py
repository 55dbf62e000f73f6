"""`run` and `once`: the daemon, and one pass of it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import (
    boot_id,
    events_for,
    exit_of,
    exit_of_hive,
    now_ms,
    opened_agent,
    opened_store,
    peft_roots,
    pid,
    stop_on_signals,
)
from ticket_agent.cli.metrics import meter_for, reporting
from ticket_agent.cli.options import (
    agent_options,
    config_from,
    metrics_listen_option,
    metrics_textfile_option,
    mock_option,
    relay_option,
)
from ticket_agent.cli.output import emit_json, fail
from ticket_agent.cli.peers import relay_plan
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ticket_agent.agent.events import EventLog
    from ticket_agent.agent.loop import Agent, Report
    from ticket_agent.config import AgentConfig
    from ticket_agent.journal.store import JournalStore

__all__ = ["once", "run"]

_PEER_WAIT_S = 0.005
_NO_TICKETS = "ticket-agent: this hive's manifest does not enable host tickets; nothing to do"


@click.command()
@agent_options
@metrics_listen_option
@metrics_textfile_option
@mock_option
@relay_option
@click.option("--run-once", is_flag=True, help="The same as the command `once`.")
def run(*, run_once: bool, mock: bool, **options: Any) -> None:
    """Serve a hive until SIGTERM or SIGINT: finish the current step, leave the journal consistent."""
    if run_once and options["metrics_listen"] is not None:
        raise click.UsageError("nobody could ask a single pass: use --metrics-textfile with --run-once")
    _serve(options, mock=mock, only_once=run_once, as_json=False)


@click.command()
@agent_options
@metrics_textfile_option
@mock_option
@relay_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line about the pass.")
def once(*, mock: bool, as_json: bool, **options: Any) -> None:
    """Look at the hive once, move every ticket as far as it goes, exit with what is left behind."""
    _serve(options, mock=mock, only_once=True, as_json=as_json)


def _serve(options: dict[str, Any], *, mock: bool, only_once: bool, as_json: bool) -> None:
    stop = stop_on_signals()
    with contextlib.ExitStack() as stack:
        if mock:
            stack.enter_context(_embedded_hive(options))
        config = config_from(options | {"mock": mock})
        if not config.enabled:
            if as_json:
                emit_json("once", {"enabled": False, "exit": int(Exit.OK)})
            else:
                click.echo(_NO_TICKETS)
            sys.exit(int(Exit.OK))
        peft_roots(config)  # a mistake there ends the command before anything is created
        relay = relay_plan(config) if options["relay"] else None
        events = events_for(config)
        meter = meter_for(config.metrics, only_once=only_once)
        store = stack.enter_context(opened_store(config, meter=meter))
        agent = stack.enter_context(opened_agent(config, store, events, relay=relay))
        _announce(store, events, config)
        reports: list[Report] = []
        if meter is not None:
            metrics = reporting(config.metrics, meter, agent, store, events, listen=not only_once)
            reports.append(stack.enter_context(metrics))
        code = _guarded(agent, store, events, config, stop, reports=reports, only_once=only_once)
        if only_once:
            _report(agent, store, code, as_json=as_json)
    sys.exit(int(code))


def _guarded(
    agent: Agent,
    store: JournalStore,
    events: EventLog,
    config: AgentConfig,
    stop: Any,
    *,
    reports: Sequence[Report],
    only_once: bool,
) -> Exit:
    from ticket_agent.journal.errors import JournalError, JournalPoisonedError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.errors import ProtocolError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.namespace import HiveError  # noqa: PLC0415 - start-up time

    try:
        if only_once:
            _pass_once(agent, stop)
            agent.save_cursor()
        else:
            _run_until_stopped(agent, config, stop, reports)
    except JournalPoisonedError as error:
        fail(str(error), Exit.POISONED)
    except JournalError as error:
        fail(str(error), Exit.DEGRADED)
    except HiveError as error:
        fail(str(error), exit_of_hive(error))
    except ProtocolError as error:
        fail(f"the hive wrote what no hive should: {error}", Exit.FAILURE)
    events.emit("info", "stopped", ended=agent.totals.ended, open=len(store.open_records()))
    return exit_of(agent, store)


def _pass_once(agent: Agent, stop: Any) -> None:
    """One pass, and while peers are being asked the passes that take their answers."""
    agent.pass_once(stop)
    while agent.relay.busy and not stop.is_set():
        stop.wait(_PEER_WAIT_S)
        agent.pass_once(stop)


def _run_until_stopped(agent: Agent, config: AgentConfig, stop: Any, reports: Sequence[Report]) -> None:
    from ticket_agent.agent.notify import ServiceNotifier  # noqa: PLC0415 - start-up time
    from ticket_agent.agent.statusfile import StatusFile  # noqa: PLC0415 - start-up time

    notifier = ServiceNotifier(os.environ, pid=pid())
    directory = os.open(config.state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = StatusFile(directory, pid=pid(), boot_id=boot_id(), clock=now_ms, monotonic=time.monotonic)
        agent.run(stop, notifier=notifier, reports=[status, *reports])
    finally:
        os.close(directory)


def _announce(store: JournalStore, events: EventLog, config: AgentConfig) -> None:
    events.emit(
        "info",
        "started",
        pid=pid(),
        state_dir=str(config.state_dir),
        records=len(store.records),
        open=len(store.open_records()),
        epoch=store.cursor.epoch,
    )
    for quarantined in store.quarantined:
        events.emit("error", "quarantined", file=quarantined.name, reason=quarantined.reason)
    if store.cursor_problem is not None:
        events.emit("error", "cursor-unreadable", reason=store.cursor_problem)


def _report(agent: Agent, store: JournalStore, code: Exit, *, as_json: bool) -> None:
    open_records = store.open_records()
    uncertain = sum(record.outcome_unknown for record in open_records)
    if as_json:
        emit_json(
            "once",
            {
                "enabled": True,
                "ended": agent.totals.ended,
                "by_outcome": agent.totals.by_outcome,
                "open": len(open_records),
                "uncertain": uncertain,
                "quarantined": len(store.quarantined),
                "gap": agent.intake.held is not None,
                "exit": int(code),
            },
        )
        return
    words = ", ".join(f"{count} {name}" for name, count in sorted(agent.totals.by_outcome.items())) or "none"
    click.echo(f"ended: {agent.totals.ended} ({words}); open: {len(open_records)}; uncertain: {uncertain}")


@contextlib.contextmanager
def _embedded_hive(options: dict[str, Any]) -> Iterator[None]:
    from ticket_agent.cli.hive import embedded_hive  # noqa: PLC0415 - only for --mock

    with embedded_hive() as lab:
        options["tcp_host"], options["tcp_port"] = lab.host, lab.port
        options["auth_token"] = lab.token
        click.echo(lab.greeting, err=True)
        yield
