"""From what the hive shows to records in the journal: each admission becomes one, or is held, in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ticket_agent.agent.admission import (
    Consumed,
    Standing,
    StreamView,
    Verdict,
    classify,
    line_digest,
    line_offsets,
)
from ticket_agent.agent.blocked import BlockedAdmissions
from ticket_agent.agent.callers import CallerIntake
from ticket_agent.agent.keys import V2_FAMILY, base_key
from ticket_agent.agent.lookup import known_admission
from ticket_agent.journal.cursor import MAX_EPOCHS, Cursor, EpochMark, HeldGap, StreamMark
from ticket_agent.journal.errors import QuarantinedRecordError, StorageFullError
from ticket_agent.journal.gaps import Acknowledgement, covers
from ticket_agent.journal.outcome import bounded_detail
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.agent.callers import Counters
    from ticket_agent.agent.events import EventLog
    from ticket_agent.agent.feed import Look
    from ticket_agent.agent.predecessor import Predecessor
    from ticket_agent.agent.relay.book import RelayBook
    from ticket_agent.journal.record import Record
    from ticket_agent.journal.store import JournalStore
    from ticket_agent.protocol.retention import Retention
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["Intake", "Refetch"]

MAX_REFETCH = 256
"""Admissions asked for one by one after a possible loss: root tracks no more (root side: admission)."""

Refetch = Callable[[int], str | None]
"""Asks root for the line of one admission; None when root does not offer or does not know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One retained line of the admission log with what it turned out to be."""

    text: str
    sequence: int | None
    spec: HostTicketSpec | None
    problem: str | None
    canonical: bytes
    """What the line says, however root wrote its members down."""
    digest: str
    """By what the line is recognised again: that of ``canonical``."""
    offset: int | None = None
    passed: bool = False
    """The agent that was taken over had done with it."""


class Intake:
    """Absorbs looks at the request logs into the journal.

    Invariants:
        1. A record is prepared before anything about its admission is dispatched.
        2. Admissions become records in sequence order; behind a held gap none becomes one.
        3. A caller's malformed line stops nobody; a malformed line of root is held.
        4. A new hive epoch is durable before the first admission of it is, unless the cursor's file cannot be
           read: then each record of that epoch makes it so.
        5. A cursor that cannot be read or written stops neither the intake nor the daemon.
    """

    def __init__(
        self,
        store: JournalStore,
        events: EventLog,
        *,
        local_hive: str,
        max_line_bytes: int,
        clock: Callable[[], int],
        refetch: Refetch,
        acknowledgements: Callable[[], tuple[Acknowledgement, ...]],
        former: Predecessor,
        relay: RelayBook,
        takes: bool = True,
    ) -> None:
        """Bind to a store.

        Args:
            store: where admissions become records.
            events: the log.
            local_hive: this hive's name; version-1 lines for another one are skipped.
            max_line_bytes: longest line of the hive.
            clock: wall clock in Unix milliseconds.
            refetch: asks root for one admission.
            acknowledgements: what operators gave up.
            former: what a former agent left, if its state was taken over.
            relay: takes what is for other hives.
            takes: False to judge the hive's epoch by each look and to take nothing from it.
        """
        self._store = store
        self._events = events
        self._max_line_bytes = max_line_bytes
        self._clock = clock
        self._refetch = refetch
        self._acknowledgements = acknowledgements
        self._takes = takes
        self.blocked = BlockedAdmissions(store.quarantined, refetch=refetch, max_line_bytes=max_line_bytes)
        """Admissions whose record cannot be read, as far as the hive still tells what they were."""
        self._former = former
        self._callers = CallerIntake(
            store,
            events,
            local_hive=local_hive,
            max_line_bytes=max_line_bytes,
            blocked=self.blocked,
            former=former,
            relay=relay,
        )
        self.incomplete = False
        """The last look was not taken over as a whole (disk full, a read failed); it must come again."""
        self._parsed: dict[str, _Line] = {}
        self._cursor = self._cursor_at_start()
        self._ends: dict[str, int] = dict(self._cursor.ends)
        self._consumed = self._last_consumed()
        self._callers.start_epoch(self._cursor.epoch)

    @property
    def counters(self) -> Counters:
        """What was seen and not executed, since the process started."""
        return self._callers.counters

    @property
    def epoch(self) -> int:
        """Number of the current hive epoch, from 1."""
        return self._cursor.epoch

    @property
    def visible_callers(self) -> set[str]:
        """Keys of version-1 tickets that the hive still shows; their records must stay."""
        return self._callers.visible

    @property
    def held(self) -> HeldGap | None:
        """The gap behind which nothing is executed, if there is one."""
        return self._cursor.held

    @property
    def meets_former(self) -> bool:
        """The next look is the first after a takeover and is judged by the hive's results too."""
        return self._former.unmet(self.epoch) or self._former.callers_unmet(self.epoch)

    def absorb(self, look: Look, *, forgotten: str | None = None) -> list[Record]:
        """Prepare a record for every new admission; returns them in order.

        Args:
            look: what the request logs hold.
            forgotten: evidence from elsewhere that root forgot what it knew, if there is any.

        Raises:
            StorageFullError: never; a full disk ends the intake early and is reported as an event.
            JournalPoisonedError: a write failed; the process must end.
        """
        fresh: list[Record] = []
        self.incomplete = True
        try:
            self._absorb(look, fresh, forgotten)
        except StorageFullError as error:
            self._events.once("warning", "intake-waits", "disk", str(error))
        else:
            self.incomplete = False
            self._events.settled("intake-waits", "disk")
        return fresh

    def _absorb(self, look: Look, fresh: list[Record], forgotten: str | None) -> None:
        self._require_durable_epoch()
        lines = self._parse(look)
        view = StreamView(
            lines=look.admitted,
            sequences=[line.sequence for line in lines],
            base=look.retention["spec.snapshot"].base if "spec.snapshot" in look.retention else None,
            ends={leaf: retention.next for leaf, retention in look.retention.items()},
            digests=[line.digest for line in lines],
        )
        lines = [replace(line, offset=offset) for line, offset in zip(lines, line_offsets(view), strict=True)]
        if self._former.unmet(self.epoch):
            lines, standing = self._meet(lines, view, look)
        else:
            standing = self._standing(view, look, forgotten)
        if standing.verdict is Verdict.NEW_EPOCH:
            self._open_epoch(standing.evidence)
        self._learn_blocked(lines)
        self._tell_evicted_callers(look)
        self._ends = {leaf: max(end, self._ends.get(leaf, 0)) for leaf, end in view.ends.items()}
        if not self._takes:
            return
        settled = standing.verdict is not Verdict.POSSIBLE_LOSS or self._loss_is_settled(standing, fresh)
        if settled and self._take(lines[standing.start :], fresh) and self._former.unmet(self.epoch):
            # The mark first: with it, nothing of this look is ever judged again.
            self._save(self.cursor_now())
            self._former.met()
        self._callers.take(look.callers, fresh)

    def _meet(self, lines: list[_Line], view: StreamView, look: Look) -> tuple[list[_Line], Standing]:
        """The first look after a takeover: what the former agent had passed is marked."""
        results = [look.retention[leaf] for leaf in ("status", "deadletter") if leaf in look.retention]
        meeting = self._former.meet(
            [line.spec for line in lines], base=view.base, dropped=any(log.base for log in results)
        )
        self._consumed = None
        marked = [replace(line, passed=index in meeting.passed) for index, line in enumerate(lines)]
        evidence = meeting.standing.evidence
        self._events.once("info", "former-agent", "met", evidence, passed=len(meeting.passed))
        return marked, meeting.standing

    def _tell_evicted_callers(self, look: Look) -> None:
        """Say what of the callers' log was evicted unread; only version 1 is executed from there."""
        log, read_to = look.retention.get("spec"), self._ends.get("spec")
        if log is None or read_to is None or log.base <= read_to:
            return
        self.counters.evicted_unseen_bytes += log.base - read_to
        detail = (
            "a version-1 ticket among them was not seen and gets no result; its caller may submit it again"
        )
        self._events.emit("warning", "callers-lines-evicted", bytes=log.base - read_to, detail=detail)

    def _learn_blocked(self, lines: list[_Line]) -> None:
        specs = [line.spec for line in lines if line.spec is not None]
        self.blocked.learn(specs, family=V2_FAMILY, epoch=self.epoch)
        self.blocked.ask(epoch=self.epoch)

    def note_ends(self, retention: Mapping[str, Retention]) -> None:
        """Remember how far the logs reach, after a look in the same session that found no new request.

        The result logs grow by our own hand while the request logs rest, and after a reboot they are what
        has certainly become shorter, even if a caller's first ticket is the same as the last one before.
        """
        for leaf, log in retention.items():
            self._ends[leaf] = max(log.next, self._ends.get(leaf, 0))

    def cursor_now(self) -> Cursor:
        """The cursor as it should be saved next."""
        cursor, consumed = self._cursor, self._consumed
        mark = None
        if consumed is not None:
            mark = StreamMark(
                sequence=consumed.sequence,
                sha256=consumed.sha256,
                length=consumed.length,
                offset=consumed.offset,
            )
        return replace(
            cursor,
            epochs=self._epochs(cursor),
            consumed_sequence=consumed.sequence if consumed is not None else cursor.consumed_sequence,
            mark=mark,
            ends=dict(self._ends),
        )

    def _epochs(self, cursor: Cursor) -> tuple[EpochMark, ...]:
        """The hive's lives with the completion fence of the current one brought up to date."""
        marks = {mark.number: mark for mark in cursor.epochs}
        current = marks.get(cursor.epoch) or EpochMark(
            number=cursor.epoch, opened_unix_ms=self._clock(), evidence="first contact"
        )
        through = self._store.completed_through(V2_FAMILY, cursor.epoch)
        marks[cursor.epoch] = replace(current, completed_through=max(current.completed_through, through))
        return tuple(marks[number] for number in sorted(marks))[-MAX_EPOCHS:]

    def _cursor_at_start(self) -> Cursor:
        """Records of a later epoch mean that the cursor was lost; the records are the truth."""
        highest, cursor = self._store.highest_epoch(), self._store.cursor
        if highest <= cursor.epoch:
            return cursor
        mark = EpochMark(number=highest, opened_unix_ms=self._clock(), evidence="found in the records")
        found = Cursor(epoch=highest, epochs=(*cursor.epochs, mark)[-MAX_EPOCHS:])
        with suppress(StorageFullError):
            self._write(found)
        return found

    def _save(self, cursor: Cursor) -> None:
        self._write(cursor)
        self._cursor = cursor

    def _write(self, cursor: Cursor) -> None:
        # A file that cannot be read is an operator's to move away; until then memory and records have to do.
        if self._store.cursor_problem is None:
            self._store.save_cursor(cursor)

    def _require_durable_epoch(self) -> None:
        if self._store.cursor.epoch != self._cursor.epoch:
            self._write(self._cursor)

    # -- standing in the stream ------------------------------------------------------------------------------

    def _last_consumed(self) -> Consumed | None:
        """Rebuild the mark from the records, which are the truth; the cursor may lag behind them."""
        last = self._store.newest(V2_FAMILY, self._cursor.epoch)
        mark = self._cursor.mark
        if last is None or (mark is not None and mark.sequence >= last.sequence):
            if mark is None:
                return None
            return Consumed(
                sequence=mark.sequence, sha256=mark.sha256, offset=mark.offset, length=mark.length
            )
        return Consumed(
            sequence=last.sequence,
            sha256=self._parse_admitted(last.request.decode("utf-8")).digest,
            offset=self._offset_behind(mark, last) if mark is not None else None,
            length=len(last.request) + 1,
        )

    def _offset_behind(self, mark: StreamMark, last: Record) -> int | None:
        """Where the line of ``last`` began, if every line between the mark and it is a record of ours."""
        skipped = self._store.between(V2_FAMILY, self._cursor.epoch, mark.sequence, last.sequence)
        if mark.offset is None or len(skipped) != last.sequence - mark.sequence - 1:
            return None
        return mark.offset + mark.length + sum(len(record.request) + 1 for record in skipped)

    def _standing(self, view: StreamView, look: Look, forgotten: str | None) -> Standing:
        standing = classify(self._consumed, self._ends, view)
        if forgotten is not None and standing.verdict is not Verdict.NEW_EPOCH:
            return Standing(verdict=Verdict.NEW_EPOCH, start=0, evidence=forgotten)
        if standing.verdict is Verdict.FIRST_CONTACT and not look.retention:
            newest = self._callers.newest
            if newest is not None and newest not in look.callers:
                return Standing(
                    verdict=Verdict.NEW_EPOCH,
                    start=0,
                    evidence="this hive drops no lines, yet the newest caller's line that was taken is gone",
                )
        return standing

    def _open_epoch(self, evidence: str) -> None:
        number = self._cursor.epoch + 1
        mark = EpochMark(number=number, opened_unix_ms=self._clock(), evidence=bounded_detail(evidence))
        opened = Cursor(epoch=number, epochs=(*self._epochs(self._cursor), mark)[-MAX_EPOCHS:])
        # Known at once even if it cannot be written: nothing of the earlier life may reach this one.
        self._cursor = opened
        self._consumed = None
        self._ends = {}
        self._callers.start_epoch(number)
        self._events.emit("warning", "hive-epoch", epoch=opened.epoch, evidence=evidence)
        self._write(opened)

    def _loss_is_settled(self, standing: Standing, fresh: list[Record]) -> bool:
        acknowledged = covers(self._acknowledgements(), self.epoch, standing.first, standing.through)
        if acknowledged:
            return True
        found = self._refetch_range(standing) if standing.refetch else None
        if found is not None:
            return self._take(found, fresh)
        self._hold(standing.first, standing.through, standing.evidence)
        return False

    def _refetch_range(self, standing: Standing) -> list[_Line] | None:
        """Ask root for each admission of the range; only the whole range settles a loss."""
        if standing.through - standing.first >= MAX_REFETCH:
            return None
        found: list[_Line] = []
        for sequence in range(standing.first, standing.through + 1):
            text = self._refetch(sequence)
            line = self._parse_admitted(text) if text is not None else None
            if line is None or line.sequence != sequence:
                return None
            found.append(line)
        return found

    def _hold(self, first: int, through: int, reason: str) -> None:
        held = self._cursor.held
        if held is not None and (held.epoch, held.first, held.through) == (self.epoch, first, through):
            return
        gap = HeldGap(
            epoch=self.epoch,
            first=first,
            through=through,
            reason=bounded_detail(reason),
            since_unix_ms=self._clock(),
        )
        self._save(replace(self.cursor_now(), held=gap))
        self._events.emit(
            "error",
            "gap-held",
            epoch=self.epoch,
            first=first,
            through=through,
            reason=reason,
            next=f"ticket-agent journal acknowledge-gap --from {first} --through {through} --reason TEXT",
        )

    def _release_gap(self) -> None:
        if self._cursor.held is None:
            return
        self._save(replace(self.cursor_now(), held=None))
        self._events.emit("info", "gap-released", epoch=self.epoch)

    # -- admitted lines --------------------------------------------------------------------------------------

    def _parse(self, look: Look) -> list[_Line]:
        """Parse every retained line, each only once however often it is shown."""
        self._parsed = {text: self._parsed.get(text) or self._parse_admitted(text) for text in look.admitted}
        return [self._parsed[text] for text in look.admitted]

    def _parse_admitted(self, text: str) -> _Line:
        spec, problem = None, None
        try:
            spec = parse_spec(text.encode("utf-8"), source="admitted", max_line_bytes=self._max_line_bytes)
        except ProtocolError as error:
            problem = str(error)
        canonical = spec.encode() if spec is not None else text.encode("utf-8")
        return _Line(
            text=text,
            sequence=spec.admission_sequence if spec is not None else None,
            spec=spec,
            problem=problem,
            canonical=canonical,
            digest=line_digest(canonical.decode("utf-8")),
        )

    def _take(self, lines: list[_Line], fresh: list[Record]) -> bool:
        """Admit line after line; False at one that is held."""
        for index, line in enumerate(lines):
            last = self._consumed.sequence if self._consumed is not None else 0
            problem = line.problem
            if line.sequence is not None and line.sequence <= last:
                problem = f"admission sequence {line.sequence} does not rise above {last}"
            if problem is None and line.spec is not None:
                problem = self._admit(line, line.spec, fresh)
            if problem is None:
                continue
            following = [later.sequence for later in lines[index + 1 :] if later.sequence is not None]
            through = max(following[0] - 1, last + 1) if following else last + 1
            if not covers(self._acknowledgements(), self.epoch, last + 1, through):
                self._hold(last + 1, through, f"root wrote a line that cannot be trusted: {problem}")
                return False
        self._release_gap()
        return True

    def _admit(self, line: _Line, spec: HostTicketSpec, fresh: list[Record]) -> str | None:
        """Prepare one admission; returns why it cannot be trusted, if so."""
        request = line.text.encode("utf-8")
        sequence = line.sequence or 0
        try:
            key, known = known_admission(
                self._store.records,
                base_key(spec),
                epoch=self.epoch,
                sequence=sequence,
                request=line.canonical,
                ended_epoch=self._former.ended_epoch(self.epoch),
            )
            if known is None and line.passed:
                self._former.enter_passed(spec, key=key, sequence=sequence, request=request)
            elif known is None:
                fresh.append(
                    self._store.prepare(
                        key=key, family=V2_FAMILY, epoch=self.epoch, sequence=sequence, request=request
                    )
                )
            elif request != known.request != line.canonical:
                return f"admission {sequence} was seen before with other content"
        except QuarantinedRecordError as error:
            # It is never executed; the admissions behind it are other operations and go on.
            self._events.once("error", "quarantined", base_key(spec), str(error), sequence=sequence)
        self._consumed = Consumed(
            sequence=sequence, sha256=line.digest, offset=line.offset, length=len(request) + 1
        )
        return None
