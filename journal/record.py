"""A record as the bytes of one file, and back. Pure; the outer form of the file is in ``envelope``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ticket_agent.journal import checks
from ticket_agent.journal.envelope import Kind, open_envelope, parse_body, seal_text
from ticket_agent.journal.errors import RecordError
from ticket_agent.journal.outcome import Plan
from ticket_agent.journal.record_text import plan_members, record_text
from ticket_agent.journal.transitions import State
from ticket_agent.journal.values import (
    MAX_EVIDENCE_BYTES,
    MAX_PLAN_BYTES,
    MAX_RECORD_BYTES,
    MAX_REQUEST_BYTES,
    MAX_TEXT_BYTES,
    HistoryEntry,
    ProviderResult,
    Record,
    Retained,
    StagedResult,
    Uncertainty,
    record_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.journal.outcome import JsonValue
    from ticket_agent.journal.record_text import Parts

__all__ = [
    "HistoryEntry",
    "ProviderResult",
    "Record",
    "RecordEncoder",
    "Retained",
    "StagedResult",
    "Uncertainty",
    "bounded_evidence",
    "decode_for_retention",
    "decode_record",
    "encode_record",
    "own_plan",
    "own_result",
]

# What an outcome can add to a record at most: evidence, message, staged line, history, note. A record is not
# dispatched without this much room left, so that no outcome can turn out to be too large to be stored.
OUTCOME_HEADROOM = 28_672
_NOTE_ROOM = 1_024
# A file no longer than this can pass neither bound.
_SMALLEST_BOUND = min(MAX_PLAN_BYTES, MAX_EVIDENCE_BYTES)


def own_plan(plan: Plan) -> Plan:
    """Return a private copy of a plan, proven to come back from a record exactly.

    Raises:
        RecordError: it holds something that is not plain JSON.
    """
    return Plan(
        before=checks.plain_members(plan.before, "plan.before"),
        intent=checks.plain_members(plan.intent, "plan.intent"),
    )


def own_result(result: ProviderResult) -> ProviderResult:
    """Return a private copy of a result, proven to come back from a record exactly.

    Raises:
        RecordError: its evidence holds something that is not plain JSON.
    """
    return replace(result, evidence=checks.plain_members(result.evidence, "result.evidence"))


def bounded_evidence(evidence: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return evidence that a record can hold; what it cannot hold is replaced by a note of that.

    An outcome must never be lost because its evidence is too large or not plain JSON.
    """
    try:
        members = checks.plain_members(evidence, "evidence")
        _bounded_size(members, "evidence", MAX_EVIDENCE_BYTES)
    except RecordError as error:
        return {"evidence_dropped": error.reason}
    return members


def encode_record(record: Record) -> bytes:
    """Return the file of a record.

    Raises:
        RecordError: a value in it is not plain JSON, or a size limit is passed. Before an outcome is known,
            the record must leave room for the largest one.
    """
    if record.plan is not None:
        own_plan(record.plan)
    if record.result is not None:
        own_result(record.result)
    return _sealed(record, record_text(record, {}))


class RecordEncoder:
    """Encodes operations as they move; takes plans and evidence for plain JSON.

    They are, if they were read from a file or went through :func:`own_plan` and :func:`own_result`. What does
    not change from one state to the next is encoded once and kept until the operation is terminal.
    """

    def __init__(self) -> None:
        self._parts: dict[str, Parts] = {}

    def encode(self, record: Record) -> bytes:
        """As :func:`encode_record`, but for owned values only."""
        parts = self._parts.pop(record.key, None) or {}
        data = _sealed(record, record_text(record, parts))
        if not record.terminal:
            self._parts[record.key] = parts
        return data


