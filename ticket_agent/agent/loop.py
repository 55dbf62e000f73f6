"""The daemon's one thread: look at the hive, move every operation as far as it goes, pause, again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ticket_agent.agent.authority import prove_authority
from ticket_agent.agent.cadence import Cadence
from ticket_agent.agent.feed import Feed
from ticket_agent.agent.gate import LifecycleGate
from ticket_agent.agent.intake import Intake
from ticket_agent.agent.keys import RELAY_FAMILY, V2_FAMILY
from ticket_agent.agent.lanes import Lanes, lapsed
from ticket_agent.agent.operation import (
    UNPUBLISHED,
    Operation,
    in_order,
    open_operation,
    spec_of,
)
from ticket_agent.agent.predecessor import Predecessor
from ticket_agent.agent.relay.relay import Relay
from ticket_agent.agent.steps import Moved, StepConfig, Stepper
from ticket_agent.agent.streams import ResultStreams
from ticket_agent.journal.errors import (
    JournalIoError,
    QuarantinedRecordError,
    RecordError,
    StorageFullError,
)
from ticket_agent.journal.gaps import read_acknowledgements
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.namespace import (
    HiveAuthError,
    HiveError,
    HiveRefusedError,
    HiveViolationError,
    Namespace,
)
from ticket_agent.protocol.paths import TicketPaths

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from ticket_agent.agent.events import EventLog
    from ticket_agent.agent.feed import Look
    from ticket_agent.agent.notify import ServiceNotifier
    from ticket_agent.agent.providers import ProviderTable
    from ticket_agent.agent.relay.relay import RelayPlan
    from ticket_agent.config import AgentConfig
    from ticket_agent.journal.record import Record
    from ticket_agent.journal.store import JournalStore
    from ticket_agent.peft.release.phase_machine import Allowed
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["Agent", "PassSummary", "Report", "Totals"]

CURSOR_STRIDE = 32
"""Ended operations between two saves of the cursor while the agent is busy."""

RETIRE_PERIOD_S = 60.0
"""Seconds between two looks for records that may move to the archive."""

FAST_PERIOD_S = 0.5
"""How long after the last activity the stream is looked at in fast cadence."""

MAX_OUTAGE_PAUSE_S = 2.0

MAX_WITNESSES = 64
"""How far back from the newest admission one is looked for that had been dispatched."""

_WAITED_FOR = (
    HiveRefusedError,
    HiveViolationError,
    ProtocolError,
    QuarantinedRecordError,
    RecordError,
    StorageFullError,
)
"""What stops one operation for a while and no other: an odd answer, an odd value, a full disk."""

_CONNECTED = "connected"


@dataclass(slots=True)
class PassSummary:
    """What one pass saw and did."""

    admitted: int = 0
    steps: int = 0
    ended: int = 0
    waiting: int = 0

    @property
    def active(self) -> bool:
        """Whether anything changed."""
        return bool(self.admitted or self.steps)


@dataclass(slots=True)
class Totals:
    """Since the process started."""

    passes: int = 0
    ended: int = 0
    outages: int = 0
    by_outcome: dict[str, int] = field(default_factory=dict)


class Report(Protocol):
    """Shows others how the agent stands; whatever goes wrong with that is its own affair."""

    def write_if_due(self, agent: Agent) -> None:
        """Called after every pass."""

    def write(self, agent: Agent) -> None:
        """Called once more at the end."""


def _wrote_results(record: Record) -> bool:
    """Whether results of this admission are certainly in the hive's logs.

    Our own `claimed` and `running` are there before a plan is durable. Another program may have planned first
    and then died; of what was taken over only a result that was published counts.
    """
    if record.plan is None or not record.plan.taken_over:
        return record.plan is not None
    return any(entry.state is State.PUBLISHED for entry in record.history)


class Agent:
    """One hive, one journal, one thread. No locks: whatever takes long is polled, never awaited.

    Args:
        serves: False for a replay, which brings what is journaled as far as it goes without beginning
            anything: it judges the hive's epoch, observes and publishes, but takes no admission, dispatches
            nothing and moves nothing to the archive.
        relay: what is relayed to other hives; None relays nothing.
    """

    def __init__(
        self,
        *,
        config: AgentConfig,
        store: JournalStore,
        namespace: Namespace,
        providers: ProviderTable,
        events: EventLog,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        serves: bool = True,
        relay: RelayPlan | None = None,
    ) -> None:
        self._config = config
        self._serves = serves
        self._store = store
        self._namespace = namespace
        self._providers = providers
        self._events = events
        self._clock = clock
        self._monotonic = monotonic
        self._paths = TicketPaths(config.mount)
        self._feed = Feed(namespace, self._paths, monotonic=monotonic)
        self.streams = ResultStreams(namespace, self._paths)
        self.gate = LifecycleGate(namespace, events, clock=clock, monotonic=monotonic)
        self.cadence = Cadence(self._feed, events, monotonic=monotonic)
        self.relay = Relay(
            relay, store=store, events=events, local_hive=config.local_hive, monotonic=monotonic
        )
        self.intake = Intake(
            store,
            events,
            local_hive=config.local_hive,
            max_line_bytes=config.max_line_bytes,
            clock=clock,
            refetch=self._refetch,
            acknowledgements=lambda: read_acknowledgements(config.state_dir),
            takes=serves,
            former=Predecessor(store, self.streams, self._paths, max_line_bytes=config.max_line_bytes),
            relay=self.relay.book,
        )
        parts = self._stepper_parts()
        self._stepper, self._relay_stepper = Stepper(**parts), self.relay.stepper(**parts)
        self.operations: dict[str, Operation] = {}
        self.unparsable: dict[str, str] = {}
        """Open records whose request this version cannot parse; they are left alone and reported."""
        self.totals = Totals()
        self.hive_state = "not connected yet"
        self._witnessed = 0
        self._ended_since_save = 0
        self._cursor_dirty = False
        self._last_activity = monotonic()
        self._retire_due = monotonic() + RETIRE_PERIOD_S
        self._idle_s = config.poll.fast_ms / 1000
        self._outage_s = 0.2
        for record in store.open_records():
            self._carry(record)

    def _stepper_parts(self) -> dict[str, Any]:
        return {
            "store": self._store,
            "namespace": self._namespace,
            "feed": self._feed,
            "streams": self.streams,
            "gate": self.gate,
            "events": self._events,
            "config": self._step_config(),
            "clock": self._clock,
            "monotonic": self._monotonic,
            "current_epoch": lambda: self.intake.epoch,
        }

    def _step_config(self) -> StepConfig:
        return StepConfig(
            paths=self._paths,
            max_line_bytes=self._config.max_line_bytes,
            shard_bits=self._config.shard_bits,
            dispatches=self._serves,
        )

    @property
    def connected(self) -> bool:
        """Whether the last round could use the hive."""
        return self.hive_state == _CONNECTED

    # -- one pass --------------------------------------------------------------------------------------------

    def pass_once(self, stop: threading.Event) -> PassSummary:
        """Look once, then move every operation that can move.

        Raises:
            HiveError: the hive cannot be used; what was decided before stays decided.
            JournalPoisonedError: a write to the journal failed; the process must end.
        """
        summary = PassSummary()
        self.totals.passes += 1
        if self.intake.held is not None or self.intake.incomplete:
            self._feed.forget()
        look = self._feed.look()
        self.cadence.looked()
        if look is not None and self.intake.meets_former and not self._read_results():
            self.intake.incomplete = True
        elif look is None:
            self.intake.note_ends(self._feed.retention)
        else:
            # Whatever fails before the look is absorbed: it was not, and the same look must come again.
            self.intake.incomplete = True
            for record in self.intake.absorb(look, forgotten=self._forgotten(look)):
                self._carry(record)
                self._tell_admitted(record)
                summary.admitted += 1
        for record in self.relay.tend(self.operations.values()):
            self._carry(record)
            summary.admitted += 1
        self._drive(summary, stop)
        if self._serves:
            self._maintain(summary)
        self.gate.look_if_due()
        self.hive_state = _CONNECTED
        return summary

    @property
    def session(self) -> int:
        """Number of the present session with the hive, from 1 since the process started; 0 before it."""
        return self._namespace.session

    def authority(self, spec: HostTicketSpec) -> tuple[Allowed, str]:
        """Whether a ticket whose effect goes on still has its authority, and what is known about that."""
        return prove_authority(self._namespace, self._feed, spec, shard_bits=self._config.shard_bits)

    def _read_results(self) -> bool:
        """Read the results in the session of the last look; False if that session is over."""
        self.streams.refresh()
        return self._feed.session == self._namespace.session

    def _forgotten(self, look: Look) -> str | None:
        """Evidence of a reboot that left the same admissions behind: root's results lost what we wrote.

        Before anything is dispatched, `claimed` and `running` are in the status log. A log that dropped
        nothing since the hive booted and does not hold them belongs to another life.
        """
        session = self._namespace.session
        if self._witnessed == session:
            return None
        evidence = self._missing_results(look)
        # Only the first look of a session can tell: the results are read once per session.
        self._witnessed = session
        return evidence

    def _missing_results(self, look: Look) -> str | None:
        results = [look.retention[leaf] for leaf in ("status", "deadletter") if leaf in look.retention]
        record = self._last_dispatched()
        if record is None or any(log.base for log in results):
            return None
        try:
            spec = spec_of(record)
        except ProtocolError:
            return None
        self.streams.refresh()
        if self._feed.session != self._namespace.session or self.streams.shows(spec):
            return None
        return f"nothing was dropped from the result logs, yet ours of admission {record.sequence} are gone"

    def _last_dispatched(self) -> Record | None:
        """The newest admission of this life that was dispatched; tickets behind it may still be waiting."""
        epoch = self.intake.epoch
        through = self._store.highest_sequence(V2_FAMILY, epoch)
        recent = self._store.between(V2_FAMILY, epoch, max(0, through - MAX_WITNESSES), through + 1)
        return next((record for record in reversed(recent) if _wrote_results(record)), None)

    def _carry(self, record: Record) -> None:
        try:
            spec = spec_of(record)
        except ProtocolError as error:
            self.unparsable[record.key] = str(error)
            self._events.emit("error", "unparsable-request", key=record.key, reason=str(error))
            return
        self.operations[record.key] = open_operation(record, spec, self._providers.provider_of(record, spec))

    def _tell_admitted(self, record: Record) -> None:
        op = self.operations.get(record.key)
        self._events.emit(
            "info",
            "admitted",
            key=record.key,
            sequence=record.sequence,
            action=op.spec.action if op is not None else None,
            subject=op.spec.subject_ref if op is not None else None,
            state=record.state.value,
        )

    def _drive(self, summary: PassSummary, stop: threading.Event) -> None:
        lanes = Lanes(self.intake.blocked, self._providers)
        unpublished: set[str] = set()
        look_due = self._monotonic() + self.cadence.longest_pause_s
        for op in in_order(self.operations.values()):
            if stop.is_set() or (summary.steps and self._monotonic() >= look_due):
                return
            op.may_dispatch = not lanes.is_held(op)
            may_step = op.may_dispatch or lapsed(op, self._clock())
            if may_step and op.retry_at <= self._monotonic():
                op.may_publish = op.group not in unpublished
                for moved in self._steps(op, stop):
                    summary.steps += moved is not Moved.WAITS
            if op.record.state is State.TERMINAL:
                self._end(op, summary)
                continue
            summary.waiting += 1
            lanes.leave_behind(op)
            if op.group is not None and op.record.state in UNPUBLISHED:
                unpublished.add(op.group)

    def _steps(self, op: Operation, stop: threading.Event) -> Iterator[Moved]:
        """Step until it waits or ends; what one operation reads cannot stop the others."""
        relayed = op.record.family == RELAY_FAMILY
        while not stop.is_set():
            try:
                moved = (self._relay_stepper if relayed else self._stepper).step(op)
            except _WAITED_FOR as error:
                op.wait(str(error), now=self._monotonic(), longest_s=1.0)
                self._events.once("warning", "waiting", op.record.key, str(error), key=op.record.key)
                moved = Moved.WAITS
            yield moved
            if moved is not Moved.ON:
                return

    def _end(self, op: Operation, summary: PassSummary) -> None:
        del self.operations[op.record.key]
        self.relay.ended(op)
        summary.ended += 1
        self.totals.ended += 1
        self._ended_since_save += 1
        self._cursor_dirty = True
        outcome = op.record.result.outcome if op.record.result is not None else "unknown"
        self.totals.by_outcome[outcome] = self.totals.by_outcome.get(outcome, 0) + 1

    def _maintain(self, summary: PassSummary) -> None:
        if self._ended_since_save >= CURSOR_STRIDE or (self._cursor_dirty and not summary.active):
            self.save_cursor()
        now = self._monotonic()
        if now >= self._retire_due and not summary.active:
            self._retire_due = now + RETIRE_PERIOD_S
            try:
                self._store.retire(keep=self.intake.visible_callers)
            except (StorageFullError, JournalIoError) as error:
                self._events.once("warning", "retirement-waits", "archive", str(error))

    def save_cursor(self) -> None:
        """Save the cursor if anything ended since the last time."""
        if self._cursor_dirty and self._store.cursor_problem is None:
            try:
                self._store.save_cursor(self.intake.cursor_now())
            except StorageFullError as error:
                self._events.once("warning", "cursor-waits", "disk", str(error))
                return
        self._cursor_dirty = False
        self._ended_since_save = 0

    def _refetch(self, sequence: int) -> str | None:
        try:
            lines = self._namespace.read(self._paths.admission(sequence))
        except HiveRefusedError:
            return None
        return lines[0] if len(lines) == 1 else None

    # -- the loop --------------------------------------------------------------------------------------------

    def run(self, stop: threading.Event, *, notifier: ServiceNotifier, reports: Sequence[Report]) -> None:
        """Pass after pass until ``stop`` is set; an unreachable hive is waited for.

        Raises:
            HiveAuthError: the very first attach was refused.
            JournalPoisonedError: a write to the journal failed; the process must end.
        """
        announced = False
        while not stop.is_set():
            pause = self._one_round(stop, first=not announced)
            self._providers.tend()
            if self.connected and not announced:
                announced = True
                notifier.ready("serving the hive")
            notifier.alive()
            for report in reports:
                report.write_if_due(self)
            if notifier.watchdog_s is not None:
                pause = min(pause, notifier.watchdog_s / 3)
            stop.wait(pause)
        notifier.stopping()
        self.save_cursor()
        for report in reports:
            report.write(self)

    def _one_round(self, stop: threading.Event, *, first: bool) -> float:
        was_connected = self.connected
        try:
            summary = self.pass_once(stop)
        except HiveAuthError:
            # Once a session was granted, the credential is right as far as we know: it may be rotated.
            if first and self._namespace.session == 0:
                raise
            return self._outage("the hive refuses our credential")
        except HiveError as error:
            return self._outage(str(error))
        if not was_connected:
            self._events.settled("hive-unavailable", "hive")
            self._events.emit("info", "hive-connected", session=self._namespace.session)
        self._outage_s = 0.2
        return self._pause(summary)

    def _outage(self, why: str) -> float:
        self.totals.outages += 1
        self.hive_state = why
        self._events.once("warning", "hive-unavailable", "hive", why)
        pause, self._outage_s = self._outage_s, min(self._outage_s * 2, MAX_OUTAGE_PAUSE_S)
        return pause

    def _pause(self, summary: PassSummary) -> float:
        """Seconds to the next pass: none while things move, then fast, then slower up to the idle cadence."""
        now = self._monotonic()
        poll = self._config.poll
        if summary.active:
            self._last_activity = now
            return 0.0
        if now - self._last_activity < FAST_PERIOD_S:
            self._idle_s = poll.fast_ms / 1000
        else:
            self._idle_s = min(self._idle_s * 1.5, poll.idle_ms / 1000)
        if self._feed.session != self._namespace.session:
            return 0.0
        due = [op.retry_at - now for op in self.operations.values() if op.retry_at > now]
        relay_s = self.relay.pause_s()
        if relay_s is not None:
            due.append(max(relay_s, poll.fast_ms / 1000))
        return max(min([self._idle_s, self.cadence.longest_pause_s, *due]), 0.001)
