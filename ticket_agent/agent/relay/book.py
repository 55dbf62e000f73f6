"""From callers' lines for other hives to pending records, within the bounds of the queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ticket_agent.agent.keys import RELAY_FAMILY, relay_key
from ticket_agent.agent.operation import spec_of
from ticket_agent.journal.errors import QuarantinedRecordError, StorageFullError
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.federation import Skip, judge, relayed

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping

    from ticket_agent.agent.events import EventLog
    from ticket_agent.journal.record import Record
    from ticket_agent.journal.store import JournalStore
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["RELAY_EPOCH", "RelayBook", "RelayBounds", "RelayCounters", "RelayPlace"]

RELAY_EPOCH = 1
"""Records of the relay are of no life of the hive; they all carry this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayBounds:
    """How much may wait (host tickets, federation: bounds).

    Attributes:
        queue_max_entries: tickets that are not delivered yet.
        queue_max_bytes: bytes of their lines, newlines included.
        wal_max_entries: tickets that are not ended yet, delivered ones included.
        wal_max_bytes: bytes of their lines.
    """

    queue_max_entries: int = 256
    queue_max_bytes: int = 32_768
    wal_max_entries: int = 1_024
    wal_max_bytes: int = 524_288


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPlace:
    """Name and number of a record of the relay."""

    key: str
    sequence: int
    family: str = RELAY_FAMILY
    epoch: int = RELAY_EPOCH


@dataclass(slots=True)
class RelayCounters:
    """Since the process started."""

    queued: int = 0
    deduplicated: int = 0
    conflicts: int = 0
    not_relayed: int = 0
    """Lines for other hives that are not relayed from here: relayed before, or of an action not listed."""
    backpressure: int = 0
    """Lines that had to wait in the hive's log because the queue was full."""
    missed: int = 0
    """Lines that the hive dropped from its log before they could be queued."""
    delivered: int = 0
    returned: int = 0
    """Results of peers that were staged for this hive."""
    resent: int = 0
    """Lines that were handed over again, after it was certain that they had not been applied."""


class _Sizes:
    """Entries and bytes of some tickets, in all and for each target; a key ends with the target's name."""

    def __init__(self) -> None:
        self.by_key: dict[str, int] = {}
        self.total = 0
        self.entries_of: Counter[str] = Counter()
        self.bytes_of: Counter[str] = Counter()

    def add(self, key: str, size: int) -> None:
        if key not in self.by_key:
            self._count(key, 1, size)
            self.by_key[key] = size

    def remove(self, key: str) -> None:
        size = self.by_key.pop(key, None)
        if size is not None:
            self._count(key, -1, -size)

    def _count(self, key: str, entries: int, size: int) -> None:
        target = key.rpartition("/")[2]
        self.total += size
        self.entries_of[target] += entries
        self.bytes_of[target] += size


