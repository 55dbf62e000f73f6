"""Metrics of `snapshots publish`: what is written, and what is listened on."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ticket_agent.cli.assembly import now_ms, pid
from ticket_agent.cli.metrics import served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.agent.events import EventLog
    from ticket_agent.config import MetricsSettings
    from ticket_agent.snapshots.picture import Picture

__all__ = ["metrics_of"]


@contextlib.contextmanager
def metrics_of(
    settings: MetricsSettings, picture: Callable[[], Picture], events: EventLog, *, listen: bool
) -> Iterator[Callable[[], None]]:
    """Switch configured metrics on while the block lasts; call what it gives after every turn."""
    if settings.textfile is None and (not listen or settings.listen is None):
        yield lambda: None
        return
    from prometheus_client.exposition import generate_latest  # noqa: PLC0415 - only where metrics are on

    from ticket_agent.agent.exposition import Textfile, TextfileWriter  # noqa: PLC0415 - only where metrics are on
    from ticket_agent.snapshots.exposition import PublisherMetrics  # noqa: PLC0415 - only where metrics are on

    metrics = PublisherMetrics(now_ms)
    path = settings.textfile
    writer = TextfileWriter(
        None if path is None else Textfile(Path(path), pid=pid()),
        lambda: generate_latest(metrics.registry),
        events=events,
        monotonic=time.monotonic,
    )

    def look() -> None:
        metrics.picture = picture()
        writer.write_if_due()

    with contextlib.ExitStack() as stack:

        def last() -> None:
            writer.forget()
            look()

        stack.callback(last)
        if listen and settings.address is not None:
            stack.enter_context(served(*settings.address, metrics.registry, events))
        yield look
