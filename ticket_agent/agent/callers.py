"""Callers' own lines: version-1 tickets become records as they are seen; nothing else there is executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.agent.keys import V1_FAMILY, base_key
from ticket_agent.agent.lookup import known_admission
from ticket_agent.journal.errors import QuarantinedRecordError
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from ticket_agent.agent.blocked import BlockedAdmissions
    from ticket_agent.agent.events import EventLog
    from ticket_agent.agent.predecessor import Predecessor
    from ticket_agent.agent.relay.book import RelayBook
    from ticket_agent.journal.record import Record
    from ticket_agent.journal.store import JournalStore
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["CallerIntake", "Counters"]


@dataclass(slots=True)
class Counters:
    """What was seen and not executed, since the process started."""

    malformed_callers: int = 0
    other_hive: int = 0
    conflicts: int = 0
    stray_v1: int = 0
    evicted_unseen_bytes: int = 0
    """Of the callers' log; what root admitted stands in its own log, but a version-1 ticket may be lost."""


class CallerIntake:
    """Takes version-1 tickets from the callers' log; a malformed line stops nobody."""

    def __init__(
        self,
        store: JournalStore,
        events: EventLog,
        *,
        local_hive: str,
        max_line_bytes: int,
        blocked: BlockedAdmissions,
        former: Predecessor,
        relay: RelayBook,
    ) -> None:
        self._store = store
        self._events = events
        self._local_hive = local_hive
        self._max_line_bytes = max_line_bytes
        self._blocked = blocked
        self._former = former
        self._relay = relay
        self._epoch = 1
        self._lines: dict[str, str | None] = {}
        self.newest: str | None = None
        """The newest line that became a record in this life of the hive, if any."""
        self.counters = Counters()

    @property
    def visible(self) -> set[str]:
        """Keys of version-1 tickets that the hive still shows."""
        return {key for key in self._lines.values() if key is not None}

    def start_epoch(self, epoch: int) -> None:
        """Go on in a life of the hive, of which there may be records."""
        self._epoch = epoch
        self._lines = {}
        newest = self._store.newest(V1_FAMILY, epoch)
        self.newest = newest.request.decode("utf-8") if newest is not None else None

    def take(self, lines: tuple[str, ...], fresh: list[Record]) -> None:
        """Look at the log; new records that have something left to do are added to ``fresh``."""
        self._lines = {text: self._lines[text] for text in lines if text in self._lines}
        unmet = self._former.callers_unmet(self._epoch)
        passed = self._former.passed_callers(lines) if unmet else None
        for text in lines:
            if text not in self._lines:
                self._lines[text] = self._take_line(text, fresh, passed)
        self._relay.show(lines)
        if unmet:
            self._former.callers_met()

    def _take_line(self, text: str, fresh: list[Record], passed: frozenset[str] | None) -> str | None:
        """Look at one line; returns the key of its record if it is a version-1 ticket of ours.

        ``passed`` holds what the former agent had passed, in the first look after a takeover only.
        """
        if not text.strip():
            return None
        try:
            spec = parse_spec(text.encode("utf-8"), source="raw", max_line_bytes=self._max_line_bytes)
        except ProtocolError as error:
            self.counters.malformed_callers += 1
            self._events.emit("warning", "caller-line-skipped", reason=str(error))
            return None
        if spec.version != 1:
            # A caller's version-2 line is a request to root; only root's own copy of it is executed.
            return None
        if spec.target_hive is not None and spec.target_hive != self._local_hive:
            self.counters.other_hive += 1
            if passed is not None and text in passed:
                return self._passed_on(text, spec)
            return self._relay.offer(text, spec, fresh)
        try:
            return self._take_ticket(text, spec, fresh, passed)
        except QuarantinedRecordError as error:
            self._events.once("error", "quarantined", base_key(spec), str(error))
            self._blocked.learn([spec], family=V1_FAMILY, epoch=self._epoch)
            return None

    def _passed_on(self, text: str, spec: HostTicketSpec) -> str | None:
        """A ticket for another hive that the former agent had passed: whether it had relayed it is not known.

        What its relay queue held is in the journal already; any other one is never relayed from here.
        """
        place = self._relay.place_of(spec)
        if place is None or place.key in self._store.records:
            return place.key if place is not None else None
        self._former.enter_passed(
            spec,
            key=place.key,
            sequence=place.sequence,
            request=text.encode("utf-8"),
            place=(place.family, place.epoch),
        )
        reason = "the former agent had passed it; whether it was relayed is not known, so it is not relayed"
        self._events.emit("warning", "relay-passed", id=spec.id, target_hive=spec.target_hive, reason=reason)
        return place.key

    def _take_ticket(
        self, text: str, spec: HostTicketSpec, fresh: list[Record], passed: frozenset[str] | None
    ) -> str:
        key, known = known_admission(self._store.records, base_key(spec), epoch=self._epoch, sequence=None)
        if known is None:
            self._enter(text, spec, key, fresh, passed)
        elif known.request != text.encode("utf-8"):
            self.counters.conflicts += 1
            reason = "same id and key with other content; not executed"
            self._events.emit("warning", "idempotency-conflict", id=spec.id, reason=reason)
        return key

    def _enter(
        self, text: str, spec: HostTicketSpec, key: str, fresh: list[Record], passed: frozenset[str] | None
    ) -> None:
        ordinal = self._store.highest_sequence(V1_FAMILY, self._epoch) + 1
        request = text.encode("utf-8")
        if passed is not None and text in passed:
            self._former.enter_passed(spec, key=key, sequence=ordinal, request=request)
        elif passed is not None and self._former.begun(spec):
            fresh.append(self._former.enter_begun(spec, key=key, sequence=ordinal, request=request))
        else:
            fresh.append(
                self._store.prepare(
                    key=key, family=V1_FAMILY, epoch=self._epoch, sequence=ordinal, request=request
                )
            )
        self.newest = text
