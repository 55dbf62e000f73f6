"""The phases of releases as operations of a journal: the same record and the same rules as for tickets.

Each private root has a journal of its own. A phase is prepared, dispatched when its intent is durable,
settled by its own observation, published when that is among the root's objects, and finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ticket_agent.journal.outcome import Plan, bounded_detail
from ticket_agent.journal.record import ProviderResult, StagedResult
from ticket_agent.journal.store import JournalStore, Limits
from ticket_agent.journal.transitions import State
from ticket_agent.peft.release.canonical import encode
from ticket_agent.peft.release.layout import JOURNAL
from ticket_agent.peft.release.phase_machine import Standing
from ticket_agent.protocol.json_strict import dumps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.journal.outcome import JsonValue
    from ticket_agent.journal.record import Record
    from ticket_agent.peft.release.layout import Begun, OperationFiles
    from ticket_agent.peft.release.observation import PhaseObservation
    from ticket_agent.peft.release.phases import Phase

__all__ = ["FAMILY", "PhaseJournal", "standing_of"]

FAMILY: Final = "peft.release.phase"
KEEP_RECORDS: Final = 1024
KEEP_MS: Final = 30 * 86_400_000

_EPOCH: Final = 1
_SCHEMA: Final = "ticket-agent-release-phase/v1"
_NOT_STARTED: Final = "not_started"


class PhaseJournal:
    """The journal of one private root; its fence is held as long as this is open.

    What fails in it are the errors of :class:`~ticket_agent.journal.store.JournalStore`. After
    ``JournalPoisonedError`` the process has to end.
    """

    def __init__(self, store: JournalStore) -> None:
        self._store = store

    @classmethod
    def open(cls, root: Path, *, clock: Callable[[], int], boot_id: str, agent_version: str) -> PhaseJournal:
        """Open the journal of a root.

        Raises:
            FenceHeldError: another process works with this root.
            JournalError: it cannot be opened.
        """
        limits = Limits(retain_ms=KEEP_MS, retain_records=KEEP_RECORDS)
        return cls(
            JournalStore.open(
                root / JOURNAL, clock=clock, boot_id=boot_id, agent_version=agent_version, limits=limits
            )
        )

    def close(self) -> None:
        """Give the fence back."""
        self._store.close()

    def standing(self, files: OperationFiles, phase: Phase) -> Standing | None:
        """How a phase stands; None: it was not dispatched.

        Raises:
            QuarantinedRecordError: its record cannot be read; nobody may go on.
        """
        record = self.record(files, phase)
        return None if record is None else standing_of(record)

    def record(self, files: OperationFiles, phase: Phase) -> Record | None:
        """The record of a phase, None when it was never prepared."""
        return self._store.records.get(_key(files, phase))

    def unreadable(self) -> tuple[str, ...]:
        """Names of records that cannot be read: what they would tell is not known."""
        return tuple(entry.name for entry in self._store.quarantined)

    def dispatch(
        self, files: OperationFiles, phase: Phase, begun: Begun, intent: dict[str, JsonValue]
    ) -> None:
        """Make the intent of a phase durable; when this returns it may be started, once.

        Raises:
            IllegalTransitionError: it was dispatched before.
            StorageFullError: space for its outcome cannot be held; it may be tried again.
        """
        key = _key(files, phase)
        known = self._store.records.get(key)
        sequence = self._store.highest_sequence(FAMILY, _EPOCH) + 1 if known is None else known.sequence
        self._store.prepare(
            key=key, family=FAMILY, epoch=_EPOCH, sequence=sequence, request=_request(phase, begun)
        )
        self._store.dispatch(key, Plan(before={}, intent=intent))

    def settle(self, files: OperationFiles, phase: Phase, observation: PhaseObservation, *, why: str) -> None:
        """Make durable what a phase observed; ``why`` is it in one line."""
        outcome = "confirmed" if observation.succeeded else "rejected"
        evidence: dict[str, JsonValue] = {
            "observation_sha256": observation.sha256,
            "native_identity": observation.native_identity,
            "completed_unix_ms": observation.completed_unix_ms,
        }
        self._settle(files, phase, outcome, why, evidence)

    def settle_lost(self, files: OperationFiles, phase: Phase, *, why: str) -> None:
        """Make durable that nobody will ever know how a phase ended."""
        self._settle(files, phase, "stale", why, {})

    def settle_not_started(self, files: OperationFiles, phase: Phase, *, why: str) -> None:
        """Make durable that a phase never ran and never will."""
        self._settle(files, phase, "rejected", why, {_NOT_STARTED: True})

    def unfinished(self, files: OperationFiles, phase: Phase) -> bool:
        """Whether a phase is settled and not finished."""
        record = self.record(files, phase)
        return record is not None and record.state in {State.PERSISTED, State.PUBLISHED}

    def finish(self, files: OperationFiles, phase: Phase, publish: Callable[[], None]) -> None:
        """Bring a settled phase to its end; ``publish`` keeps its observation and may be repeated."""
        key = _key(files, phase)
        if self._store.records[key].state is State.PERSISTED:
            publish()
            self._store.publish(key)
        if self._store.records[key].state is State.PUBLISHED:
            self._store.finish(key)

    def _settle(
        self, files: OperationFiles, phase: Phase, outcome: Any, why: str, evidence: dict[str, JsonValue]
    ) -> None:
        result = ProviderResult(outcome=outcome, message=bounded_detail(why), evidence=evidence)
        line = dumps({"phase": phase.value, "outcome": outcome, **evidence}).decode("ascii")
        staged = StagedResult(path=f"/operations/{_key(files, phase)}", line=line)
        self._store.settle(_key(files, phase), result, staged)


def standing_of(record: Record) -> Standing | None:
    """How the phase of a record stands; None: it was not dispatched."""
    if record.state is State.PREPARED:
        return None
    if record.result is None:
        return Standing.OPEN
    if record.result.outcome == "confirmed":
        return Standing.SUCCEEDED
    if record.result.outcome == "stale":
        return Standing.LOST
    return Standing.NOT_STARTED if record.result.evidence.get(_NOT_STARTED) is True else Standing.FAILED


def _key(files: OperationFiles, phase: Phase) -> str:
    return files.launch_id(phase.value)


def _request(phase: Phase, begun: Begun) -> bytes:
    return encode(
        {
            "schema": _SCHEMA,
            "phase": phase.value,
            "operation_id": begun.operation_id,
            "request_sha256": begun.request_sha256,
            "ticket_id": begun.authority.ticket_id,
            "idempotency_key": begun.authority.idempotency_key,
            "writer_epoch": begun.authority.writer_epoch,
        }
    )
