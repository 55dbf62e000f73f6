"""Metrics in Prometheus' text format, drawn from the newest picture of the agent, and as a file.

Loaded only when metrics are switched on, because the library is.
"""

from __future__ import annotations

import contextlib
import math
import os
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from ticket_agent import __version__
from ticket_agent.agent.metrics import BUCKETS_S
from ticket_agent.agent.relay.exposition import relay_families
from ticket_agent.protocol.lifecycle import LifecycleState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from prometheus_client.core import Metric

    from ticket_agent.agent.events import EventLog
    from ticket_agent.agent.loop import Agent
    from ticket_agent.agent.metrics import Durations, Meter, Snapshot
    from ticket_agent.journal.store import JournalStore

__all__ = ["MetricsReport", "SnapshotCollector", "Textfile", "TextfileWriter"]

TEXTFILE_PERIOD_S = 5.0
_BOUNDS = (*(str(bound) for bound in BUCKETS_S), "+Inf")


class SnapshotCollector(Collector):
    """Turns one snapshot into metric families; ages are computed when somebody asks."""

    def __init__(self, current: Callable[[], Snapshot], clock: Callable[[], int]) -> None:
        self._current = current
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """All families, of one and the same snapshot."""
        seen = self._current()
        yield from _tickets(seen)
        yield from _uncertainty(seen, self._clock())
        yield from _durations(seen)
        yield from _trouble(seen)
        yield from _hive(seen)
        yield from _lifecycle(seen)
        yield from _pace(seen)
        if seen.relay is not None:
            yield from relay_families(seen.relay, self._clock())


def _tickets(seen: Snapshot) -> Iterator[Metric]:
    yield _labelled(
        GaugeMetricFamily("ticket_agent_operations", "Open operations.", labels=("action", "state")),
        seen.open_operations,
    )
    yield _labelled(
        CounterMetricFamily(
            "ticket_agent_transitions",
            "Durable transitions by the state they led to, since the process started.",
            labels=("action", "state"),
        ),
        seen.transitions,
    )
    yield _labelled(
        CounterMetricFamily(
            "ticket_agent_operations_ended",
            "Operations that ended, since the process started.",
            labels=("action", "outcome"),
        ),
        seen.ended,
    )


def _uncertainty(seen: Snapshot, now_unix_ms: int) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "ticket_agent_uncertain_operations", "Operations whose outcome is unknown.", seen.uncertain
    )
    since = seen.oldest_uncertain_unix_ms
    yield GaugeMetricFamily(
        "ticket_agent_oldest_uncertain_operation_age_seconds",
        "For how long the outcome of an operation has been unknown, of all the longest; 0 if there is none.",
        0 if since is None else max(0, now_unix_ms - since) / 1000,
    )


def _durations(seen: Snapshot) -> Iterator[Metric]:
    yield _histogram(
        "ticket_agent_transition_duration_seconds",
        "Time of a durable transition by the state it led to, both fsyncs included.",
        "state",
        seen.transition_s,
    )
    yield _histogram(
        "ticket_agent_fsync_duration_seconds",
        "Time of an fsync of the journal, of a file or of a directory.",
        "target",
        seen.fsync_s,
    )


def _trouble(seen: Snapshot) -> Iterator[Metric]:
    for name, text, value in (
        ("gap_held", "1 while admissions may have been lost and nothing later is executed.", _gap(seen)),
        ("gap_admissions", "Admissions that the held gap covers; 0 if none is held.", seen.gap_admissions),
        ("quarantined_records", "Files of the journal that are no valid records.", seen.quarantined),
        ("unparsable_requests", "Open records with a request this version cannot parse.", seen.unparsable),
        ("journal_poisoned", "1 after a write failed; the process ends.", int(seen.poisoned)),
    ):
        yield GaugeMetricFamily(f"ticket_agent_{name}", text, value)


def _gap(seen: Snapshot) -> int:
    return int(seen.gap_admissions > 0)


def _hive(seen: Snapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "ticket_agent_hive_connected", "1 if the last pass could use the hive.", int(seen.connected)
    )
    for name, text, value in (
        ("hive_reconnects", "Sessions with the hive that were opened after the first.", _reconnects(seen)),
        ("hive_outages", "Passes that could not use the hive.", seen.outages),
        ("passes", "Passes over the hive and the open operations.", seen.passes),
    ):
        yield CounterMetricFamily(f"ticket_agent_{name}", text, value)
    yield GaugeMetricFamily(
        "ticket_agent_last_pass_timestamp_seconds", "When the last pass ended.", seen.unix_ms / 1000
    )
    version = GaugeMetricFamily("ticket_agent_build_info", "Version of the agent.", labels=("version",))
    version.add_metric((__version__,), 1)
    yield version


