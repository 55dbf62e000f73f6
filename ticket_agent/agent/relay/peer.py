"""One peer as the agent's thread sees it: the breaker, the newest look, what is known of each line sent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from ticket_agent.agent.relay.breaker import Breaker
from ticket_agent.agent.relay.contact import Failed, Look, NotSent, Send, Sent
from ticket_agent.agent.relay.sighting import Sighting, SightingIndex, before_image
from ticket_agent.protocol.chunks import frame_count
from ticket_agent.protocol.namespace import Acked, Refusal, Refused, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.agent.events import EventLog
    from ticket_agent.agent.relay.contact import PeerLink, Reply
    from ticket_agent.journal.outcome import JsonValue

__all__ = ["Delivery", "Peer", "Stage"]

FAST_LOOK_S = 0.1
"""Shortest pause, in seconds, between two looks while results are awaited; a peer's logs are small rings."""

WINDOW_FRAMES = 32
"""Most wire frames of delivered tickets that nobody there has taken up: half of what a log retains."""


class Stage(Enum):
    """What is known of the delivery of one ticket."""

    UNKNOWN = auto()
    """It may have been sent and applied; the peer is read back before anything else."""
    SENDING = auto()
    FREE = auto()
    """It certainly was not applied."""
    ARRIVED = auto()
    LOST_TRACK = auto()
    """Whether it arrived can not be proven any more; it is never sent again."""


@dataclass(slots=True)
class Delivery:
    """Delivery of one ticket, as far as this process knows.

    Attributes:
        looks: number of the newest look when it became so; only a later one tells more.
        since: monotonic seconds at that moment.
        refusal: the peer's definite refusal, if that is why it is free.
        why: in words.
        attempts: how often it was handed over for sending.
        frames: wire frames that its line takes in the peer's log.
        answered: the peer showed a result of it, if only an intermediate one.
        before: what the peer showed when it was handed over last, or when it was found there; a restart of
            the peer shows in comparison with that.
    """

    stage: Stage = Stage.UNKNOWN
    looks: int = 0
    since: float = 0.0
    refusal: Refusal | None = None
    why: str = "the agent ended while it was being sent"
    attempts: int = 0
    frames: int = 0
    answered: bool = False
    before: Mapping[str, JsonValue] | None = None


