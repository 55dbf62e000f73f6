"""Members that requests and results share: their types, their rules in words, their refusals."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from .errors import JsonError
from .json_strict import parse_object
from .tokens import MAX_TOKEN_BYTES, MAX_WORKER_ID_BYTES, SHA256_PATTERN, TOKEN_PATTERN, U16_MAX, U64_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .errors import ProtocolError

__all__ = [
    "ADMISSION_MEMBERS",
    "BINDING_MEMBERS",
    "DEFAULT_MAX_LINE_BYTES",
    "FEDERATION_MEMBERS",
    "MAX_RELAY_HOP",
    "U16",
    "NonZeroU64",
    "RelayHop",
    "Sha256",
    "Token",
    "WorkerId",
    "check_federation",
    "first_present",
    "parse_line",
    "refusal_of",
    "rule_of",
]

DEFAULT_MAX_LINE_BYTES = 2048
"""Longest ticket line, without its newline (host tickets: paths and bounds)."""
MAX_RELAY_HOP = 32

FEDERATION_MEMBERS = ("source_hive", "target_hive", "relay_hop", "relay_correlation_id")
BINDING_MEMBERS = (
    "operation_id",
    "subject_ref",
    "receipt_worker_role",
    "receipt_worker_id",
    "receipt_supervisor_generation",
    "receipt_cap_generation",
)
"""What a version-2 caller pins its request to."""
ADMISSION_MEMBERS = ("resolved_worker_slot", "resolved_lease_epoch", "admission_sequence")
"""What only the root may add."""

Token = Annotated[str, Field(pattern=f"^{TOKEN_PATTERN}$", max_length=MAX_TOKEN_BYTES)]
WorkerId = Annotated[str, Field(pattern=f"^{TOKEN_PATTERN}$", max_length=MAX_WORKER_ID_BYTES)]
Sha256 = Annotated[str, Field(pattern=f"^{SHA256_PATTERN}$")]
NonZeroU64 = Annotated[int, Field(ge=1, le=U64_MAX)]
U16 = Annotated[int, Field(ge=0, le=U16_MAX)]
RelayHop = Annotated[int, Field(ge=1, le=MAX_RELAY_HOP)]


def _token_rule(max_bytes: int) -> str:
    return f"1..={max_bytes} ASCII letters, digits or . - _ : without a leading -"


_NONZERO_RULE = f"an integer in 1..={U64_MAX}"
_RULES: Mapping[str, str] = MappingProxyType(
    {
        "target": "a string that is not blank",
        "message": "a string",
        "expires_unix_ms": _NONZERO_RULE,
        "relay_hop": f"an integer in 1..={MAX_RELAY_HOP}",
        "receipt_mode": '"none" in version 1 and "worker" in version 2',
        "receipt_worker_id": _token_rule(MAX_WORKER_ID_BYTES),
        "receipt_supervisor_generation": _NONZERO_RULE,
        "receipt_cap_generation": _NONZERO_RULE,
        "resolved_worker_slot": f"an integer in 0..={U16_MAX}",
        "resolved_lease_epoch": _NONZERO_RULE,
        "admission_sequence": _NONZERO_RULE,
        "result_digest": "a SHA-256 of 64 lowercase hexadecimal digits",
    }
)


def parse_line(
    data: bytes, *, what: str, max_line_bytes: int, members: frozenset[str], error: type[ProtocolError]
) -> dict[str, Any]:
    """Decode one line of a ticket stream into an object of known members.

    ASCII blanks around the line are dropped and do not count.

    Raises:
        JsonError: not one strict JSON object.
        ProtocolError: of the class ``error``: blank, too long, or a member that the protocol does not have.
    """
    if not isinstance(data, bytes):
        raise JsonError(f"{what} must be bytes, not {type(data).__name__}", code="json-not-bytes")
    line = data.strip()
    if not line:
        raise error(f"{what}: blank line", code="line-blank")
    if len(line) > max_line_bytes:
        raise error(
            f"{what}: line takes {len(line)} bytes; max_line_bytes is {max_line_bytes}", code="line-too-long"
        )
    document = parse_object(line, what=what, max_bytes=max_line_bytes)
    if not members.issuperset(document):
        unknown = next(name for name in document if name not in members)
        raise error(f"{what}: unknown member {unknown}", code="member-unknown", member=unknown)
    return document


def rule_of(member: str) -> str:
    """Return what a member must be, in words."""
    return _RULES.get(member) or _token_rule(MAX_TOKEN_BYTES)


def first_present(value: object, members: tuple[str, ...]) -> str | None:
    """Return the first of ``members`` that ``value`` has, or None."""
    for member in members:
        if getattr(value, member) is not None:
            return member
    return None


def check_federation(
    source_hive: str | None, target_hive: str | None, *, what: str, error: type[ProtocolError]
) -> None:
    """Hold that a ticket names both hives or neither (host tickets: federation rule).

    Raises:
        ProtocolError: of the class ``error``, naming the member that is missing.
    """
    if (source_hive is None) == (target_hive is None):
        return
    present, missing = (
        ("source_hive", "target_hive") if target_hive is None else ("target_hive", "source_hive")
    )
    raise error(f"{what}: {present} needs {missing} beside it", code="federation", member=missing)


def refusal_of(invalid: ValidationError, *, what: str, error: type[ProtocolError]) -> ProtocolError:
    """Turn the first complaint of a model into one error of the protocol, naming the member."""
    first = invalid.errors(include_url=False, include_input=False, include_context=False)[0]
    member = str(first["loc"][0])
    if first["type"] == "missing":
        return error(f"{what}: member {member} is required", code="member-missing", member=member)
    return error(f"{what}: {member} must be {rule_of(member)}", code="member-type", member=member)
