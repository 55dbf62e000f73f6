"""One operation as a value.

A :class:`Record` cannot exist in an impossible shape: its constructor refuses what the transition table could
not have produced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, Self

from ticket_agent.journal import checks
from ticket_agent.journal.errors import RecordError
from ticket_agent.journal.transitions import State, follows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.journal.outcome import JsonValue, Plan

__all__ = [
    "MAX_EVIDENCE_BYTES",
    "MAX_KEY_BYTES",
    "MAX_LINE_BYTES",
    "MAX_PLAN_BYTES",
    "MAX_RECORD_BYTES",
    "MAX_REQUEST_BYTES",
    "MAX_TEXT_BYTES",
    "HistoryEntry",
    "OutcomeName",
    "ProviderResult",
    "Record",
    "Retained",
    "StagedResult",
    "Uncertainty",
    "key_digest",
    "parse_record_name",
    "record_name",
]

MAX_RECORD_BYTES = 65_536
"""Longest record file, header included."""
MAX_KEY_BYTES = 512
MAX_REQUEST_BYTES = 8_192
MAX_LINE_BYTES = 2_048
"""Longest staged result line (host tickets, results: line limit)."""
MAX_TEXT_BYTES = 192
"""Longest message, detail or reason (host tickets, results: message)."""
MAX_PLAN_BYTES = 16_384
MAX_EVIDENCE_BYTES = 16_384
MAX_PATH_BYTES = 256
MAX_NAME_BYTES = 64
MAX_UNIX_MS = 2**63 - 1

OutcomeName = Literal["confirmed", "rejected", "stale"]
_OUTCOMES = frozenset({"confirmed", "rejected", "stale"})
_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{16})\.rec")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """When, in which boot and by which agent a state was reached.

    The clock is information for people; nothing is decided by comparing two entries' times.

    Attributes:
        state: the state that was reached.
        unix_ms: wall-clock time, Unix milliseconds.
        boot_id: identity of the host's boot.
        agent: the agent's version, then ``+`` and a start id of 8 hex digits drawn anew by each process: two
            entries of one boot with different start ids have a restart between them. Agents before that wrote
            the version alone.
    """

    state: State
    unix_ms: int
    boot_id: str
    agent: str

    def __post_init__(self) -> None:
        checks.integer(self.unix_ms, "unix_ms", 0, MAX_UNIX_MS)
        checks.line(self.boot_id, "boot_id", MAX_NAME_BYTES)
        checks.line(self.agent, "agent", MAX_NAME_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Since when and why nobody can tell whether the effect happened."""

    since_unix_ms: int
    detail: str

    def __post_init__(self) -> None:
        checks.integer(self.since_unix_ms, "uncertain.since_unix_ms", 0, MAX_UNIX_MS)
        checks.line(self.detail, "uncertain.detail", MAX_TEXT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderResult:
    """How an operation ended.

    Attributes:
        outcome: ``confirmed``, ``rejected`` or ``stale`` (the uncertainty was ended by rule, not by
            knowledge).
        message: one line of 1..=192 bytes without control characters.
        reconciled: the end was found by observing, not told by the call that performed the effect.
        evidence: what ties the end to this operation; at most 16,384 bytes as JSON.
    """

    outcome: OutcomeName
    message: str
    reconciled: bool = False
    evidence: Mapping[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.text(self.outcome, "result.outcome", MAX_NAME_BYTES)
        if self.outcome not in _OUTCOMES:
            raise RecordError("result.outcome must be confirmed, rejected or stale")
        checks.line(self.message, "result.message", MAX_TEXT_BYTES)
        checks.boolean(self.reconciled, "result.reconciled")
        checks.mapping(self.evidence, "result.evidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedResult:
    """Where the result goes and its exact line without newline, fixed before the first attempt to publish."""

    path: str
    line: str

    def __post_init__(self) -> None:
        checks.line(self.path, "staged.path", MAX_PATH_BYTES)
        if not self.path.startswith("/"):
            raise RecordError("staged.path must be absolute")
        checks.line(self.line, "staged.line", MAX_LINE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One operation.

    Invariants, refused by the constructor otherwise:

    1. The history starts with ``prepared``, walks the transition table and ends in ``state``.
    2. There is a plan exactly if the history shows ``executing``; only then there may be an uncertainty.
    3. There are a result and a staged line exactly from ``provider-result-persisted`` on.
    4. ``withdrawn`` holds a reason exactly if the operation became terminal without being published.

    Attributes:
        key: the operation's identity; never reused for another request.
        family: the sequence space that the operation belongs to.
        epoch: number of the hive's life (its sequence restarts after a reboot), from 1.
        sequence: admission sequence within family and epoch, 1..=2**64-1.
        request: the exact admitted bytes, UTF-8, 1..=8,192 bytes.
    """

    key: str
    family: str
    epoch: int
    sequence: int
    request: bytes
    state: State
    history: tuple[HistoryEntry, ...]
    plan: Plan | None = None
    uncertain: Uncertainty | None = None
    result: ProviderResult | None = None
    staged: StagedResult | None = None
    withdrawn: str | None = None

    def __post_init__(self) -> None:
        checks.line(self.key, "key", MAX_KEY_BYTES)
        checks.line(self.family, "family", MAX_NAME_BYTES)
        checks.integer(self.epoch, "epoch", 1, checks.MAX_U64)
        checks.integer(self.sequence, "sequence", 1, checks.MAX_U64)
        if not 1 <= len(self.request) <= MAX_REQUEST_BYTES:
            raise RecordError(f"request must have 1..={MAX_REQUEST_BYTES} bytes, not {len(self.request)}")
        self._check_history()
        self._check_shape()

    def _check_history(self) -> None:
        if not self.history:
            raise RecordError("history must not be empty")
        if self.history[0].state is not State.PREPARED:
            raise RecordError("history must start with prepared")
        before = State.PREPARED
        for entry in self.history[1:]:
            if not follows(before, entry.state):
                raise RecordError(f"history goes from {before} to {entry.state}, which is no transition")
            before = entry.state
        if before is not self.state:
            raise RecordError(f"history ends with {before}, but the state is {self.state}")

    def _check_shape(self) -> None:
        passed = {entry.state for entry in self.history}
        if (self.plan is not None) != (State.EXECUTING in passed):
            raise RecordError("a plan must be there exactly if the operation was dispatched")
        if self.uncertain is not None and State.EXECUTING not in passed:
            raise RecordError("an operation that was not dispatched cannot be uncertain")
        persisted = State.PERSISTED in passed
        if (self.result is not None) != persisted or (self.staged is not None) != persisted:
            raise RecordError(
                "a result and a staged line must be there exactly from provider-result-persisted on"
            )
        if (self.withdrawn is not None) != (self.state is State.TERMINAL and State.PUBLISHED not in passed):
            raise RecordError(
                "withdrawn must hold a reason exactly if a terminal operation was not published"
            )
        if self.withdrawn is not None:
            checks.line(self.withdrawn, "withdrawn", MAX_TEXT_BYTES)

    def moved(
        self,
        state: State,
        history: tuple[HistoryEntry, ...],
        *,
        plan: Plan | None = None,
        result: ProviderResult | None = None,
        staged: StagedResult | None = None,
        withdrawn: str | None = None,
    ) -> Record:
        """Return the record in another state, with what came with that; all checks apply to it.

        Written out, because a general copy costs as much as encoding the record.
        """
        return Record(
            key=self.key,
            family=self.family,
            epoch=self.epoch,
            sequence=self.sequence,
            request=self.request,
            state=state,
            history=history,
            plan=plan if plan is not None else self.plan,
            uncertain=self.uncertain,
            result=result if result is not None else self.result,
            staged=staged if staged is not None else self.staged,
            withdrawn=withdrawn,
        )

    @property
    def terminal(self) -> bool:
        """Nothing is left to do for this operation."""
        return self.state is State.TERMINAL

    @property
    def outcome_unknown(self) -> bool:
        """It is noted that nobody can tell whether the effect happened, and no end of that is known yet."""
        return self.uncertain is not None and self.result is None

    @property
    def name(self) -> str:
        """Name of the record's file."""
        return record_name(self.sequence, self.key)

    @property
    def changed_unix_ms(self) -> int:
        """Wall-clock time at which the present state was reached."""
        return self.history[-1].unix_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """A terminal record summed up: its identity, when it ended, and its file's bytes."""

    key: str
    family: str
    epoch: int
    sequence: int
    changed_unix_ms: int
    data: bytes

    def __post_init__(self) -> None:
        checks.line(self.key, "key", MAX_KEY_BYTES)
        checks.line(self.family, "family", MAX_NAME_BYTES)
        checks.integer(self.epoch, "epoch", 1, checks.MAX_U64)
        checks.integer(self.sequence, "sequence", 1, checks.MAX_U64)

    @classmethod
    def of(cls, record: Record, data: bytes) -> Self:
        """Sum a terminal record up."""
        return cls(
            key=record.key,
            family=record.family,
            epoch=record.epoch,
            sequence=record.sequence,
            changed_unix_ms=record.changed_unix_ms,
            data=data,
        )

    @property
    def name(self) -> str:
        """Name of the record's file."""
        return record_name(self.sequence, self.key)


def key_digest(key: str) -> str:
    """The 16 hex digits that stand for a key in file names."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def record_name(sequence: int, key: str) -> str:
    """Name of the file that holds the operation."""
    return f"{sequence:020d}-{key_digest(key)}.rec"


def parse_record_name(name: str) -> tuple[int, str] | None:
    """Sequence and key digest of a record's file name; None when the name is not one."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), match[2])
