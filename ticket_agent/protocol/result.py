"""Host ticket results: built with a digest within the bounds, checked when read (host tickets: results).

The digest covers the canonical bytes, not the received ones: root re-serialises what it takes, so a result
whose members arrive in another order still has to match in the canonical order.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from .actions import RECEIPT_ACTIONS, ROLE_OF_ACTION
from .errors import ResultError
from .json_strict import dumps
from .members import (
    ADMISSION_MEMBERS,
    BINDING_MEMBERS,
    DEFAULT_MAX_LINE_BYTES,
    FEDERATION_MEMBERS,
    U16,
    NonZeroU64,
    RelayHop,
    Sha256,
    Token,
    WorkerId,
    check_federation,
    first_present,
    parse_line,
    refusal_of,
)
from .text import has_control, prepare_message, trim, truncate_utf8

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .spec import HostTicketSpec

__all__ = [
    "MAX_MESSAGE_BYTES",
    "RESULT_STATES",
    "TERMINAL_STATES",
    "V1_MAX_LINE_BYTES",
    "HostTicketResult",
    "ResultState",
    "build_result",
    "parse_result",
    "stream_of_state",
]

SCHEMA_V1 = "host-ticket-result/v1"
SCHEMA_V2 = "host-ticket-result/v2"

ResultState = Literal["queued", "claimed", "running", "succeeded", "failed", "expired"]
RESULT_STATES: tuple[ResultState, ...] = ("queued", "claimed", "running", "succeeded", "failed", "expired")
TERMINAL_STATES = frozenset({"succeeded", "failed", "expired"})
_DEADLETTER_STATES = frozenset({"failed", "expired"})

MAX_MESSAGE_BYTES = 192
COMPACT_MESSAGE_BYTES = 96
"""What a message is cut to when the line does not fit."""
V1_MAX_LINE_BYTES = 224
"""Bound of version-1 results, from consoles that take no longer line."""
V2_MAX_LINE_BYTES = 2048

_WHAT = "host ticket result"


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(strict=True))
class HostTicketResult:
    """One result. Names, order and presence of the fields are those of the wire.

    Invariants, held by the constructor:
        1. Names are tokens, numbers are in range, the state is one of the six.
        2. Version 1 carries nothing of a receipt, and names both hives or neither.
        3. Version 2 echoes the whole binding and admission, has a message of 1..=192 bytes without control
           characters or none, and carries the SHA-256 of its canonical bytes without ``result_digest``.

    Raises:
        ResultError: invariants 2 and 3.
        pydantic.ValidationError: invariant 1; :func:`parse_result` turns it into a ResultError.
    """

    schema: Literal["host-ticket-result/v1", "host-ticket-result/v2"]
    id: Token
    idempotency_key: Token
    action: Token
    state: ResultState
    message: str | None = None
    source_hive: Token | None = None
    target_hive: Token | None = None
    relay_hop: RelayHop | None = None
    relay_correlation_id: Token | None = None
    receipt_mode: Literal["none", "worker"] | None = None
    operation_id: Token | None = None
    subject_ref: Token | None = None
    receipt_worker_role: Token | None = None
    receipt_worker_id: WorkerId | None = None
    receipt_supervisor_generation: NonZeroU64 | None = None
    receipt_cap_generation: NonZeroU64 | None = None
    resolved_worker_slot: U16 | None = None
    resolved_lease_epoch: NonZeroU64 | None = None
    admission_sequence: NonZeroU64 | None = None
    result_digest: Sha256 | None = None

    @model_validator(mode="after")
    def _matrix(self) -> Self:
        if self.schema == SCHEMA_V1:
            _check_v1(self)
        else:
            _check_v2(self)
        return self

    @property
    def version(self) -> int:
        """1 or 2."""
        return 1 if self.schema == SCHEMA_V1 else 2

    @property
    def terminal(self) -> bool:
        """Whether nothing may follow this result."""
        return self.state in TERMINAL_STATES

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the request that this answers: (id, idempotency key)."""
        return self.id, self.idempotency_key

    def echoes(self, spec: HostTicketSpec) -> bool:
        """Tell whether this answers exactly ``spec``: same version, identity, action, binding and admission.

        The hives of version 1 are not compared, since a builder may have had to leave them out.
        """
        return self.version == spec.version and all(
            getattr(self, name) == getattr(spec, name) for name in _ECHOED
        )

    def encode(self) -> bytes:
        """Write the canonical line without its newline."""
        return dumps(_document(self))