def _lifecycle(seen: Snapshot) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "ticket_agent_hive_lifecycle", "1 for the lifecycle state that the hive is in.", labels=("state",)
    )
    for name in LifecycleState:
        state.add_metric((name.value,), int(seen.lifecycle == name.value))
    yield state
    yield GaugeMetricFamily(
        "ticket_agent_hive_takes_results",
        "1 if the hive takes results; while it does not they stay staged and are tried again.",
        int(seen.takes_results),
    )


def _pace(seen: Snapshot) -> Iterator[Metric]:
    pace = seen.pace
    yield GaugeMetricFamily(
        "ticket_agent_log_turnover_duration_seconds",
        "Time in which a request log of the hive would be replaced at the pace of late; +Inf if none moves.",
        math.inf if pace.turnover_s is None else pace.turnover_s,
    )
    yield GaugeMetricFamily(
        "ticket_agent_log_replaced_ratio",
        "Part of a request log that was replaced between two looks, the greatest of late; at 1 some is lost.",
        pace.replaced,
    )
    yield GaugeMetricFamily(
        "ticket_agent_log_nearly_outrun",
        "1 while looks come so late that a burst of requests could be evicted unseen.",
        int(pace.close),
    )


def _reconnects(seen: Snapshot) -> int:
    return max(0, seen.sessions - 1)


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[tuple[str, str], int]
) -> GaugeMetricFamily | CounterMetricFamily:
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
    return family


def _histogram(name: str, text: str, label: str, values: Mapping[str, Durations]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=(label,))
    for of, durations in values.items():
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip(_BOUNDS, durations.counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric((of,), buckets, durations.sum_s)
    return family


class Textfile:
    """One file in the text format, replaced as a whole and readable for everybody; it is never synced."""

    def __init__(self, path: Path, *, pid: int) -> None:
        self.path = path
        # Collectors read what ends in `.prom`; this name does not.
        self._temporary = path.with_name(f".{path.name}.{pid}.tmp")

    def write(self, data: bytes) -> None:
        """Replace the file.

        Raises:
            OSError: it stays as it was.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(FileNotFoundError):
            self._temporary.unlink()
        try:
            with open(os.open(self._temporary, flags, 0o600), "wb") as stream:  # noqa: PTH123 - a descriptor
                stream.write(data)
                # The collector is another user, whatever our umask says.
                os.fchmod(stream.fileno(), 0o644)
            self._temporary.rename(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                self._temporary.unlink()
            raise


class TextfileWriter:
    """Writes the file, if there is one, now and then; one that cannot be written is told once.

    Args:
        textfile: the file, or None.
        render: what goes into it.
        events: hears when it cannot be written.
        monotonic: seconds, for the pace.
    """

    def __init__(
        self,
        textfile: Textfile | None,
        render: Callable[[], bytes],
        *,
        events: EventLog,
        monotonic: Callable[[], float],
    ) -> None:
        self._textfile = textfile
        self._render = render
        self._events = events
        self._monotonic = monotonic
        self._due = 0.0

    def forget(self) -> None:
        """Let the next write happen at once."""
        self._due = 0.0

    def write_if_due(self) -> None:
        """Write the file unless the last one is younger than five seconds."""
        textfile = self._textfile
        if textfile is None or self._monotonic() < self._due:
            return
        self._due = self._monotonic() + TEXTFILE_PERIOD_S
        try:
            textfile.write(self._render())
        except OSError as error:
            detail = f"{textfile.path} cannot be written: {error.strerror or error}"
            self._events.once("warning", "metrics-textfile-unwritable", "textfile", detail)
        else:
            self._events.settled("metrics-textfile-unwritable", "textfile")


class MetricsReport:
    """Takes a picture of the agent after every pass and writes the file, if there is one, now and then.

    Args:
        meter: what was counted.
        agent: whose picture is taken.
        store: its journal.
        events: hears once when the file cannot be written.
        clock: wall clock in Unix milliseconds.
        monotonic: seconds, for the pace of the file.
        textfile: the file, or None.
    """

    def __init__(
        self,
        *,
        meter: Meter,
        agent: Agent,
        store: JournalStore,
        events: EventLog,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        textfile: Textfile | None,
    ) -> None:
        self._meter = meter
        self._store = store
        self._snapshot = meter.snapshot(agent, store)
        self.registry = CollectorRegistry()
        self.registry.register(SnapshotCollector(lambda: self._snapshot, clock))
        self._writer = TextfileWriter(
            textfile, lambda: generate_latest(self.registry), events=events, monotonic=monotonic
        )

    def write_if_due(self, agent: Agent) -> None:
        """Take a picture; write the file unless the last one is younger than five seconds."""
        self._snapshot = self._meter.snapshot(agent, self._store)
        self._writer.write_if_due()

    def write(self, agent: Agent) -> None:
        """Take a picture and write the file now."""
        self._writer.forget()
        self.write_if_due(agent)