def _sealed(record: Record, text: str) -> bytes:
    data = seal_text(Kind.RECORD, text)
    limit = MAX_RECORD_BYTES
    if record.state in (State.PREPARED, State.EXECUTING):
        limit -= OUTCOME_HEADROOM - (_NOTE_ROOM if record.uncertain is not None else 0)
    if len(data) > limit:
        raise RecordError(
            f"the record would have {len(data)} bytes, and at most {limit} are allowed when {record.state}"
        )
    if len(data) > _SMALLEST_BOUND:
        _check_sizes(record)
    return data


def decode_record(data: bytes, *, name: str | None = None) -> Record:
    """Return the record in a file.

    Args:
        data: the file's bytes.
        name: the file's name, when it must agree with the record's sequence and key.

    Raises:
        RecordError: reason and byte offset; nothing else is raised, whatever the bytes.
    """
    members, offset = _parse(data)
    try:
        record = _record_of(members)
        _check_bounds(record, data)
    except RecordError as error:
        raise RecordError(error.reason, offset=offset) from None
    _require_name(name, record, offset)
    return record


def decode_for_retention(data: bytes, *, name: str, thorough: bool = False) -> Record | Retained:
    """As :func:`decode_record`, but sum a terminal record up.

    There are thousands of terminal records at every start, and nothing is executed or published for them.
    Digest, JSON, identity, file name and end are checked; the rest of the body is checked here only if
    ``thorough``, else by whoever looks it up.

    Raises:
        RecordError: reason and byte offset.
    """
    members, offset = _parse(data, thorough=False)
    if thorough or members.get("state") != State.TERMINAL:
        record = decode_record(data, name=name)
        return Retained.of(record, data) if record.terminal else record
    try:
        retained = _retained_of(members, data)
    except RecordError as error:
        raise RecordError(error.reason, offset=offset) from None
    _require_name(name, retained, offset)
    return retained


def _parse(data: bytes, *, thorough: bool = True) -> tuple[dict[str, Any], int]:
    if len(data) > MAX_RECORD_BYTES:
        raise RecordError(f"the file is longer than {MAX_RECORD_BYTES} bytes", offset=MAX_RECORD_BYTES)
    body, offset = open_envelope(Kind.RECORD, data)
    return parse_body(body, offset, thorough=thorough), offset


def _check_bounds(record: Record, data: bytes) -> None:
    if len(data) > _SMALLEST_BOUND:
        _check_sizes(record)
    # A value nested so deep has at least so many brackets; most records need no closer look.
    if data.count(b"{") + data.count(b"[") > checks.MAX_DEPTH:
        _check_nesting(record)


def _require_name(name: str | None, found: Record | Retained, offset: int) -> None:
    right = record_name(found.sequence, found.key)
    if name is not None and name != right:
        raise RecordError(
            f"the file's name should be {right} after the record's sequence and key", offset=offset
        )


_REQUIRED = frozenset({"key", "family", "epoch", "sequence", "state", "request", "history"})
_ALLOWED = _REQUIRED | {"plan", "uncertain", "result", "staged", "withdrawn"}
_HISTORY = frozenset({"state", "unix_ms", "boot_id", "agent"})
_PLAN = frozenset({"before", "intent"})
_UNCERTAIN = frozenset({"since_unix_ms", "detail"})
_RESULT = frozenset({"outcome", "message", "reconciled", "evidence"})
_STAGED = frozenset({"path", "line"})
_STATES = {state.value: state for state in State}


def _retained_of(members: dict[str, Any], data: bytes) -> Retained:
    _check_members(members)
    history = members["history"]
    if not isinstance(history, list) or not history:
        raise RecordError("history must be a list that is not empty")
    last = _entry(history[-1])
    if last.state is not State.TERMINAL:
        raise RecordError(f"history ends with {last.state}, but the state is {State.TERMINAL}")
    return Retained(
        key=members["key"],
        family=members["family"],
        epoch=members["epoch"],
        sequence=members["sequence"],
        changed_unix_ms=last.unix_ms,
        data=data,
    )


