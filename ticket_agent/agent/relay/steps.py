"""Moving one relayed ticket along, by the journal's own decision table.

==================  ========================================================================================
state               what it means for a relayed ticket
==================  ========================================================================================
prepared            taken from the hive's log; the peer was never contacted about it
executing           what the peer showed before is durable; the line may have been sent, or was delivered and
                    its result is awaited
persisted           the peer's terminal result, or the end without delivery, is staged for this hive
published           this hive shows it
==================  ========================================================================================

A line is sent again only after it is certain that it was not applied: it never left, the peer answered it
with ERR, or the peer was read back and proves that it is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ticket_agent.agent.relay.peer import Delivery, Peer, Stage
from ticket_agent.agent.relay.sighting import Arrival, before_image
from ticket_agent.agent.staging import RESULT_STATE, staged_result
from ticket_agent.agent.steps import WAIT_RETRY_S, Moved, Stepper
from ticket_agent.journal.errors import RecordError, StorageFullError
from ticket_agent.journal.outcome import (
    Outcome,
    Plan,
    Rejected,
    Underway,
    Unknown,
    Unobserved,
    bounded_detail,
)
from ticket_agent.journal.record import ProviderResult, StagedResult
from ticket_agent.journal.recovery import Facts, settle_observation
from ticket_agent.protocol.chunks import frame_count
from ticket_agent.protocol.federation import relayed
from ticket_agent.protocol.namespace import RefusalKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.agent.operation import Operation
    from ticket_agent.agent.relay.book import RelayBook
    from ticket_agent.journal.values import OutcomeName
    from ticket_agent.protocol.federation import Relayed
    from ticket_agent.protocol.result import HostTicketResult

__all__ = ["RelayStepper"]

POLL_S = 0.05
AWAIT_S = 1.0
SLOW_RETRY_S = 5.0
NOTED_FAILURES = 2
"""Failed contacts in a row after which it is noted that nobody can tell whether a line arrived."""

DELIVERED = "delivered"
"""Member of the intent of what another program had delivered."""

_FINAL = frozenset({RefusalKind.INVALID_PAYLOAD, RefusalKind.GRAMMAR})
"""Refusals of a line that would be the same for ever."""

_OUTCOMES = {state: outcome for outcome, state in RESULT_STATE.items()}


class RelayStepper(Stepper):
    """Steps of relayed tickets; publication and all that leads there is what every other ticket has."""

    def __init__(self, *, book: RelayBook, peers: Mapping[str, Peer], local_hive: str, **parts: Any) -> None:
        super().__init__(**parts)
        self._book = book
        self._peers = peers
        self._local_hive = local_hive

    # -- facts -----------------------------------------------------------------------------------------------

    def _of_earlier_life(self, op: Operation) -> bool:  # noqa: ARG002 - of no life of this hive
        return False

    def _answers(self, op: Operation) -> list[tuple[str, HostTicketResult]]:
        """Results that name other hives answer another relay of the same pair."""
        hives = (self._local_hive, op.spec.target_hive)
        found = super()._answers(op)
        named = [(path, one) for path, one in found if (one.source_hive, one.target_hive) == hives]
        unnamed = [(path, one) for path, one in found if one.source_hive is None and one.target_hive is None]
        return [*named, *(unnamed if self._only_one(op) else [])]

    def _only_one(self, op: Operation) -> bool:
        """Whether no other operation has this pair of id and key: then a result without hives is its own."""
        pair = op.spec.journal_key
        return f"v1/{pair}" not in self._store.records and not self._book.relayed_elsewhere(op.spec)

    def _going(self, op: Operation) -> Relayed:
        peer = self._peers.get(op.spec.target_hive or "")
        limit = self._config.max_line_bytes if peer is None else peer.link.max_line_bytes
        return relayed(op.spec, local_hive=self._local_hive, max_line_bytes=limit)

    # -- prepared --------------------------------------------------------------------------------------------

    def _dispatch(self, op: Operation, facts: Facts) -> Moved:  # noqa: ARG002 - the table's signature
        if not self._book.enabled or not self._config.dispatches:
            return self._wait(op, "not relayed: this agent does not relay", WAIT_RETRY_S)
        if not op.may_dispatch:
            return self._wait(op, "an earlier ticket for its hive is not delivered yet", WAIT_RETRY_S)
        going = self._going(op)
        if going.problem is not None:
            return self._refuse(op, "rejected", f"not relayed: {going.problem}")
        peer = self._peers.get(op.spec.target_hive or "")
        if peer is None:
            return self._wait(op, f"no peer {op.spec.target_hive} is configured", SLOW_RETRY_S)
        now = self._monotonic()
        if not peer.has_room(going.line):
            peer.await_results()
            why = f"nobody at {peer.name} has taken up what was delivered; more would push it out of its log"
            return self._wait(op, why, WAIT_RETRY_S)
        if not peer.ready(now) or peer.index is None:
            if peer.index is None:
                peer.want_look()
            return self._wait(op, peer.hindrance(now), POLL_S)
        return self._hand_over(op, peer, going, now)

    def _hand_over(self, op: Operation, peer: Peer, going: Relayed, now: float) -> Moved:
        index = peer.index
        if index is None:
            return self._wait(op, peer.hindrance(now), POLL_S)
        plan = Plan(
            before=before_image(index.sighting),
            intent={"peer": peer.name, "path": peer.link.paths.spec, "line": going.line},
        )
        try:
            record = self._store.dispatch(op.record.key, plan)
        except StorageFullError as error:
            return self._wait(op, str(error), WAIT_RETRY_S)
        except RecordError as error:
            return self._refuse(op, "rejected", f"the plan cannot be journaled: {error}")
        moved = self._on(op, record, "")
        if index.shows(going.spec):
            self._arrived(op, peer, now, "the peer showed it before it was sent from here")
        else:
            peer.send(record.key, going.line, now)
        return moved

    # -- executing -------------------------------------------------------------------------------------------

    def _settle_by_observation(self, op: Operation, facts: Facts) -> Moved:
        peer = self._peers.get(op.spec.target_hive or "")
        if peer is None or not self._book.enabled:
            why = (
                f"no peer {op.spec.target_hive} is configured"
                if peer is None
                else "this agent does not relay"
            )
            return self._untold(op, f"{why}: whether the ticket arrived is not looked for")
        now = self._monotonic()
        going, delivery = self._going(op), peer.delivery(op.record.key, now)
        found = peer.index.result_of(going.spec) if peer.index is not None else None
        if found is not None:
            return self._return(op, peer, found)
        outcome = self._peer_says(op, peer, going, delivery)
        match outcome:
            case Underway():
                if delivery.stage in (Stage.ARRIVED, Stage.FREE) and op.record.outcome_unknown:
                    op.record = self._store.note_known(op.record.key)
                return self._wait(op, outcome.detail, outcome.poll_s)
            case Unobserved():
                return self._untold(op, outcome.detail)
        if isinstance(outcome, Unknown) and facts.expired and delivery.stage is Stage.FREE:
            return self._refuse_unsent(op, "stale", "expired before the peer took it; nothing was done")
        result = settle_observation(outcome, facts)
        if result is None:
            return self._untold(op, outcome.detail)
        return self._on(
            op, self._store.settle(op.record.key, result, self._stage(op, result)), result.message
        )

    def _peer_says(self, op: Operation, peer: Peer, going: Relayed, delivery: Delivery) -> Outcome:
        now = self._monotonic()
        match delivery.stage:
            case Stage.SENDING:
                return Underway(f"it is being sent to {peer.name}", poll_s=POLL_S)
            case Stage.ARRIVED:
                return self._awaited(op, peer, going, delivery, now)
            case Stage.FREE:
                return self._again(op, peer, going, delivery, now)
            case Stage.LOST_TRACK:
                peer.await_results()
                return Unknown(f"whether {peer.name} took it cannot be told: {delivery.why}")
            case Stage.UNKNOWN:
                return self._read_back(op, peer, going, delivery, now)

    def _awaited(self, op: Operation, peer: Peer, going: Relayed, delivery: Delivery, now: float) -> Outcome:
        self._arrived(op, peer, now, delivery.why)
        index, before = peer.index, delivery.before
        delivery.answered = delivery.answered or (index is not None and index.answered(going.spec))
        if index is None or before is None or index.sighting.number <= delivery.looks:
            lost = False
        else:
            lost = index.restarted(before) and not index.shows(going.spec)
        if lost:
            return Unknown(f"{peer.name} took it and restarted since; its result may be lost")
        return Underway(f"delivered to {peer.name}; its result is awaited", poll_s=AWAIT_S)

    def _again(self, op: Operation, peer: Peer, going: Relayed, delivery: Delivery, now: float) -> Outcome:
        """It certainly was not applied: refused for good, or sent once more as soon as that can be done."""
        refusal = delivery.refusal
        if refusal is not None and refusal.kind in _FINAL:
            return Rejected(f"{peer.name} refuses it: {refusal.text}")
        expires = op.spec.expires_unix_ms
        if expires is not None and self._clock() >= expires:
            return Unknown("expired before the peer took it")
        if going.problem is not None:
            return Rejected(f"not relayed: {going.problem}")
        pause_s = min(0.1 * 2.0 ** min(delivery.attempts, 8), SLOW_RETRY_S) if refusal is not None else 0.0
        if now < delivery.since + pause_s or not peer.ready(now):
            if peer.index is None:
                peer.want_look()
            why = f"{peer.name}: {delivery.why}" if refusal is not None else peer.hindrance(now)
            return Underway(f"not delivered yet: {why}", poll_s=POLL_S)
        if peer.index is not None and peer.index.shows(going.spec):
            self._arrived(op, peer, now, "the peer shows it")
            return self._awaited(op, peer, going, delivery, now)
        self._book.counters.resent += 1
        self._events.emit("info", "relay-resent", key=op.record.key, peer=peer.name, detail=delivery.why)
        peer.send(op.record.key, going.line, now)
        return Underway(f"it is being sent to {peer.name}", poll_s=POLL_S)

    def _read_back(
        self, op: Operation, peer: Peer, going: Relayed, delivery: Delivery, now: float
    ) -> Outcome:
        """Whether it was applied is not known: only a look that began later can tell."""
        plan = op.record.plan
        if plan is not None and plan.intent.get(DELIVERED) is True:
            self._arrived(op, peer, now, "the former agent had delivered it")
            return self._awaited(op, peer, going, delivery, now)
        index = peer.index
        if index is None or index.sighting.number <= delivery.looks:
            peer.want_look()
            if peer.breaker.failures >= NOTED_FAILURES:
                return Unobserved(f"{peer.name} cannot be read; whether it took the ticket is not known")
            return Underway(f"{peer.name} is read back first: {delivery.why}", poll_s=POLL_S)
        arrival, why = index.arrival(going.spec, plan.before if plan is not None else {})
        if arrival is Arrival.ARRIVED:
            self._arrived(op, peer, now, why)
            return self._awaited(op, peer, going, delivery, now)
        if arrival is Arrival.UNPROVEN:
            delivery.stage, delivery.why = Stage.LOST_TRACK, why
            self._free_lane(op)
            return Unknown(f"whether {peer.name} took it cannot be told: {why}")
        if now < delivery.since + peer.link.settle_s:
            peer.await_results()
            return Underway(f"{peer.name}'s gateway may still hold it: {delivery.why}", poll_s=AWAIT_S)
        delivery.stage, delivery.why, delivery.refusal = Stage.FREE, why, None
        return self._again(op, peer, going, delivery, now)

    def _arrived(self, op: Operation, peer: Peer, now: float, why: str) -> None:
        delivery = peer.delivery(op.record.key, now)
        if not op.frees_lane:
            self._book.counters.delivered += 1
            self._events.emit("info", "relay-delivered", key=op.record.key, peer=peer.name, detail=why)
        delivery.stage, delivery.why = Stage.ARRIVED, why
        line = op.record.plan.intent.get("line") if op.record.plan is not None else None
        delivery.frames = frame_count(line) if isinstance(line, str) else 0
        if delivery.before is None and peer.index is not None:
            delivery.before = before_image(peer.index.sighting)
        self._free_lane(op)
        peer.await_results()

    def _free_lane(self, op: Operation) -> None:
        op.frees_lane = True
        self._book.delivered(op.record.key)

    # -- ends ------------------------------------------------------------------------------------------------

    def _return(self, op: Operation, peer: Peer, found: HostTicketResult) -> Moved:
        """The peer ended it: its result is staged for this hive, before anything of it is published."""
        result = ProviderResult(
            outcome=cast("OutcomeName", _OUTCOMES[found.state]),
            message=bounded_detail(found.message or f"{peer.name} says {found.state}"),
            reconciled=True,
            evidence={"peer": peer.name, "result": found.encode().decode("utf-8")},
        )
        self._book.counters.returned += 1
        return self._on(
            op, self._store.settle(op.record.key, result, self._stage(op, result)), result.message
        )

    def _refuse_unsent(self, op: Operation, outcome: OutcomeName, message: str) -> Moved:
        result = ProviderResult(outcome=outcome, message=message, reconciled=True)
        return self._on(op, self._store.settle(op.record.key, result, self._stage(op, result)), message)

    def _untold(self, op: Operation, why: str) -> Moved:
        """Note that nobody can tell; only the text of a note that says something else is written again."""
        noted = op.record.uncertain
        if noted is None or noted.detail != bounded_detail(why):
            op.record = self._store.note_uncertain(op.record.key, why)
            self._events.once("warning", "uncertain", op.record.key, why, key=op.record.key)
        return self._wait(op, why, WAIT_RETRY_S)

    def _stage(self, op: Operation, result: ProviderResult) -> StagedResult:
        config = self._config
        return staged_result(
            self._going(op).spec, result, paths=config.paths, max_line_bytes=config.max_line_bytes
        )
