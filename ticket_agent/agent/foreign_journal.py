"""The files of the published Rust agent, read strictly: bytes in, frozen values out (host tickets: journal).

That agent (``host-ticket-agent``) keeps its journal as one JSON document, ``execution-journal.json``, or as
one per lane, and beside each a ``cursor.json``. Here is everything that those files may hold. Whatever
breaks a rule that their own program holds refuses the whole file: a fence that is not understood is not taken
over in part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ticket_agent.agent.staging import RESULT_STATE
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.json_strict import dumps, parse_object
from ticket_agent.protocol.result import MAX_MESSAGE_BYTES, parse_result, stream_of_state
from ticket_agent.protocol.spec import parse_spec
from ticket_agent.protocol.text import has_control
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from ticket_agent.journal.values import OutcomeName
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = [
    "MAX_CURSOR_BYTES",
    "MAX_ENTRIES",
    "MAX_JOURNAL_BYTES",
    "MAX_LANES",
    "MAX_TOPOLOGY_BYTES",
    "ForeignCursor",
    "ForeignJournal",
    "ForeignOperation",
    "ForeignResult",
    "ForeignStateError",
    "parse_cursor",
    "parse_journal",
    "parse_topology",
]

MAX_JOURNAL_BYTES = 1_048_576
MAX_ENTRIES = 256
MAX_CURSOR_BYTES = 4_096
MAX_TOPOLOGY_BYTES = 256
MAX_LANES = 64
MAX_PATH_BYTES = 256
MAX_TEXT = 600
"""Longest refusal, in characters: a member's name is a stranger's text."""

SCHEMA_V2 = "host-ticket-execution-journal/v2"
SCHEMA_V3 = "host-ticket-execution-journal/v3"
TOPOLOGY_SCHEMA = "host-ticket-execution-lanes/v1"
COMPLETED = "completed_through_admission_sequence"

_ENTRY = frozenset({"key", "spec", "state", "provider_result", "result_path", "result_line"})
_RESULT = frozenset({"outcome", "message", "reconciled"})
_STATES = {state.value: state for state in State}
_UNDECIDED = (State.PREPARED, State.EXECUTING)
_STAGED = (State.PUBLISHED, State.TERMINAL)


class ForeignStateError(Exception):
    """A file of the former agent breaks one of its rules; nothing is taken over.

    Attributes:
        member: dotted path of the member at fault; None when the whole file is.
    """

    code = "foreign-state"

    def __init__(self, why: str, *, member: str | None = None) -> None:
        text = f"member {member} {why}" if member is not None else why
        super().__init__(text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}...")
        self.member = member


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignResult:
    """How the former agent's provider ended: outcome, message of 1..=192 bytes, found by observing or not."""

    outcome: OutcomeName
    message: str
    reconciled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignOperation:
    """One entry.

    Invariants, held by :func:`parse_journal`: a result exactly from ``provider-result-persisted`` on;
    path and line stand together, from ``result-published`` on always, never without a result; the line is
    a canonical version-2 result that echoes the request, and its state and path are those of the outcome.
    """

    key: str
    spec: HostTicketSpec
    state: State
    result: ForeignResult | None = None
    path: str | None = None
    line: str | None = None

    @property
    def sequence(self) -> int:
        """Admission sequence, at least 1."""
        return self.spec.admission_sequence or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignJournal:
    """One journal file: its format, its entries in sequence order, and its completion fence.

    Format 2 drops no entry and has no fence. In format 3 what lies at or below the fence was ended and may
    have been dropped.
    """

    format: int
    operations: tuple[ForeignOperation, ...]
    completed_through: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCursor:
    """One cursor file; what is missing counts as 0.

    Attributes:
        raw_index: lines of the callers' log that were passed.
        snapshot_index: lines of the admission log that were passed, by the format that counts lines.
        last_sequence: highest admission sequence that was passed, by the format that counts sequences.
    """

    raw_index: int = 0
    snapshot_index: int = 0
    last_sequence: int = 0


def parse_journal(data: bytes) -> ForeignJournal:
    """Read one journal.

    Raises:
        ForeignStateError: any refusal, whatever the bytes are; ``member`` names the culprit if there is one.
    """
    document = _document(data, "execution journal", MAX_JOURNAL_BYTES)
    schema = document.get("schema")
    if schema not in (SCHEMA_V2, SCHEMA_V3):
        shown = f" is {schema[:64]!r}, and" if isinstance(schema, str) else ""
        _refuse(f"{shown} must be {SCHEMA_V2} or {SCHEMA_V3}".strip(), "schema")
    allowed = {"schema", "entries"} | ({COMPLETED} if schema == SCHEMA_V3 else set())
    _known(document, frozenset(allowed), "")
    entries = document.get("entries")
    if not isinstance(entries, dict):
        _refuse("must be an object", "entries")
    if len(entries) > MAX_ENTRIES:
        _refuse(f"holds {len(entries)} entries, and at most {MAX_ENTRIES} are allowed", "entries")
    through = _integer(document, COMPLETED) if schema == SCHEMA_V3 else None
    operations = [_operation(key, entry) for key, entry in entries.items()]
    for operation in operations:
        if through is not None and operation.sequence <= through and operation.state is not State.TERMINAL:
            _refuse(
                f"is {operation.state} although admission {operation.sequence} lies at or below the fence "
                f"{through}",
                f"entries.{operation.key}.state",
            )
    return ForeignJournal(
        format=2 if schema == SCHEMA_V2 else 3,
        operations=tuple(sorted(operations, key=lambda operation: (operation.sequence, operation.key))),
        completed_through=through,
    )


