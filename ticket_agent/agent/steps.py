"""Moving one operation along, one durable step at a time, by the journal's own decision table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ticket_agent.agent.keys import V2_FAMILY, base_of
from ticket_agent.agent.lookup import related
from ticket_agent.agent.readiness import Readiness, prove_ready, read_current
from ticket_agent.agent.staging import RESULT_STATE, result_line, staged_result, stream_path
from ticket_agent.journal.errors import JournalPoisonedError, RecordError, StorageFullError
from ticket_agent.journal.outcome import (
    Outcome,
    Plan,
    PlanRefusedError,
    PlanWaitsError,
    Underway,
    Unknown,
    bounded_detail,
)
from ticket_agent.journal.record import ProviderResult, StagedResult
from ticket_agent.journal.recovery import (
    Admission,
    Decision,
    Facts,
    Visible,
    decide,
    settle_observation,
    settled,
)
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.lifecycle import parse_lifecycle_state, publishing_allowed
from ticket_agent.protocol.namespace import HiveError, HiveRefusedError, Namespace, RefusalKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.agent.events import EventLog
    from ticket_agent.agent.feed import Feed
    from ticket_agent.agent.operation import Operation
    from ticket_agent.agent.streams import ResultStreams
    from ticket_agent.journal.record import Record
    from ticket_agent.journal.store import JournalStore
    from ticket_agent.protocol.paths import TicketPaths
    from ticket_agent.protocol.result import HostTicketResult

__all__ = ["Moved", "StepConfig", "Stepper"]

PUBLISH_RETRY_S = 5.0
ORDER_RETRY_S = 0.2
WAIT_RETRY_S = 1.0


_PASSING = frozenset({RefusalKind.BUSY, RefusalKind.DENIED, RefusalKind.BUFFER_FULL})
"""Refusals of a result that end by themselves."""

_NEEDS_LOOK = frozenset({Decision.DISPATCH, Decision.OBSERVE, Decision.PUBLISH})
"""Decisions that a reboot of the hive would change; it shows in the admission log first."""


class Moved(StrEnum):
    """What one step did."""

    ON = "on"
    WAITS = "waits"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """Bounds and places that every step needs.

    Attributes:
        paths: nodes of the hive's tickets.
        max_line_bytes: longest result line of the hive.
        shard_bits: how many bits of the Worker id's digest form the shard label.
        lifecycle_path: node that tells whether results can be written now.
        dispatches: False in a replay: a prepared operation can end without dispatch, but never begins.
    """

    paths: TicketPaths
    max_line_bytes: int
    shard_bits: int
    lifecycle_path: str
    dispatches: bool = True


class Stepper:
    """Applies :func:`ticket_agent.journal.recovery.decide` to one operation at a time.

    Invariants:
        1. ``execute`` is called once per operation, in the same step that made ``executing`` durable, with no
           other command to the hive in between.
        2. From ``executing`` only ``observe`` runs.
        3. A result line is durable before it is published, and published only from the record.
    """

    def __init__(
        self,
        *,
        store: JournalStore,
        namespace: Namespace,
        feed: Feed,
        streams: ResultStreams,
        events: EventLog,
        config: StepConfig,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        current_epoch: Callable[[], int],
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._feed = feed
        self._streams = streams
        self._events = events
        self._config = config
        self._clock = clock
        self._monotonic = monotonic
        self._current_epoch = current_epoch
        self._table: Mapping[Decision, Callable[[Operation, Facts], Moved]] = {
            Decision.DISPATCH: self._dispatch,
            Decision.OBSERVE: self._settle_by_observation,
            Decision.ADOPT: self._adopt,
            Decision.EXPIRE: self._expire,
            Decision.FORGET: self._end_forgotten,
            Decision.PUBLISH: self._publish,
            Decision.CONFIRM_PUBLISHED: self._confirm_published,
            Decision.WITHDRAW: self._withdraw,
            Decision.FINISH: self._finish,
            Decision.NOTHING: lambda op, facts: Moved.ENDED,  # noqa: ARG005 - the table's signature
        }

    def step(self, op: Operation) -> Moved:
        """Do the next thing for ``op``; its record is replaced as it moves.

        Raises:
            HiveError: the hive cannot be reached or broke the protocol; nothing was decided.
            JournalPoisonedError: a write to the journal failed; the process must end.
        """
        self._streams.refresh()
        facts = self._facts(op)
        decision = decide(op.record, facts)
        if decision in _NEEDS_LOOK and not self._looked():
            return self._look_first(op)
        return self._table[decision](op, facts)

    def _looked(self) -> bool:
        """Whether the admission log was read in this session; only then is the hive's epoch known."""
        return self._feed.session == self._namespace.session

    def _look_first(self, op: Operation) -> Moved:
        moved = self._wait(op, "the session is new; the admission log is read first", WAIT_RETRY_S)
        op.retry_at = 0.0
        return moved

    # -- facts -----------------------------------------------------------------------------------------------

    def _facts(self, op: Operation) -> Facts:
        return Facts(
            now_unix_ms=self._clock(),
            expires_unix_ms=op.spec.expires_unix_ms,
            visible=self._visible(op),
            admission=self._admission(op),
        )

    def _visible(self, op: Operation) -> Visible:
        seen = Visible.NONE
        if self._of_earlier_life(op):
            # The same ticket can be admitted again under the same number: what is visible is that one's.
            return seen
        staged = op.record.staged
        for path, result in self._answers(op):
            if staged is not None and path == staged.path and result.encode() == staged.line.encode("utf-8"):
                return Visible.EXACT
            seen = Visible.OTHER
        return seen

    def _answers(self, op: Operation) -> list[tuple[str, HostTicketResult]]:
        """Terminal results of this very ticket that the hive shows, oldest first."""
        return [found for found in self._streams.terminal(op.spec.key) if found[1].echoes(op.spec)]

    def _admission(self, op: Operation) -> Admission:
        """Whether root still knows this admission; after a proven reboot it knows none of the earlier."""
        if self._of_earlier_life(op):
            self._forget(
                op, f"root rebooted and forgot this admission (hive epoch {op.record.epoch} is over)"
            )
        return op.admission

    def _of_earlier_life(self, op: Operation) -> bool:
        return op.record.epoch != self._current_epoch()

    def _ask_current(self, op: Operation) -> None:
        current = read_current(self._namespace, op.spec)
        if current is None or current.admission != op.spec.admission_sequence:
            self._forget(op, "root no longer knows this admission")
        elif current.state != "pending":
            # It acknowledges the very line it holds, so what it refuses is another one.
            self._forget(op, f"root already holds this admission as {current.state}")

    @staticmethod
    def _forget(op: Operation, why: str) -> None:
        op.admission, op.forgotten_why = Admission.FORGOTTEN, why

    # -- prepared --------------------------------------------------------------------------------------------

    def _dispatch(self, op: Operation, facts: Facts) -> Moved:
        hindered = self._hindered(op)
        if hindered is not None:
            return hindered
        plan = self._plan(op)
        if isinstance(plan, Moved):
            return plan
        unaudited = self._audit(op)
        if unaudited is not None:
            return unaudited
        if facts.expires_unix_ms is not None and self._clock() >= facts.expires_unix_ms:
            return Moved.ON
        if not self._looked():
            return self._look_first(op)
        return self._execute(op, plan)

    def _hindered(self, op: Operation) -> Moved | None:
        """Whatever keeps an operation from being planned; None when nothing does."""
        if not op.may_dispatch:
            return self._wait(op, op.waiting or "an earlier operation of its lane is undecided", WAIT_RETRY_S)
        earlier = self._dispatched_before(op)
        if earlier is not None:
            return self._refuse(op, "rejected", earlier)
        gate = self._gate_refusal()
        if gate is not None:
            return self._wait(op, gate, WAIT_RETRY_S)
        unready = self._prove_ready(op) if op.record.family == V2_FAMILY else None
        if unready is None and not self._config.dispatches:
            return self._wait(op, "not begun: a replay dispatches nothing", WAIT_RETRY_S)
        return unready

    def _plan(self, op: Operation) -> Plan | Moved:
        try:
            return op.provider.plan(op.spec)
        except PlanRefusedError as error:
            return self._refuse(op, "rejected", str(error))
        except PlanWaitsError as error:
            return self._wait(op, str(error), WAIT_RETRY_S)
        except (HiveError, ProtocolError):
            raise
        except Exception as error:  # noqa: BLE001 - planning only reads; a faulty provider stops its tickets only
            return self._wait(op, f"{type(error).__name__} while planning: {error}", WAIT_RETRY_S)

    def _execute(self, op: Operation, plan: Plan) -> Moved:
        try:
            record = self._store.dispatch(op.record.key, plan)
        except StorageFullError as error:
            return self._wait(op, str(error), WAIT_RETRY_S)
        except RecordError as error:
            return self._refuse(op, "rejected", f"the plan cannot be journaled: {error}")
        self._on(op, record, "")
        try:
            outcome: Outcome = op.provider.execute(plan)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the effect may have happened
            outcome = Unknown(f"{type(error).__name__} while executing: {error}")
        self._events.emit(
            "debug", "executed", key=record.key, outcome=type(outcome).__name__, detail=outcome.detail
        )
        result = settled(outcome, reconciled=False)
        if result is None:
            op.followed = isinstance(outcome, Underway)
            return Moved.ON
        return self._on(
            op, self._store.settle(op.record.key, result, self._stage(op, result)), result.message
        )

    def _dispatched_before(self, op: Operation) -> str | None:
        """A pair that was dispatched under an earlier admission is never dispatched again."""
        _, reused = base_of(op.record.key)
        if not reused:
            return None
        for record in related(self._store.records, op.record.key):
            # A confirmed result without a plan was adopted: a journal that is gone had dispatched it.
            confirmed = record.result is not None and record.result.outcome == "confirmed"
            if record.plan is not None or confirmed:
                return (
                    f"id and idempotency key were already used by admission {record.sequence} "
                    f"of hive epoch {record.epoch}; use a new key"
                )
        return None

    def _gate_refusal(self) -> str | None:
        """Look before claiming: a lease can be granted while its result cannot be written."""
        try:
            lines = self._namespace.read(self._config.lifecycle_path)
        except HiveRefusedError as error:
            return None if error.absent else f"the lifecycle cannot be read: {error.refusal.text}"
        state = parse_lifecycle_state(lines[0] if lines else "")
        return None if publishing_allowed(state) else f"the hive is {state}; results cannot be written now"

    def _prove_ready(self, op: Operation) -> Moved | None:
        proof = prove_ready(
            self._namespace,
            op.spec,
            ask_current=self._feed.features().current,
            shard_bits=self._config.shard_bits,
        )
        match proof.readiness:
            case Readiness.READY:
                return None
            case Readiness.NOT_YET:
                return self._wait(op, proof.detail, WAIT_RETRY_S)
            case Readiness.WORKER_GONE:
                return self._refuse(op, "rejected", proof.detail)
            case Readiness.ALREADY_DECIDED:
                self._streams.refresh(force=True)
                if self._visible(op) is Visible.NONE:
                    self._forget(op, proof.detail)
                return Moved.ON
            case Readiness.FORGOTTEN:
                self._forget(op, proof.detail)
                return Moved.ON

    def _audit(self, op: Operation) -> Moved | None:
        """Write `claimed` and `running`; a hive that does not take them would not take the result either."""
        for state, message in (("claimed", "claimed by ticket-agent"), ("running", "about to execute")):
            if state in op.audited:
                continue
            line = self._result_line(op, state, message)
            publication = self._streams.publish(stream_path(self._config.paths, state), line)
            if not publication.visible:
                return self._wait(op, f"`{state}` is not written yet: {publication.why}", WAIT_RETRY_S)
            op.audited.add(state)
        return None

    # -- outcomes --------------------------------------------------------------------------------------------

    def _observe(self, op: Operation) -> Outcome:
        plan = op.record.plan
        if plan is None:
            return Unknown("the record holds no plan to observe")
        try:
            return op.provider.observe(plan)
        except JournalPoisonedError:
            # A provider with a journal of its own: what it wrote last is not known, so this process must end.
            raise
        except Exception as error:  # noqa: BLE001 - an error while observing leaves the outcome unknown
            return Unknown(f"{type(error).__name__} while observing: {error}")

    def _settle_by_observation(self, op: Operation, facts: Facts) -> Moved:
        outcome = self._observe(op)
        if not self._looked():
            return self._look_first(op)
        result = settle_observation(outcome, facts, followed=op.followed)
        if result is not None:
            return self._on(
                op, self._store.settle(op.record.key, result, self._stage(op, result)), result.message
            )
        if isinstance(outcome, Underway):
            return self._wait(op, outcome.detail, outcome.poll_s)
        op.followed = False
        noted = op.record.uncertain
        if noted is None or noted.detail != outcome.detail:
            op.record = self._store.note_uncertain(op.record.key, outcome.detail)
            self._events.once("warning", "uncertain", op.record.key, outcome.detail, key=op.record.key)
        return self._wait(op, outcome.detail, WAIT_RETRY_S)

    def _refuse(self, op: Operation, outcome: str, message: str) -> Moved:
        result = ProviderResult(
            outcome=outcome,  # type: ignore[arg-type]
            message=bounded_detail(message),
            reconciled=False,
            evidence={},
        )
        return self._on(
            op, self._store.refuse(op.record.key, result, self._stage(op, result)), result.message
        )

    def _expire(self, op: Operation, facts: Facts) -> Moved:  # noqa: ARG002 - the table's signature
        return self._refuse(op, "stale", "ticket expired before dispatch; nothing was done")

    def _end_forgotten(self, op: Operation, facts: Facts) -> Moved:  # noqa: ARG002 - the table's signature
        return self._refuse(op, "stale", f"{op.forgotten_why}; nothing was done")

    def _adopt(self, op: Operation, facts: Facts) -> Moved:  # noqa: ARG002 - the table's signature
        """Root already shows a terminal result of this very admission: take it over, execute nothing."""
        path, visible = self._answers(op)[0]
        outcome = next((name for name, state in RESULT_STATE.items() if state == visible.state), "rejected")
        result = ProviderResult(
            outcome=outcome,  # type: ignore[arg-type]
            message=bounded_detail(visible.message or "root already shows this result"),
            reconciled=True,
            evidence={"adopted": "a terminal result of this admission was already visible"},
        )
        staged = StagedResult(path=path, line=visible.encode().decode("utf-8"))
        return self._on(op, self._store.adopt(op.record.key, result, staged), "adopted the visible result")

    def _stage(self, op: Operation, result: ProviderResult) -> StagedResult:
        config = self._config
        return staged_result(op.spec, result, paths=config.paths, max_line_bytes=config.max_line_bytes)

    def _result_line(self, op: Operation, state: str, message: str) -> str:
        return result_line(op.spec, state, message, max_line_bytes=self._config.max_line_bytes)

    # -- publication -----------------------------------------------------------------------------------------

    def _publish(self, op: Operation, facts: Facts) -> Moved:  # noqa: ARG002 - the table's signature
        if not op.may_publish:
            return self._wait(op, "an earlier result of its Worker is not published yet", ORDER_RETRY_S)
        staged = op.record.staged
        if staged is None:
            return self._wait(op, "no result is staged", PUBLISH_RETRY_S)
        publication = self._streams.publish(staged.path, staged.line)
        if publication.visible:
            return self._on(op, self._store.publish(op.record.key), publication.why)
        refusal = publication.refusal
        if refusal is not None and refusal.kind is RefusalKind.INVALID_PAYLOAD:
            return self._refused_for_good(op, refusal.text)
        longest_s = WAIT_RETRY_S if refusal is None or refusal.kind in _PASSING else PUBLISH_RETRY_S
        return self._wait(op, f"the result is not published yet: {publication.why}", longest_s)

    def _refused_for_good(self, op: Operation, text: str) -> Moved:
        """Root does not take the line: is it there already, or did root forget the admission?"""
        self._streams.refresh(force=True)
        if self._visible(op) is not Visible.NONE:
            return Moved.ON
        if op.record.family != V2_FAMILY:
            return self._wait(op, f"root refuses the result: {text}", PUBLISH_RETRY_S)
        if not self._feed.features().current:
            self._forget(op, f"root refuses the result: {text}")
            return Moved.ON
        self._ask_current(op)
        if op.admission is Admission.FORGOTTEN:
            return Moved.ON
        return self._wait(op, f"root refuses the result: {text}", PUBLISH_RETRY_S)

    def _confirm_published(self, op: Operation, facts: Facts) -> Moved:  # noqa: ARG002 - the table's signature
        return self._on(op, self._store.publish(op.record.key), "read back from the stream")

    def _finish(self, op: Operation, facts: Facts) -> Moved:  # noqa: ARG002 - the table's signature
        return self._on(op, self._store.finish(op.record.key), "")

    def _withdraw(self, op: Operation, facts: Facts) -> Moved:  # noqa: ARG002 - the table's signature
        reason = self._withdrawal(op)
        return self._on(op, self._store.withdraw(op.record.key, reason), reason)

    def _withdrawal(self, op: Operation) -> str:
        if self._visible(op) is Visible.OTHER:
            return "root already shows a different terminal result of this admission"
        return op.forgotten_why or "root can no longer take this result"

    # -- bookkeeping -----------------------------------------------------------------------------------------

    def _on(self, op: Operation, record: Record, detail: str) -> Moved:
        before = op.record.state
        op.moved(record)
        self._events.emit(
            "info",
            "transition",
            key=record.key,
            sequence=record.sequence,
            action=op.spec.action,
            subject=op.spec.subject_ref,
            before=before.value,
            state=record.state.value,
            outcome=record.result.outcome if record.result is not None else None,
            detail=detail or None,
        )
        return Moved.ENDED if record.state is State.TERMINAL else Moved.ON

    def _wait(self, op: Operation, why: str, longest_s: float) -> Moved:
        op.wait(why, now=self._monotonic(), longest_s=longest_s)
        self._events.once("info", "waiting", op.record.key, why, key=op.record.key)
        return Moved.WAITS