class RelayBook:
    """Takes tickets into the journal while there is room, and remembers which could not be taken.

    Invariants:
        1. What was taken is never dropped: a full queue takes nothing new, and says so.
        2. A ticket is taken once, whatever became of it since.
        3. Half of the queue is divided among the peers and kept for each of them, so that no dead peer keeps
           the tickets of another one out of it.

    Args:
        store: the journal.
        events: the log.
        local_hive: name of this hive.
        actions: actions that are relayed.
        peers: hives that can be reached; a ticket for another one is not taken, and waits in the hive's log.
        bounds: of the queue.
        enabled: False takes nothing.
    """

    def __init__(
        self,
        store: JournalStore,
        events: EventLog,
        *,
        local_hive: str,
        actions: Collection[str],
        peers: Collection[str],
        bounds: RelayBounds,
        enabled: bool,
    ) -> None:
        self._store = store
        self._events = events
        self._local_hive = local_hive
        self._actions = actions
        self._peers = peers
        self._bounds = bounds
        self.enabled = enabled
        self.counters = RelayCounters()
        self.unknown_peers: dict[str, int] = {}
        """Hives that tickets in the log are for and that are not configured, with how many there are."""
        self.held: dict[str, HostTicketSpec] = {}
        """Lines that wait in the hive's log for room in the queue."""
        self._strangers: dict[str, str] = {}
        self._pending, self._open = _Sizes(), _Sizes()
        for record in store.open_records():
            if record.family == RELAY_FAMILY:
                size = _size(record, local_hive)
                self._open.add(record.key, size)
                if record.state in (State.PREPARED, State.EXECUTING):
                    self._pending.add(record.key, size)

    @property
    def depth(self) -> tuple[int, int]:
        """Tickets that are not delivered yet, and the bytes of their lines."""
        return len(self._pending.by_key), self._pending.total

    @property
    def pending_keys(self) -> Container[str]:
        """Keys of the tickets that are not delivered yet."""
        return self._pending.by_key.keys()

    def relayed_elsewhere(self, spec: HostTicketSpec) -> bool:
        """Whether the same pair of id and key is in the journal for another peer as well."""
        others = [name for name in self._peers if name != spec.target_hive]
        keys = [relay_key(replace(spec, target_hive=name), self._local_hive) for name in others]
        return any(key in self._store.records for key in keys)

    def delivered(self, key: str) -> None:
        """Note that a ticket does not wait for its delivery any more."""
        self._pending.remove(key)

    def ended(self, key: str) -> None:
        """Note that nothing is left to do for a ticket."""
        self._pending.remove(key)
        self._open.remove(key)

    def place_of(self, spec: HostTicketSpec) -> RelayPlace | None:
        """Where a ticket for another hive would stand next; None if it never is this hive's to relay."""
        if judge(spec, local_hive=self._local_hive, actions=(spec.action,)) is not None:
            return None
        return RelayPlace(
            key=relay_key(spec, self._local_hive),
            sequence=self._store.highest_sequence(RELAY_FAMILY, RELAY_EPOCH) + 1,
        )

    def offer(self, text: str, spec: HostTicketSpec, fresh: list[Record]) -> str | None:
        """Look at a line for another hive; returns the key of its record if it has one."""
        skip = judge(spec, local_hive=self._local_hive, actions=self._actions) if self.enabled else Skip.LOCAL
        if skip is not None:
            self.counters.not_relayed += self.enabled
            self._events.emit(
                "info",
                "other-hive-skipped",
                id=spec.id,
                target_hive=spec.target_hive,
                reason=skip.value if self.enabled else None,
            )
            return None
        key = relay_key(spec, self._local_hive)
        known = self._store.records.get(key)
        if known is not None:
            self._again(text, spec, known)
            return key
        if spec.target_hive not in self._peers:
            self._strange(text, spec.target_hive or "")
            return None
        self._take(text, spec, key, fresh)
        return key

    def show(self, lines: Iterable[str]) -> None:
        """Forget what the hive does not show any more; what was not queued by then is missed, and said."""
        shown = frozenset(lines)
        for text in [text for text in self.held if text not in shown]:
            self._missed(self.held.pop(text).id, "the queue was full for too long")
        for text in [text for text in self._strangers if text not in shown]:
            self._missed(text[:64], f"no peer {self._strangers.pop(text)} is configured")
        self._count_strangers()

    def take_held(self, fresh: list[Record]) -> None:
        """Take what had to wait, in the order of the log, as far as there is room now."""
        full: set[str] = set()
        for text, spec in tuple(self.held.items()):
            target = spec.target_hive or ""
            if target in full or self._full(_line_size(spec, self._local_hive), target) is not None:
                full.add(target)
                continue
            self._enter(text, spec, relay_key(spec, self._local_hive), fresh)
            del self.held[text]
        if not self.held:
            self._events.settled("relay-backpressure", "queue")

    def _again(self, text: str, spec: HostTicketSpec, known: Record) -> None:
        if self._same(text, spec, known):
            self.counters.deduplicated += 1
            return
        self.counters.conflicts += 1
        reason = "same id, key and hives with other content; not relayed"
        self._events.emit("warning", "idempotency-conflict", id=spec.id, reason=reason)

    def _same(self, text: str, spec: HostTicketSpec, known: Record) -> bool:
        """Whether a line asks for what is journaled; a taken-over record has it in another form."""
        if known.request == text.encode("utf-8"):
            return True
        try:
            before = relayed(spec_of(known), local_hive=self._local_hive)
        except ProtocolError:
            return False
        return before.line == relayed(spec, local_hive=self._local_hive).line

    def _take(self, text: str, spec: HostTicketSpec, key: str, fresh: list[Record]) -> None:
        size = _line_size(spec, self._local_hive)
        target = spec.target_hive or ""
        full = self._full(size, target)
        # Whatever waits already for the same peer comes first.
        if full is not None or any(one.target_hive == target for one in self.held.values()):
            self.counters.backpressure += 1
            self.held[text] = spec
            full = full or "earlier tickets wait"
            self._events.once("warning", "relay-backpressure", "queue", full, waiting=len(self.held))
            return
        try:
            self._enter(text, spec, key, fresh)
        except StorageFullError:
            self.held[text] = spec
            raise

    def _enter(self, text: str, spec: HostTicketSpec, key: str, fresh: list[Record]) -> None:
        size = _line_size(spec, self._local_hive)
        sequence = self._store.highest_sequence(RELAY_FAMILY, RELAY_EPOCH) + 1
        try:
            record = self._store.prepare(
                key=key,
                family=RELAY_FAMILY,
                epoch=RELAY_EPOCH,
                sequence=sequence,
                request=text.encode("utf-8"),
            )
        except QuarantinedRecordError as error:
            self._events.once("error", "quarantined", key, str(error))
            return
        self._pending.add(key, size)
        self._open.add(key, size)
        self.counters.queued += 1
        fresh.append(record)

    def _full(self, size: int, target: str) -> str | None:
        """Which bound a ticket of this size would pass, if any."""
        bounds, pending, unended = self._bounds, self._pending, self._open
        for name, there, of_peer, most in (
            ("queue_max_entries", len(pending.by_key) + 1, pending.entries_of, bounds.queue_max_entries),
            ("queue_max_bytes", pending.total + size, pending.bytes_of, bounds.queue_max_bytes),
            ("wal_max_entries", len(unended.by_key) + 1, unended.entries_of, bounds.wal_max_entries),
            ("wal_max_bytes", unended.total + size, unended.bytes_of, bounds.wal_max_bytes),
        ):
            if there + self._kept_for_others(of_peer, most, target) > most:
                return f"{name} is {most}; further tickets stay in the hive's log until there is room"
        return None

    def _kept_for_others(self, of_peer: Mapping[str, int], most: int, target: str) -> int:
        """What of a bound is kept for peers that use less than their share."""
        others = [name for name in self._peers if name != target]
        share = most // (2 * (len(others) + 1))
        return sum(max(0, share - of_peer.get(name, 0)) for name in others)

    def _strange(self, text: str, target: str) -> None:
        self._strangers[text] = target
        self._count_strangers()
        advice = "no such peer is configured; its tickets stay in the hive's log until one is"
        self._events.once("warning", "relay-unknown-peer", target, advice, target_hive=target)

    def _count_strangers(self) -> None:
        self.unknown_peers = {}
        for target in self._strangers.values():
            self.unknown_peers[target] = self.unknown_peers.get(target, 0) + 1

    def _missed(self, name: str, why: str) -> None:
        self.counters.missed += 1
        self._events.emit("error", "relay-missed", id=name, reason=f"dropped by the hive unqueued: {why}")


def _line_size(spec: HostTicketSpec, local_hive: str) -> int:
    return len(relayed(spec, local_hive=local_hive).line) + 1


def _size(record: Record, local_hive: str) -> int:
    try:
        return _line_size(spec_of(record), local_hive)
    except ProtocolError:
        return len(record.request) + 1
