"""Switching metrics on: what is timed, what is written, what is listened on."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ticket_agent.cli.assembly import now_ms, pid
from ticket_agent.cli.output import fail
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import CollectorRegistry

    from ticket_agent.agent.events import EventLog
    from ticket_agent.agent.loop import Agent, Report
    from ticket_agent.agent.metrics import Meter
    from ticket_agent.config import MetricsSettings
    from ticket_agent.journal.store import JournalStore

__all__ = ["meter_for", "reporting", "served"]


def meter_for(settings: MetricsSettings, *, only_once: bool) -> Meter | None:
    """What counts, or None where nobody would look: a single pass is over before it could be asked."""
    if settings.textfile is None and (only_once or settings.listen is None):
        return None
    from ticket_agent.agent.metrics import Meter  # noqa: PLC0415 - only where metrics are on

    return Meter(clock=now_ms)


@contextlib.contextmanager
def reporting(
    settings: MetricsSettings,
    meter: Meter,
    agent: Agent,
    store: JournalStore,
    events: EventLog,
    *,
    listen: bool,
) -> Iterator[Report]:
    """Listen while the block lasts; the file holds what was true at its end, however that came."""
    from ticket_agent.agent.exposition import MetricsReport, Textfile  # noqa: PLC0415 - only where metrics are on

    path = settings.textfile
    report = MetricsReport(
        meter=meter,
        agent=agent,
        store=store,
        events=events,
        clock=now_ms,
        monotonic=time.monotonic,
        textfile=Textfile(Path(path), pid=pid()) if path is not None else None,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(report.write, agent)
        if listen and settings.address is not None:
            stack.enter_context(served(*settings.address, report.registry, events))
        yield report


def served(
    host: str, port: int, registry: CollectorRegistry, events: EventLog
) -> contextlib.AbstractContextManager[None]:
    """Listen while the block lasts; an address that cannot be listened on ends the command."""
    from ticket_agent.agent.metrics_http import MetricsServer  # noqa: PLC0415 - only where metrics are on

    try:
        server = MetricsServer(host, port, registry)
    except OSError as error:
        fail(f"metrics cannot listen on {host} port {port}: {error.strerror or error}", Exit.FAILURE)
    events.emit("info", "metrics-served", address=host, port=server.port, path="/metrics")
    return server.serving()