def _check_members(members: dict[str, Any]) -> None:
    if not _REQUIRED <= members.keys() <= _ALLOWED:
        raise RecordError(
            _members_reason("the record", _REQUIRED - members.keys(), members.keys() - _ALLOWED)
        )


def _record_of(members: dict[str, Any]) -> Record:
    _check_members(members)
    request = members["request"]
    checks.text(request, "request", MAX_REQUEST_BYTES)
    history = members["history"]
    if not isinstance(history, list):
        raise RecordError("history must be a list")
    return Record(
        key=members["key"],
        family=members["family"],
        epoch=members["epoch"],
        sequence=members["sequence"],
        state=_state(members["state"]),
        request=request.encode(),
        plan=_plan(members["plan"]) if "plan" in members else None,
        uncertain=_uncertain(members["uncertain"]) if "uncertain" in members else None,
        result=_result(members["result"]) if "result" in members else None,
        staged=_staged(members["staged"]) if "staged" in members else None,
        withdrawn=_withdrawn(members["withdrawn"]) if "withdrawn" in members else None,
        history=tuple([_entry(entry) for entry in history]),
    )


def _members_reason(what: str, missing: frozenset[str], unknown: set[str]) -> str:
    parts = [f"{name!r} is missing" for name in sorted(missing)] + [
        f"{name!r} is unknown" for name in sorted(unknown)
    ]
    return f"the members of {what} are wrong: {', '.join(parts)[:MAX_TEXT_BYTES]}"


def _exact(value: object, what: str, names: frozenset[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordError(f"{what} must be an object")
    if value.keys() != names:
        raise RecordError(_members_reason(what, names - value.keys(), set(value) - names))
    return value


def _state(value: object) -> State:
    state = _STATES.get(value) if isinstance(value, str) else None
    if state is None:
        raise RecordError("state is not one of the five states")
    return state


def _entry(value: object) -> HistoryEntry:
    members = _exact(value, "history", _HISTORY)
    return HistoryEntry(
        state=_state(members["state"]),
        unix_ms=members["unix_ms"],
        boot_id=members["boot_id"],
        agent=members["agent"],
    )


def _plan(value: object) -> Plan:
    members = _exact(value, "plan", _PLAN)
    checks.mapping(members["before"], "plan.before")
    checks.mapping(members["intent"], "plan.intent")
    return Plan(before=members["before"], intent=members["intent"])


def _uncertain(value: object) -> Uncertainty:
    members = _exact(value, "uncertain", _UNCERTAIN)
    return Uncertainty(since_unix_ms=members["since_unix_ms"], detail=members["detail"])


def _result(value: object) -> ProviderResult:
    members = _exact(value, "result", _RESULT)
    return ProviderResult(
        outcome=members["outcome"],
        message=members["message"],
        reconciled=members["reconciled"],
        evidence=members["evidence"],
    )


def _staged(value: object) -> StagedResult:
    members = _exact(value, "staged", _STAGED)
    return StagedResult(path=members["path"], line=members["line"])


def _withdrawn(value: object) -> str:
    if not isinstance(value, str):
        raise RecordError("withdrawn must be a string")
    return value


def _check_sizes(record: Record) -> None:
    if record.plan is not None:
        _bounded_size(plan_members(record.plan), "plan", MAX_PLAN_BYTES)
    if record.result is not None:
        _bounded_size(record.result.evidence, "result.evidence", MAX_EVIDENCE_BYTES)


def _bounded_size(value: Mapping[str, Any], what: str, limit: int) -> None:
    try:
        size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    except ValueError as error:
        raise RecordError(f"{what} cannot be written as JSON: {error}") from None
    if size > limit:
        raise RecordError(f"{what} has {size} bytes as JSON, and at most {limit} are allowed")


def _check_nesting(record: Record) -> None:
    if record.plan is not None:
        checks.nesting(record.plan.before, "plan.before")
        checks.nesting(record.plan.intent, "plan.intent")
    if record.result is not None:
        checks.nesting(record.result.evidence, "result.evidence")