def parse_cursor(data: bytes) -> ForeignCursor:
    """Read one cursor; unknown members are ignored, as its program does.

    Raises:
        ForeignStateError: any refusal.
    """
    document = _document(data, "cursor", MAX_CURSOR_BYTES)
    if "next_spec_index" in document and "raw_next_spec_index" in document:
        _refuse("is the older name of raw_next_spec_index, and both are there", "next_spec_index")
    raw = "next_spec_index" if "next_spec_index" in document else "raw_next_spec_index"
    return ForeignCursor(
        raw_index=_integer(document, raw),
        snapshot_index=_integer(document, "snapshot_next_spec_index"),
        last_sequence=_integer(document, "snapshot_last_admission_sequence"),
    )


def parse_topology(data: bytes) -> int:
    """Read the number of lanes, 1..=64.

    Raises:
        ForeignStateError: any refusal.
    """
    document = _document(data, "lane topology", MAX_TOPOLOGY_BYTES)
    _known(document, frozenset({"schema", "lanes"}), "")
    if document.get("schema") != TOPOLOGY_SCHEMA:
        _refuse(f"must be {TOPOLOGY_SCHEMA}", "schema")
    lanes = _integer(document, "lanes")
    if not 1 <= lanes <= MAX_LANES:
        _refuse(f"must be in 1..={MAX_LANES}", "lanes")
    return lanes


def _document(data: bytes, what: str, max_bytes: int) -> dict[str, Any]:
    try:
        return parse_object(data, what=f"the {what}", max_bytes=max_bytes)
    except ProtocolError as error:
        raise ForeignStateError(str(error)) from None


def _operation(key: str, entry: object) -> ForeignOperation:
    where = f"entries.{key}"
    if not isinstance(entry, dict):
        _refuse("must be an object", where)
    _known(entry, _ENTRY, f"{where}.")
    spec = _spec(entry.get("spec"), f"{where}.spec")
    if not key == entry.get("key") == spec.journal_key:
        _refuse("must equal the name of its entry and that of its request", f"{where}.key")
    state = _STATES.get(entry["state"]) if isinstance(entry.get("state"), str) else None
    if state is None:
        _refuse("is not one of the five states", f"{where}.state")
    result = _result(entry.get("provider_result"), f"{where}.provider_result")
    if (result is None) != (state in _UNDECIDED):
        why = "is required" if result is None else "must not be there"
        _refuse(f"{why} when {state}", f"{where}.provider_result")
    path, line = entry.get("result_path"), entry.get("result_line")
    for name, value, other in (("result_path", path, line), ("result_line", line, path)):
        if value is None and (state in _STAGED or other is not None):
            _refuse(f"is required when {state}" + (" and its pair is there" * bool(other)), f"{where}.{name}")
        if value is not None and result is None:
            _refuse(f"must not be there when {state}", f"{where}.{name}")
    if result is not None and line is not None:
        _check_staged(spec, result, path, line, where)
    return ForeignOperation(key=key, spec=spec, state=state, result=result, path=path, line=line)


def _spec(value: object, where: str) -> HostTicketSpec:
    if not isinstance(value, dict):
        _refuse("must be an object", where)
    try:
        return parse_spec(dumps(value), source="admitted")
    except ProtocolError as error:
        member = f"{where}.{error.member}" if error.member is not None else where
        raise ForeignStateError(f"is refused: {error}", member=member) from None


def _result(value: object, where: str) -> ForeignResult | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        _refuse("must be an object", where)
    _known(value, _RESULT, f"{where}.")
    outcome, message, reconciled = value.get("outcome"), value.get("message"), value.get("reconciled")
    if not isinstance(outcome, str) or outcome not in RESULT_STATE:
        _refuse("must be confirmed, rejected or stale", f"{where}.outcome")
    if not isinstance(message, str) or not 1 <= len(message.encode()) <= MAX_MESSAGE_BYTES:
        _refuse(f"must be a string of 1..={MAX_MESSAGE_BYTES} bytes", f"{where}.message")
    if has_control(message):
        _refuse("must not hold control characters", f"{where}.message")
    if not isinstance(reconciled, bool):
        _refuse("must be true or false", f"{where}.reconciled")
    return ForeignResult(outcome=cast("OutcomeName", outcome), message=message, reconciled=reconciled)


def _check_staged(
    spec: HostTicketSpec, result: ForeignResult, path: object, line: object, where: str
) -> None:
    if not isinstance(line, str):
        _refuse("must be a string", f"{where}.result_line")
    try:
        found = parse_result(line.encode())
    except ProtocolError as error:
        raise ForeignStateError(f"is refused: {error}", member=f"{where}.result_line") from None
    if found.encode() != line.encode():
        _refuse("is not in its canonical form", f"{where}.result_line")
    if not found.echoes(spec):
        _refuse("answers another admission", f"{where}.result_line")
    if found.state != RESULT_STATE[result.outcome]:
        _refuse(f"says {found.state} although the outcome is {result.outcome}", f"{where}.result_line")
    stream = f"/tickets/{stream_of_state(found.state)}"
    fits = isinstance(path, str) and path.startswith("/") and path.endswith(stream)
    if not fits or len(str(path).encode()) > MAX_PATH_BYTES or not str(path).isprintable():
        _refuse(f"must be an absolute path that ends with {stream}", f"{where}.result_path")


def _integer(document: dict[str, Any], member: str) -> int:
    value = document.get(member, 0)
    if type(value) is not int or not 0 <= value <= U64_MAX:
        _refuse(f"must be an integer in 0..={U64_MAX}", member)
    return value


def _known(document: dict[str, Any], allowed: frozenset[str], prefix: str) -> None:
    for member in document:
        if member not in allowed:
            _refuse("is unknown", f"{prefix}{member}")


def _refuse(why: str, member: str) -> NoReturn:
    raise ForeignStateError(why, member=member)
