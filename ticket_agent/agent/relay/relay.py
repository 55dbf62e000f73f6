"""The relay of one agent: its queue, its peers and their tending, within the agent's own pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ticket_agent.agent.keys import RELAY_FAMILY
from ticket_agent.agent.relay.book import RelayBook, RelayBounds
from ticket_agent.agent.relay.peer import Peer
from ticket_agent.agent.relay.steps import RelayStepper
from ticket_agent.journal.errors import StorageFullError
from ticket_agent.journal.outcome import bounded_detail
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ticket_agent.agent.events import EventLog
    from ticket_agent.agent.operation import Operation
    from ticket_agent.agent.relay.contact import PeerLink
    from ticket_agent.journal.record import Record
    from ticket_agent.journal.store import JournalStore

__all__ = ["Relay", "RelayFigures", "RelayPlan"]


MAX_SHOWN = 100
"""Most unknown hives that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPlan:
    """What is relayed to whom.

    Attributes:
        links: one for each peer; the relay closes them.
        actions: actions that are relayed.
        bounds: of the queue.
    """

    links: tuple[PeerLink, ...] = ()
    actions: frozenset[str] = frozenset()
    bounds: RelayBounds = field(default_factory=RelayBounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFigures:
    """The relay in numbers, for metrics.

    Attributes:
        pending: tickets not delivered yet, by peer.
        awaiting: delivered tickets whose result is awaited, by peer.
        queue_bytes: bytes of the lines that are not delivered yet.
        held: tickets that wait in the hive's log for room.
        unknown_peers: tickets in the log for hives that are not configured.
        oldest_pending_unix_ms: since when the oldest of the pending ones waits; None if none does.
        circuits: state of the circuit to each peer.
        counters: events since the process started, by name.
    """

    pending: Mapping[str, int]
    awaiting: Mapping[str, int]
    queue_bytes: int
    held: int
    unknown_peers: int
    oldest_pending_unix_ms: int | None
    circuits: Mapping[str, str]
    counters: Mapping[str, int]


class Relay:
    """Belongs to the agent's thread. Without a plan it takes and sends nothing, and tells so.

    Nothing here waits for a peer: contacts run in the peers' own threads, and a pass only
    takes their replies.
    """

    def __init__(
        self,
        plan: RelayPlan | None,
        *,
        store: JournalStore,
        events: EventLog,
        local_hive: str,
        monotonic: Callable[[], float],
    ) -> None:
        found = plan or RelayPlan()
        self.enabled = plan is not None
        self.peers = {link.name: Peer(link, events) for link in found.links}
        self.bounds = found.bounds
        self.book = RelayBook(
            store,
            events,
            local_hive=local_hive,
            actions=found.actions,
            peers=self.peers,
            bounds=found.bounds,
            enabled=self.enabled,
        )
        self._local_hive = local_hive
        self._events = events
        self._monotonic = monotonic

    def stepper(self, **parts: Any) -> RelayStepper:
        """Who moves its tickets; ``parts`` are those of every stepper."""
        return RelayStepper(book=self.book, peers=self.peers, local_hive=self._local_hive, **parts)

    @property
    def busy(self) -> bool:
        """Whether a contact is under way, or begins with the next pass."""
        now = self._monotonic()
        return any(peer.under_way(now) for peer in self.peers.values())

    def tend(self, operations: Iterable[Operation]) -> list[Record]:
        """Take what the peers replied and what the queue has room for; returns new records.

        Operations of a peer with news need not wait any longer.
        """
        now = self._monotonic()
        news = {name for name, peer in self.peers.items() if peer.tend(now)}
        if news:
            for op in operations:
                if op.record.family == RELAY_FAMILY and op.spec.target_hive in news:
                    op.retry_at = 0.0
        fresh: list[Record] = []
        try:
            self.book.take_held(fresh)
        except StorageFullError as error:
            self._events.once("warning", "intake-waits", "relay", str(error))
        return fresh

    def ended(self, op: Operation) -> None:
        """Forget an operation that has ended."""
        self.book.ended(op.record.key)
        peer = self.peers.get(op.spec.target_hive or "")
        if peer is not None:
            peer.deliveries.pop(op.record.key, None)

    def pause_s(self) -> float | None:
        """Seconds until a peer needs this thread again; None if none does."""
        now = self._monotonic()
        pauses = [pause for peer in self.peers.values() if (pause := peer.pause_s(now)) is not None]
        return min(pauses, default=None)

    def close(self) -> None:
        """End the peers' threads."""
        for peer in self.peers.values():
            peer.link.close()

    def figures(self, operations: Iterable[Operation]) -> RelayFigures:
        """The relay in numbers, as it stands now."""
        now = self._monotonic()
        mine = [op for op in operations if op.record.family == RELAY_FAMILY]
        pending = [op for op in mine if op.record.key in self.book.pending_keys]
        awaiting = [op for op in mine if op.frees_lane and op.record.state is State.EXECUTING]
        none = dict.fromkeys(self.peers, 0)
        return RelayFigures(
            pending=none | Counter(op.spec.target_hive or "" for op in pending),
            awaiting=none | Counter(op.spec.target_hive or "" for op in awaiting),
            queue_bytes=self.book.depth[1],
            held=len(self.book.held),
            unknown_peers=sum(self.book.unknown_peers.values()),
            oldest_pending_unix_ms=min((op.record.history[0].unix_ms for op in pending), default=None),
            circuits={name: peer.breaker.circuit(now).value for name, peer in self.peers.items()},
            counters=asdict(self.book.counters),
        )

    def document(self, operations: Iterable[Operation]) -> dict[str, Any]:
        """How the relay stands, for `status`."""
        now, seen = self._monotonic(), self.figures(operations)
        return {
            "enabled": self.enabled,
            "queue_depth": self.book.depth[0],
            "queue_bytes": seen.queue_bytes,
            "queue_max_entries": self.bounds.queue_max_entries,
            "queue_max_bytes": self.bounds.queue_max_bytes,
            "held_in_log": seen.held,
            "oldest_pending_unix_ms": seen.oldest_pending_unix_ms,
            "awaiting_result": sum(seen.awaiting.values()),
            "unknown_peers": dict(sorted(self.book.unknown_peers.items())[:MAX_SHOWN]),
            "counters": dict(seen.counters),
            "peers": {
                name: {
                    "circuit": seen.circuits[name],
                    "failures": peer.breaker.failures,
                    "retry_in_ms": max(0, int((peer.breaker.not_before - now) * 1000)),
                    "why": bounded_detail(peer.breaker.why) if peer.breaker.why else "",
                    "pending": seen.pending[name],
                    "awaiting": seen.awaiting[name],
                }
                for name, peer in sorted(self.peers.items())
            },
        }
