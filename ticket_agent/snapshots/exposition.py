"""The publisher's metrics in Prometheus' text format. Loaded only when metrics are switched on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ticket_agent import __version__
from ticket_agent.snapshots.picture import Picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.core import Metric

__all__ = ["PublisherMetrics"]


class PublisherMetrics(Collector):
    """Turns the newest picture into metric families; ages are computed when somebody asks.

    Args:
        clock: wall clock in Unix milliseconds.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.picture = Picture()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All families, of one and the same picture."""
        seen = self.picture
        info = GaugeMetricFamily("ticket_agent_snapshots_build_info", "The version.", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info
        yield _counted("published", "Records that became visible.", ("provider", "reason"), seen.published)
        yield _counted("failed", "Records that did not.", ("provider", "code"), seen.failed)
        held = {(code,): count for code, count in seen.held.items()}
        yield _counted("held", "Times that everything had to wait.", ("code",), held)
        yield CounterMetricFamily(
            "ticket_agent_snapshots_sent_bytes", "Characters of all appends.", value=seen.sent
        )
        yield GaugeMetricFamily(
            "ticket_agent_snapshots_sequence", "The last number that was reserved.", seen.sequence
        )
        yield GaugeMetricFamily(
            "ticket_agent_snapshots_healthy",
            "1 when nothing has failed since the last publication.",
            int(seen.healthy),
        )
        yield from self._of_providers(seen)

    def _of_providers(self, seen: Picture) -> Iterator[Metric]:
        now = self._clock()
        age = _gauge("age_seconds", "Since the last record of a provider became visible.")
        available = _gauge("available", "1 while that record lives and has the provider's state.")
        visible = _gauge("visible_seconds", "From the beginning of its look until it was visible.")
        stuck = _gauge("stuck", "1 when the provider's collector does not come back.")
        for provider in seen.providers:
            stuck.add_metric((provider,), int(provider in seen.stuck))
            last = seen.last.get(provider)
            if last is not None:
                age_ms = max(0, now - seen.last_unix_ms[provider])
                age.add_metric((provider,), age_ms / 1000)
                available.add_metric((provider,), int(last.reason is None and age_ms < last.ttl_ms))
                visible.add_metric((provider,), last.visible_ms / 1000)
        yield from (age, available, visible, stuck)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"ticket_agent_snapshots_{name}", text, labels=("provider",))


def _counted(name: str, text: str, labels: tuple[str, ...], counts: Mapping[Any, int]) -> CounterMetricFamily:
    # Keys are tuples, one value for each label; their type does not say how many.
    family = CounterMetricFamily(
        f"ticket_agent_snapshots_{name}", f"{text[:-1]}, since the process started.", labels=labels
    )
    for values, count in sorted(counts.items()):
        family.add_metric(tuple(value or "available" for value in values), count)
    return family