class Peer:
    """One peer. It is contacted by its link's thread only, one contact at a time."""

    def __init__(self, link: PeerLink, events: EventLog) -> None:
        self.name = link.name
        self.link = link
        self.breaker = Breaker()
        self.index: SightingIndex | None = None
        """The newest look; None when none holds: before the first, and once its session is over."""
        self.deliveries: dict[str, Delivery] = {}
        self.started_looks = 0
        self._events = events
        self._wanted = False
        self._awaited = False
        self._look_due = 0.0
        self._pace_s = FAST_LOOK_S
        self._before: Sighting | None = None

    def delivery(self, key: str, now: float) -> Delivery:
        """What is known of a ticket's delivery; nothing, of one that was dispatched in an earlier life."""
        found = self.deliveries.get(key)
        if found is None:
            found = self.deliveries[key] = Delivery(since=now)
        return found

    def want_look(self) -> None:
        """Look as soon as that may be done."""
        self._wanted = True

    def await_results(self) -> None:
        """Look now and then: something was delivered whose result is awaited."""
        self._awaited = True

    def send(self, key: str, line: str, now: float) -> None:
        """Hand a line over; :meth:`ready` must hold, and the ticket's plan must be durable."""
        if self.index is None:
            raise RuntimeError(f"{self.name} was not looked at")
        delivery = self.delivery(key, now)
        delivery.stage, delivery.attempts = Stage.SENDING, delivery.attempts + 1
        delivery.frames, delivery.before = frame_count(line), before_image(self.index.sighting)
        self.link.start(Send(key=key, line=line, session=self.index.sighting.session))

    def has_room(self, line: str) -> bool:
        """Whether the peer's log bears one more line.

        That log drops its oldest lines when it is full: what nobody there has taken up yet must not be among
        them.
        """
        waiting = [
            found.frames
            for found in self.deliveries.values()
            if found.stage in (Stage.SENDING, Stage.ARRIVED) and not found.answered
        ]
        return not waiting or sum(waiting) + frame_count(line) <= WINDOW_FRAMES

    def ready(self, now: float) -> bool:
        """Whether a line can be handed over now."""
        return self.index is not None and not self.link.busy and self.breaker.allows(now)

    def hindrance(self, now: float) -> str:
        """Why nothing can be handed over now, in words."""
        if not self.breaker.allows(now):
            return f"peer {self.name} ({self.breaker.circuit(now)}): {self.breaker.why}"
        return f"peer {self.name} is busy" if self.link.busy else f"peer {self.name} is looked at first"

    def tend(self, now: float) -> bool:
        """Take a reply if there is one, and look if that is due; True if there is news."""
        reply = self.link.reply() if self.link.busy else None
        if reply is not None:
            self._take(reply, now)
        due = self._wanted or (self._awaited and now >= self._look_due)
        if due and not self.link.busy and self.breaker.allows(now):
            self._wanted = False
            self._awaited = False
            self.started_looks += 1
            self.link.start(Look())
        return reply is not None

    def under_way(self, now: float) -> bool:
        """Whether a contact is being made, or would be made by the next pass."""
        return self.link.busy or (self._wanted and self.breaker.allows(now))

    def pause_s(self, now: float) -> float | None:
        """Seconds until this peer needs the agent's thread again; None if it does not."""
        if self.link.busy:
            return 0.0
        if self._wanted:
            return max(0.0, self.breaker.not_before - now)
        return max(0.0, self._look_due - now, self.breaker.not_before - now) if self._awaited else None

    def _take(self, reply: Reply, now: float) -> None:
        match reply:
            case Sighting():
                self._seen(reply, now)
            case Failed(why):
                self._failed(now, why)
            case NotSent(key, why):
                self.index = None
                self._set(key, Stage.FREE, now, why)
            case Sent(key, Acked()):
                self.breaker = self.breaker.worked()
                self._pace_s, self._look_due = FAST_LOOK_S, now + FAST_LOOK_S
                self._set(key, Stage.ARRIVED, now, "the peer acknowledged it")
            case Sent(key, Refused(refusal)):
                self.breaker = self.breaker.worked()
                self._set(key, Stage.FREE, now, refusal.text, refusal)
            case Sent(key, Unknown(why)):
                self._failed(now, why)
                self._set(key, Stage.UNKNOWN, now, why)

    def _set(self, key: str, stage: Stage, now: float, why: str, refusal: Refusal | None = None) -> None:
        delivery = self.delivery(key, now)
        delivery.stage, delivery.since, delivery.why, delivery.refusal = stage, now, why, refusal
        delivery.looks = self.started_looks

    def _failed(self, now: float, why: str) -> None:
        self.index = None
        self.breaker = self.breaker.failed(now, why)
        self._events.once("warning", "relay-peer-unavailable", self.name, why, peer=self.name)

    def _seen(self, sighting: Sighting, now: float) -> None:
        if self.breaker.failures:
            self._events.settled("relay-peer-unavailable", self.name)
            self._events.emit("info", "relay-peer-answers", peer=self.name)
        self.breaker = self.breaker.worked()
        changed = self._before is None or self._before.logs != sighting.logs
        self._pace_s = FAST_LOOK_S if changed else min(self._pace_s * 1.5, self.link.look_s)
        self._look_due = now + self._pace_s
        self._tell_missed(sighting)
        self._before = sighting
        if changed or self.index is None or self.index.sighting.session != sighting.session:
            self.index = SightingIndex(sighting)
        else:
            self.index.sighting = sighting

    def _tell_missed(self, sighting: Sighting) -> None:
        """Results that came and went between two looks are gone for good; that must not pass unseen.

        Of a log that moved while it was read, what may have been missed counts.
        """
        for name in ("status", "deadletter"):
            then = self._before.logs[name].read_to if self._before is not None else None
            now = sighting.logs[name].read_from
            if then is not None and now is not None and now > then:
                self._events.emit(
                    "error", "relay-results-missed", peer=self.name, log=name, bytes_missed=now - then
                )
