"""The relay's metric families. Loaded only when metrics are switched on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ticket_agent.agent.relay.breaker import Circuit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from ticket_agent.agent.relay.relay import RelayFigures

__all__ = ["relay_families"]


def relay_families(seen: RelayFigures, now_unix_ms: int) -> Iterator[Metric]:
    """All of them, of one and the same moment."""
    for name, text, values in (
        ("pending", "Tickets for a peer that are not delivered yet.", seen.pending),
        ("awaiting_result", "Tickets delivered to a peer whose result is awaited.", seen.awaiting),
    ):
        family = GaugeMetricFamily(f"ticket_agent_relay_{name}", text, labels=("peer",))
        for peer, value in sorted(values.items()):
            family.add_metric((peer,), value)
        yield family
    circuit = GaugeMetricFamily(
        "ticket_agent_relay_circuit", "1 for the state of the circuit to a peer.", labels=("peer", "state")
    )
    for peer, state in sorted(seen.circuits.items()):
        for each in Circuit:
            circuit.add_metric((peer, each.value), int(each == state))
    yield circuit
    since = seen.oldest_pending_unix_ms
    waited_s = 0.0 if since is None else max(0, now_unix_ms - since) / 1000
    numbers: tuple[tuple[str, str, float], ...] = (
        ("queue_bytes", "Bytes of the lines that are not delivered yet.", seen.queue_bytes),
        ("held_in_log", "Tickets that stay in the hive's log because the queue is full.", seen.held),
        ("unknown_peer_tickets", "Tickets in the log for hives that are no peers.", seen.unknown_peers),
        (
            "oldest_pending_age_seconds",
            "For how long the oldest ticket has waited for its delivery; 0 if none does.",
            waited_s,
        ),
    )
    for name, text, number in numbers:
        yield GaugeMetricFamily(f"ticket_agent_relay_{name}", text, number)
    events = CounterMetricFamily(
        "ticket_agent_relay_events", "What the relay did, since the process started.", labels=("event",)
    )
    for event, count in sorted(seen.counters.items()):
        events.add_metric((event,), count)
    yield events
