"""The journal of one state directory: every operation's state, durable before it counts.

One thread, one owner. A transition is two fsyncs and costs the same however many operations are retained.
What the store has in memory is what it decodes from the bytes that it wrote, and only after they are durable.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from ticket_agent.journal.atomic import remove_temporaries
from ticket_agent.journal.cursor import Cursor, encode_cursor, load_cursor, require_forward
from ticket_agent.journal.errors import (
    CursorError,
    JournalIoError,
    KeyConflictError,
    QuarantinedRecordError,
    RecordError,
    StorageFullError,
    TakeoverError,
    UnknownKeyError,
)
from ticket_agent.journal.fence import Fence
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.index import Index
from ticket_agent.journal.outcome import bounded_detail
from ticket_agent.journal.record import (
    HistoryEntry,
    Record,
    RecordEncoder,
    Uncertainty,
    encode_record,
    own_plan,
    own_result,
)
from ticket_agent.journal.retirement import Retirement
from ticket_agent.journal.scan import Quarantined, scan_records
from ticket_agent.journal.space import Limits
from ticket_agent.journal.state_dir import CURSOR, TAKEOVER, StateDir, create_state_dir
from ticket_agent.journal.takeover import Takeover, encode_takeover, load_takeover, require_finished
from ticket_agent.journal.transitions import Event, State, advance
from ticket_agent.journal.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping
    from pathlib import Path

    from ticket_agent.journal.fs import Fs
    from ticket_agent.journal.outcome import Plan
    from ticket_agent.journal.record import ProviderResult, StagedResult

__all__ = ["JournalStore", "Limits"]


class JournalStore:
    """The owner's view of a state directory, with the fence held.

    Invariants:

    1. An operation's state in memory never runs ahead of the disk.
    2. No file of a record is ever created over an existing one, and no invalid one is ever touched.
    3. After a failed write, fsync, close, rename or directory fsync nothing is written any more.
    4. Nothing is dispatched unless space for the outcome of everything dispatched is allocated.
    5. A completion fence never moves back.
    """

    def __init__(
        self,
        *,
        fs: Fs,
        dirs: StateDir,
        fence: Fence,
        clock: Callable[[], int],
        boot_id: str,
        agent_version: str,
        limits: Limits,
    ) -> None:
        self._fs = fs
        self._dirs = dirs
        self._fence = fence
        self._clock = clock
        self._boot_id = boot_id
        self._agent = agent_version
        self._limits = limits
        self._writer = Writer(fs, dirs.root, limits)
        self._closed = False
        self._encoder = RecordEncoder()
        self._load()

    @classmethod
    def open(
        cls,
        state_dir: Path,
        *,
        clock: Callable[[], int],
        boot_id: str,
        agent_version: str,
        fs: Fs | None = None,
        limits: Limits | None = None,
    ) -> Self:
        """Take the fence, clear leftovers of unfinished writes, read every record and the cursor.

        Args:
            state_dir: created with mode 0700 if absent.
            clock: wall clock in Unix milliseconds.
            boot_id: identity of the host's present boot, one line of 1..=64 bytes without blanks.
            agent_version: one line of 1..=64 bytes; a start id behind ``+`` tells one process from the next.
            fs: the file system; the operating system's if None.
            limits: space and retention; the defaults if None.

        Raises:
            FenceHeldError: another process owns the directory.
            StateDirError: the directory is not one to trust.
            TakeoverError: a takeover into it was not finished, or cannot be read.
            JournalIoError: it cannot be read or prepared.
            RecordError: ``boot_id`` or ``agent_version`` cannot stand in a record.
        """
        # Refused here rather than when the first outcome must be written.
        HistoryEntry(state=State.PREPARED, unix_ms=0, boot_id=boot_id, agent=agent_version)
        if len(boot_id.split()) != 1 or boot_id != boot_id.strip():
            raise RecordError("boot_id must not hold blanks")
        seam = fs or RealFs()
        dirs = create_state_dir(state_dir, seam)
        try:
            fence = Fence.acquire(
                seam, dirs.root, boot_id=boot_id, now_unix_ms=clock(), agent_version=agent_version
            )
        except BaseException:
            dirs.close()
            raise
        try:
            return cls(
                fs=seam,
                dirs=dirs,
                fence=fence,
                clock=clock,
                boot_id=boot_id,
                agent_version=agent_version,
                limits=limits or Limits(),
            )
        except BaseException as error:
            fence.release(stopped_unix_ms=clock())
            dirs.close()
            if isinstance(error, OSError):
                raise JournalIoError(f"the state directory {state_dir} cannot be read: {error}") from error
            raise

    def _load(self) -> None:
        self._takeover = load_takeover(self._fs, self._dirs.root)
        require_finished(self._takeover)
        for fd in (self._dirs.root, self._dirs.ops, self._dirs.archive, self._dirs.gaps):
            remove_temporaries(self._fs, fd)
        self._cursor, self._cursor_problem = load_cursor(self._fs, self._dirs.root)
        self._index = Index(scan_records(self._fs, self._dirs.ops), self._floor)
        # A full disk must not keep the agent from observing and publishing; a dispatch asks again and waits.
        with suppress(StorageFullError):
            self._writer.hold_reserve(self._index.executing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End in order and give the fence back; nothing can be written afterwards. Again it does nothing."""
        if self._closed:
            return
        # The numbers of closed descriptors may already belong to other files.
        self._closed = True
        self._writer.close()
        self._fence.release(stopped_unix_ms=self._now())
        self._dirs.close()

    @property
    def records(self) -> Mapping[str, Record]:
        """Every retained operation by key; a live view, which decodes a terminal one at each look-up."""
        return self._index.records

    @property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """Files that are no valid records, as found at the start."""
        return self._index.quarantined

    @property
    def poisoned(self) -> str | None:
        """Why nothing is dispatched any more in this process, or None. End the process and start again."""
        return self._writer.poisoned

    @property
    def cursor(self) -> Cursor:
        """The cursor as it is on disk; the initial value if it is absent or cannot be read."""
        return self._cursor

    @property
    def cursor_problem(self) -> str | None:
        """Why the cursor cannot be read, or None."""
        return self._cursor_problem

    @property
    def takeover(self) -> Takeover | None:
        """Whose state this was before, or None."""
        return self._takeover

    def open_records(self) -> tuple[Record, ...]:
        """Every operation that is not terminal, ordered by epoch and sequence."""
        return self._index.open_records()

    def newest(self, family: str, epoch: int) -> Record | None:
        """The readable record with the highest sequence of the family in the epoch; no other is decoded."""
        return self._index.newest(family, epoch)

    def between(self, family: str, epoch: int, after: int, before: int) -> tuple[Record, ...]:
        """Readable records whose sequence lies strictly between two others, in sequence order."""
        return self._index.between(family, epoch, after, before)

    def highest_epoch(self) -> int:
        """Highest epoch of any readable record or of the cursor."""
        return max(self._index.highest_epoch(), self._cursor.epoch)

    def highest_sequence(self, family: str, epoch: int) -> int:
        """Highest sequence of the family in the epoch that a readable record had, 0 if none."""
        return self._index.highest_sequence(family, epoch)

    def completed_through(self, family: str, epoch: int) -> int:
        """Highest sequence at or below which everything of the family in the epoch is terminal.

        It never moves back, and for a fenced family never stands below the cursor. A quarantined file counts
        as open.
        """
        return self._index.completed_through(family, epoch)

    def prepare(self, *, key: str, family: str, epoch: int, sequence: int, request: bytes) -> Record:
        """Journal an admitted operation, or return it if exactly this one is journaled already.

        Raises:
            KeyConflictError: the key is journaled with another family, epoch, sequence or request.
            QuarantinedRecordError: a file of this key exists and cannot be read.
            StorageFullError: the disk is full; nothing was written.
            RecordError: a value is out of bounds.
            JournalPoisonedError: see ``poisoned``.
        """
        return self.enter(
            Record(
                key=key,
                family=family,
                epoch=epoch,
                sequence=sequence,
                request=request,
                state=State.PREPARED,
                history=(self._entry(State.PREPARED),),
            )
        )

    def enter(self, record: Record) -> Record:
        """Journal an operation in the state that it has already, or return it if exactly it is journaled.

        Raises: as :meth:`prepare`.
        """
        self._writer.require_clean()
        known = self.records.get(record.key)
        if known is not None:
            _require_same(known, record)
            return known
        if self._index.blocked(record.key):
            raise QuarantinedRecordError(
                f"the record of sequence {record.sequence} is quarantined; verify the journal first"
            )
        data = encode_record(record)
        self._writer.require_free()
        return self._write(record, data, before=None)

    def dispatch(self, key: str, plan: Plan) -> Record:
        """Journal the plan; the effect may be performed, once, when this returns.

        Raises:
            StorageFullError: space for the outcome cannot be held; the operation stays prepared.
            RecordError: the plan is too large or not plain JSON; the operation stays prepared.
        """
        self._writer.require_clean()
        before, state, history = self._step(key, Event.DISPATCH)
        after = before.moved(state, history, plan=own_plan(plan))
        data = self._encoder.encode(after)
        self._writer.require_free()
        self._writer.hold_reserve(self._index.executing + 1)
        return self._write(after, data, before=before)

    def note_uncertain(self, key: str, detail: str) -> Record:
        """Note that the effect's end is not known at present; the first note's time stays.

        The same detail again writes nothing. A note is no outcome: it never spends the reserve.

        Raises:
            StorageFullError: the disk is full; the operation stays executing, without the note.
        """
        before, state, _ = self._step(key, Event.NOTE)
        line = bounded_detail(detail)
        if before.uncertain is None:
            note = Uncertainty(since_unix_ms=self._now(), detail=line)
        elif before.uncertain.detail == line:
            return before
        else:
            note = replace(before.uncertain, detail=line)
        self._writer.require_free()
        return self._commit(replace(before, state=state, uncertain=note), before=before, outcome=False)

    def note_known(self, key: str) -> Record:
        """Take the note of uncertainty back: where the effect stands is known again, its end is awaited.

        Raises:
            StorageFullError: the disk is full; the note stays.
        """
        before, state, _ = self._step(key, Event.NOTE)
        if before.uncertain is None:
            return before
        self._writer.require_free()
        return self._commit(replace(before, state=state, uncertain=None), before=before, outcome=False)

    def settle(self, key: str, result: ProviderResult, staged: StagedResult) -> Record:
        """Journal how the dispatched effect ended, and the exact line to publish."""
        return self._persist(key, Event.SETTLE, result, staged)

    def refuse(self, key: str, result: ProviderResult, staged: StagedResult) -> Record:
        """Journal a definite end without dispatch, and the exact line to publish."""
        return self._persist(key, Event.REFUSE, result, staged)

    def adopt(self, key: str, result: ProviderResult, staged: StagedResult) -> Record:
        """Journal the terminal result that the root already shows for this admission."""
        return self._persist(key, Event.ADOPT, result, staged)

    def publish(self, key: str) -> Record:
        """Journal that the root has the staged result."""
        before, state, history = self._step(key, Event.PUBLISH)
        return self._commit(before.moved(state, history), before=before)

    def withdraw(self, key: str, reason: str) -> Record:
        """Journal that the root can never take the staged result, and why."""
        before, state, history = self._step(key, Event.WITHDRAW)
        after = before.moved(state, history, withdrawn=bounded_detail(reason))
        return self._commit(after, before=before)

    def finish(self, key: str) -> Record:
        """Journal that nothing is left to do."""
        before, state, history = self._step(key, Event.FINISH)
        return self._commit(before.moved(state, history), before=before)

    def save_cursor(self, cursor: Cursor) -> None:
        """Durably replace the cursor.

        Raises:
            CursorError: the file on disk cannot be read and is kept, or the new value would move back.
            StorageFullError: the disk is full; the old cursor stays, and nothing is lost by that.
            JournalPoisonedError: see ``poisoned``.
        """
        self._writer.require_usable()
        if self._cursor_problem is not None:
            raise CursorError(
                f"{self._cursor_problem}; the file is kept, move it away to start from the records"
            )
        require_forward(self._cursor, cursor)
        data = encode_cursor(cursor)
        self._writer.require_free()
        self._writer.put(self._dirs.root, CURSOR, data, lambda: self._take_cursor(cursor))

    def save_takeover(self, takeover: Takeover) -> None:
        """Durably replace what is remembered of the former program, of which only ever less stays to be done.

        Raises:
            TakeoverError: nothing was taken over here.
            StorageFullError: the disk is full; the old file stays.
            JournalPoisonedError: see ``poisoned``.
        """
        self._writer.require_usable()
        if self._takeover is None:
            raise TakeoverError("nothing was taken over into this state directory")
        data = encode_takeover(takeover)
        self._writer.require_free()
        self._writer.put(self._dirs.root, TAKEOVER, data, lambda: self._take_takeover(takeover))

    def retire(self, *, keep: Container[str]) -> int:
        """Move old terminal records into a segment of the archive, if enough of them may leave.

        Args:
            keep: keys that stay whatever their age, because the root may still show them.

        Returns:
            How many records left; 0 when a segment would not be worth it.

        Raises:
            StorageFullError: no room for the segment; everything stays.
            JournalPoisonedError: see ``poisoned``.
        """
        retirement = Retirement(fs=self._fs, dirs=self._dirs, index=self._index, writer=self._writer)
        return retirement.run(self._limits, now_unix_ms=self._now(), keep=keep)

    def _take_cursor(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._index.raise_floors()

    def _take_takeover(self, takeover: Takeover) -> None:
        self._takeover = takeover

    def _persist(self, key: str, event: Event, result: ProviderResult, staged: StagedResult) -> Record:
        before, state, history = self._step(key, event)
        after = before.moved(state, history, result=own_result(result), staged=staged)
        return self._commit(after, before=before)

    def _step(self, key: str, event: Event) -> tuple[Record, State, tuple[HistoryEntry, ...]]:
        self._writer.require_usable()
        record = self.records.get(key)
        if record is None:
            raise UnknownKeyError(f"no operation with the key {key[:64]!r} is in the journal")
        state = advance(record.state, event)
        return record, state, (*record.history, self._entry(state))

    def _commit(self, after: Record, *, before: Record | None, outcome: bool = True) -> Record:
        return self._write(after, self._encoder.encode(after), before=before, outcome=outcome)

    def _write(self, after: Record, data: bytes, *, before: Record | None, outcome: bool = True) -> Record:
        # An operation that was never dispatched loses nothing on a full disk: its decision can be taken
        # again.
        outcome = outcome and before is not None and before.state is not State.PREPARED
        self._writer.put(
            self._dirs.ops,
            after.name,
            data,
            lambda: self._index.follow(after, data),
            new=before is None,
            outcome=outcome,
        )
        return after

    def _floor(self, family: str, epoch: int) -> int:
        return self._cursor.completed_through(epoch) if self._limits.fenced(family) else 0

    def _entry(self, state: State) -> HistoryEntry:
        return HistoryEntry(state=state, unix_ms=self._now(), boot_id=self._boot_id, agent=self._agent)

    def _now(self) -> int:
        # A clock that stands before 1970 is wrong, but it must not keep an outcome from being stored.
        return max(0, self._clock())


def _require_same(known: Record, other: Record) -> None:
    if _admission(known) != _admission(other):
        raise KeyConflictError(
            f"the key of {known.name} is journaled with another admission; use a new idempotency key"
        )


def _admission(record: Record) -> tuple[str, int, int, bytes]:
    return record.family, record.epoch, record.sequence, record.request
