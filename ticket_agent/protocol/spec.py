"""Host ticket requests, versions 1 and 2: bytes in, one frozen value out, and back (host tickets: spec)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Literal, Self

from pydantic import ConfigDict, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from .actions import ROLE_OF_ACTION
from .args import ActionArgs, parse_args
from .errors import SpecError
from .json_strict import dumps, sorted_members
from .members import (
    ADMISSION_MEMBERS,
    BINDING_MEMBERS,
    DEFAULT_MAX_LINE_BYTES,
    FEDERATION_MEMBERS,
    U16,
    NonZeroU64,
    RelayHop,
    Token,
    WorkerId,
    check_federation,
    first_present,
    parse_line,
    refusal_of,
    rule_of,
)
from .text import trim

__all__ = ["SCHEMA_V1", "SCHEMA_V2", "HostTicketSpec", "Source", "parse_spec"]

SCHEMA_V1 = "host-ticket/v1"
SCHEMA_V2 = "host-ticket/v2"

Source = Literal["raw", "admitted"]
"""Where a line was read: ``<mount>/tickets/spec`` or root's ``spec.snapshot``."""

_WHAT = "host ticket spec"


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(strict=True))
class HostTicketSpec:
    """One request. Names, order and presence of the fields are those of the wire.

    Invariants, held by the constructor:
        1. Names are tokens, numbers are in range, nothing was converted from another type.
        2. Version 1 carries no receipt: ``receipt_mode`` is absent or ``none``, and nothing of the binding or
           of the admission is present. It names both hives or neither.
        3. Version 2 carries the whole binding of one receipt Worker whose role fits the action, arguments
           that fit the action, and neither a target nor hives.
        4. The members of an admission are present together (``admitted``) or not at all.

    Raises:
        SpecError: invariants 2 to 4.
        pydantic.ValidationError: invariant 1; :func:`parse_spec` turns it into a SpecError.

    Attributes:
        args: free JSON in version 1; an object in version 2.
        expires_unix_ms: moment from which on the ticket must not start.
        operation_id: name of the effect; for GPU leases the lease id.
        subject_ref: what the effect is on: a GPU or a model.
        receipt_worker_id: Worker that root sends the receipt to.
        resolved_worker_slot: slot of that Worker when root admitted the request.
        resolved_lease_epoch: lease epoch of that Worker at the same moment.
        admission_sequence: root's number of the admission, rising from 1 since the hive's boot.
    """

    schema: Literal["host-ticket/v1", "host-ticket/v2"]
    id: Token
    idempotency_key: Token
    action: Token
    target: str | None = None
    args: Any = None
    expires_unix_ms: NonZeroU64 | None = None
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
    def admitted(self) -> bool:
        """Whether root resolved and admitted this request; only such a one is executed."""
        return self.admission_sequence is not None

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the request: (id, idempotency key)."""
        return self.id, self.idempotency_key

    @property
    def journal_key(self) -> str:
        """The identity as one unambiguous text."""
        return f"{len(self.id)}:{self.id}:{self.idempotency_key}"

    def action_args(self) -> ActionArgs:
        """Return the checked arguments, defaults filled in.

        Raises:
            SpecError: a version-1 action that does not exist in version 2, or arguments that do not fit it.
        """
        return parse_args(self.action, self.args)

    def admit(self, *, slot: int, lease_epoch: int, admission_sequence: int) -> HostTicketSpec:
        """Return this version-2 request as root admits it.

        Raises:
            SpecError: a version-1 request.
            pydantic.ValidationError: a number out of range.
        """
        return replace(
            self,
            resolved_worker_slot=slot,
            resolved_lease_epoch=lease_epoch,
            admission_sequence=admission_sequence,
        )

    def encode(self) -> bytes:
        """Write the canonical line without its newline: wire order, absent members left out, args sorted."""
        document = {name: value for name in _MEMBERS if (value := getattr(self, name)) is not None}
        if "args" in document:
            document["args"] = sorted_members(document["args"])
        return dumps(document)


_MEMBERS = tuple(field.name for field in fields(HostTicketSpec))
_KNOWN = frozenset(_MEMBERS)


def parse_spec(
    data: bytes, *, source: Source, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
) -> HostTicketSpec:
    """Read one line of a request stream.

    Args:
        data: the line; ASCII blanks around it are dropped.
        source: the stream, which decides whether root's members must be there.
        max_line_bytes: limit for the line without its newline.

    Raises:
        ProtocolError: any refusal, whatever the bytes are; ``member`` names the culprit where there is one.
            A version-1 line in root's snapshot has the code ``spec-v1-in-snapshot``.
    """
    document = parse_line(data, what=_WHAT, max_line_bytes=max_line_bytes, members=_KNOWN, error=SpecError)
    schema = document.get("schema")
    if schema not in (SCHEMA_V1, SCHEMA_V2):
        raise SpecError(
            f"{_WHAT}: schema must be {SCHEMA_V1} or {SCHEMA_V2}", code="spec-schema", member="schema"
        )
    try:
        spec = HostTicketSpec(**document)
    except ValidationError as invalid:
        raise refusal_of(invalid, what=_WHAT, error=SpecError) from None
    _check_source(spec, source)
    return spec


def _check_source(spec: HostTicketSpec, source: Source) -> None:
    if source == "raw":
        member = first_present(spec, ADMISSION_MEMBERS)
        if member is not None:
            raise SpecError(f"{_WHAT}: {member} is the root's to add", code="spec-root-member", member=member)
        return
    if spec.version == 1:
        raise SpecError(
            f"{_WHAT}: schema {SCHEMA_V1} is never admitted; root's snapshot holds {SCHEMA_V2} only",
            code="spec-v1-in-snapshot",
            member="schema",
        )
    _require(spec, ADMISSION_MEMBERS)


def _check_v1(spec: HostTicketSpec) -> None:
    if spec.receipt_mode == "worker":
        raise SpecError(
            f"{_WHAT}: receipt_mode must be absent or none in version 1",
            code="spec-v1",
            member="receipt_mode",
        )
    foreign = first_present(spec, (*BINDING_MEMBERS, *ADMISSION_MEMBERS))
    if foreign is not None:
        raise SpecError(f"{_WHAT}: {foreign} does not exist in version 1", code="spec-v1", member=foreign)
    if spec.target is not None and not trim(spec.target):
        raise SpecError(f"{_WHAT}: target must be {rule_of('target')}", code="member-type", member="target")
    check_federation(spec.source_hive, spec.target_hive, what=_WHAT, error=SpecError)


def _check_v2(spec: HostTicketSpec) -> None:
    if spec.receipt_mode != "worker":
        raise SpecError(
            f"{_WHAT}: receipt_mode must be worker in version 2", code="spec-v2", member="receipt_mode"
        )
    foreign = first_present(spec, ("target", *FEDERATION_MEMBERS))
    if foreign is not None:
        raise SpecError(f"{_WHAT}: {foreign} does not exist in version 2", code="spec-v2", member=foreign)
    _require(spec, BINDING_MEMBERS)
    if first_present(spec, ADMISSION_MEMBERS) is not None:
        _require(spec, ADMISSION_MEMBERS)
    parse_args(spec.action, spec.args)
    role = ROLE_OF_ACTION[spec.action]
    if spec.receipt_worker_role != role:
        raise SpecError(
            f"{_WHAT}: receipt_worker_role of {spec.action} must be {role}",
            code="spec-role",
            member="receipt_worker_role",
        )


def _require(spec: HostTicketSpec, members: tuple[str, ...]) -> None:
    for member in members:
        if getattr(spec, member) is None:
            raise SpecError(f"{_WHAT}: member {member} is required", code="member-missing", member=member)