_MEMBERS = tuple(field.name for field in fields(HostTicketResult))
_KNOWN = frozenset(_MEMBERS)
_ECHOED = ("id", "idempotency_key", "action", *BINDING_MEMBERS, *ADMISSION_MEMBERS)
_CARRIED = tuple(name for name in _MEMBERS if name not in {"schema", "state", "message", "result_digest"})


def parse_result(data: bytes, *, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> HostTicketResult:
    """Read one line of a result stream.

    Raises:
        ProtocolError: any refusal, whatever the bytes are; ``member`` names the culprit where there is one.
            A digest that does not fit has the code ``result-digest``.
    """
    document = parse_line(data, what=_WHAT, max_line_bytes=max_line_bytes, members=_KNOWN, error=ResultError)
    schema = document.get("schema")
    if schema not in (SCHEMA_V1, SCHEMA_V2):
        raise ResultError(
            f"{_WHAT}: schema must be {SCHEMA_V1} or {SCHEMA_V2}", code="result-schema", member="schema"
        )
    if document.get("state") not in RESULT_STATES:
        raise _unknown_state()
    try:
        return HostTicketResult(**document)
    except ValidationError as invalid:
        raise refusal_of(invalid, what=_WHAT, error=ResultError) from None


def build_result(spec: HostTicketSpec, *, state: str, message: str | None, max_line_bytes: int) -> bytes:
    """Write the result line of a request, without its newline.

    The message is trimmed and flattened to one line. What does not fit is left out step by step: first the
    correlation id (version 1), then all of the message but 96 bytes, the message, the hives (version 1).

    Args:
        spec: the request; of version 2 only an admitted one can be answered.
        state: one of the six states.
        message: what happened, in words, or None.
        max_line_bytes: limit of the hive; 2048 in version 2 and 224 in version 1 hold besides.

    Raises:
        ResultError: unknown state, a request without admission, or not even the bare result fits.
    """
    if state not in RESULT_STATES:
        raise _unknown_state()
    if spec.version == 2 and not spec.admitted:  # noqa: PLR2004 - the protocol's version
        raise ResultError(
            f"{_WHAT}: the request was not admitted, so there is no Worker to answer for it",
            code="result-not-admitted",
            member="admission_sequence",
        )
    limit = min(max_line_bytes, V1_MAX_LINE_BYTES if spec.version == 1 else V2_MAX_LINE_BYTES)
    for document in _compactions(_full_document(spec, state, message), version=spec.version):
        if spec.version != 1:
            document["result_digest"] = hashlib.sha256(dumps(document)).hexdigest()
        line = dumps(document)
        if len(line) <= limit:
            return line
    raise ResultError(
        f"{_WHAT}: {len(line)} bytes are left after leaving out all that may be; max_line_bytes is {limit}",
        code="result-too-long",
    )


def stream_of_state(state: str) -> Literal["status", "deadletter"]:
    """Return the log that results of this state belong into.

    Raises:
        ResultError: unknown state.
    """
    if state not in RESULT_STATES:
        raise _unknown_state()
    return "deadletter" if state in _DEADLETTER_STATES else "status"


def _full_document(spec: HostTicketSpec, state: str, message: str | None) -> dict[str, Any]:
    values = {name: getattr(spec, name) for name in _CARRIED}
    values["schema"] = SCHEMA_V1 if spec.version == 1 else SCHEMA_V2
    values["state"] = state
    values["message"] = prepare_message(message) if spec.version == 1 else _bounded_message(message)
    return {name: value for name in _MEMBERS if (value := values.get(name)) is not None}


def _bounded_message(message: str | None) -> str | None:
    """Cut as the version-2 parser demands; trimmed again, since the cut may end in blanks."""
    prepared = prepare_message(message)
    if prepared is None or len(prepared.encode("utf-8")) <= MAX_MESSAGE_BYTES:
        return prepared
    return trim(truncate_utf8(prepared, MAX_MESSAGE_BYTES)) or None


def _compactions(document: dict[str, Any], *, version: int) -> Iterator[dict[str, Any]]:
    """Yield ever shorter documents, without a digest (host tickets, results: compaction)."""
    yield dict(document)
    if version == 1 and document.pop("relay_correlation_id", None) is not None:
        yield dict(document)
    if "message" in document:
        document["message"] = truncate_utf8(document["message"], COMPACT_MESSAGE_BYTES)
        yield dict(document)
        del document["message"]
        yield dict(document)
    if version == 1:
        for name in FEDERATION_MEMBERS:
            document.pop(name, None)
        yield dict(document)


def _document(result: HostTicketResult) -> dict[str, Any]:
    return {name: value for name in _MEMBERS if (value := getattr(result, name)) is not None}


def _check_v1(result: HostTicketResult) -> None:
    if result.receipt_mode == "worker":
        raise ResultError(
            f"{_WHAT}: receipt_mode must be absent or none in version 1",
            code="result-v1",
            member="receipt_mode",
        )
    foreign = first_present(result, (*BINDING_MEMBERS, *ADMISSION_MEMBERS, "result_digest"))
    if foreign is not None:
        raise ResultError(f"{_WHAT}: {foreign} does not exist in version 1", code="result-v1", member=foreign)
    check_federation(result.source_hive, result.target_hive, what=_WHAT, error=ResultError)


def _check_v2(result: HostTicketResult) -> None:
    if result.receipt_mode != "worker":
        raise ResultError(
            f"{_WHAT}: receipt_mode must be worker in version 2", code="result-v2", member="receipt_mode"
        )
    foreign = first_present(result, FEDERATION_MEMBERS)
    if foreign is not None:
        raise ResultError(f"{_WHAT}: {foreign} does not exist in version 2", code="result-v2", member=foreign)
    for member in (*BINDING_MEMBERS, *ADMISSION_MEMBERS, "result_digest"):
        if getattr(result, member) is None:
            raise ResultError(f"{_WHAT}: member {member} is required", code="member-missing", member=member)
    _check_action(result)
    message = result.message
    if message is not None and (
        not 1 <= len(message.encode("utf-8")) <= MAX_MESSAGE_BYTES or has_control(message)
    ):
        raise ResultError(
            f"{_WHAT}: message must be 1..={MAX_MESSAGE_BYTES} bytes without control characters",
            code="result-message",
            member="message",
        )
    document = _document(result)
    carried = document.pop("result_digest")
    if hashlib.sha256(dumps(document)).hexdigest() != carried:
        raise ResultError(
            f"{_WHAT}: result_digest is not the SHA-256 of this result, which was altered on its way",
            code="result-digest",
            member="result_digest",
        )


def _check_action(result: HostTicketResult) -> None:
    role = ROLE_OF_ACTION.get(result.action)
    if role is None:
        raise ResultError(
            f"{_WHAT}: action must be one of {', '.join(RECEIPT_ACTIONS)} in version 2",
            code="action",
            member="action",
        )
    if result.receipt_worker_role != role:
        raise ResultError(
            f"{_WHAT}: receipt_worker_role of {result.action} must be {role}",
            code="result-role",
            member="receipt_worker_role",
        )


def _unknown_state() -> ResultError:
    return ResultError(
        f"{_WHAT}: state must be one of {', '.join(RESULT_STATES)}", code="result-state", member="state"
    )
