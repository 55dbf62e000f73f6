"""A receiver's status of one snapshot: the line of a ``status`` node (host snapshots, status line)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .errors import RecordLineError, SnapshotError
from .records import parse_number
from .snapshot import MAX_BOUNDS, HostSnapshot
from .tokens import check_sha256

__all__ = ["STATUS_SCHEMA", "SnapshotStatus", "Withdrawn", "encode_status", "parse_status", "status_of"]

STATUS_SCHEMA = "host-snapshot-status/v1"
MAX_STATUS_BYTES = 1024
_WHAT = "snapshot status"
_NEEDED = ("schema", "state", "source", "provider", "sequence")
_VISIBLE = ("epoch", "observed_unix_ms", "ttl_ms", "sha256")


class Withdrawn(StrEnum):
    """Why a receiver shows no record."""

    UNOBSERVED = "unobserved"
    EXPIRED = "expired"
    CLOCK_REGRESSED = "clock_regressed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStatus:
    """What a receiver says about one pair of provider and source.

    Attributes:
        source_id: whose snapshot.
        provider: of what.
        sequence: of the last record that was accepted, visible or not; 0 when there was none.
        available: the visible record says that the provider's state was observed.
        reason: why no record is visible; None when one is, and then the members below are set.
        epoch: of the visible record, as are ``observed_unix_ms``, ``ttl_ms`` and ``sha256``.
    """

    source_id: str
    provider: str
    sequence: int
    available: bool = False
    reason: Withdrawn | None = None
    epoch: int | None = None
    observed_unix_ms: int | None = None
    ttl_ms: int | None = None
    sha256: str | None = None

    @property
    def visible(self) -> bool:
        """Whether a record is shown."""
        return self.reason is None


def status_of(snapshot: HostSnapshot, sha256: str) -> SnapshotStatus:
    """The status while ``snapshot`` is visible."""
    return SnapshotStatus(
        source_id=snapshot.source_id,
        provider=snapshot.provider,
        sequence=snapshot.sequence,
        available=snapshot.available,
        epoch=snapshot.epoch,
        observed_unix_ms=snapshot.observed_unix_ms,
        ttl_ms=snapshot.ttl_ms,
        sha256=sha256,
    )


def encode_status(status: SnapshotStatus) -> str:
    """Write the line as a receiver does, without a newline."""
    state = "available" if status.available else "unavailable"
    line = f"schema={STATUS_SCHEMA} state={state} source={status.source_id} provider={status.provider}"
    if status.reason is not None:
        return f"{line} sequence={status.sequence} reason={status.reason}"
    return (
        f"{line} epoch={status.epoch} sequence={status.sequence} observed_unix_ms={status.observed_unix_ms}"
        f" ttl_ms={status.ttl_ms} sha256={status.sha256}"
    )


def parse_status(line: str) -> SnapshotStatus:
    """Read a status; fields that a newer receiver adds are passed over.

    Raises:
        SnapshotError: a field missing, repeated, malformed or out of range.
    """
    try:
        return _status(_fields(line))
    except RecordLineError as error:
        raise SnapshotError(str(error), code=error.code, member=error.member) from None


def _fields(line: str) -> dict[str, str]:
    if len(line) > MAX_STATUS_BYTES or not line.isascii():
        raise SnapshotError(
            f"{_WHAT} is not one line of ASCII of at most {MAX_STATUS_BYTES} bytes", code="record-line"
        )
    fields: dict[str, str] = {}
    for field in line.split(" "):
        key, separator, value = field.partition("=")
        if not separator or not key or not value:
            raise SnapshotError(f"{_WHAT}: {field[:64]!r} is no key=value field", code="record-field")
        if key in fields:
            raise SnapshotError(f"{_WHAT}: {key} appears more than once", code="record-repeated", member=key)
        fields[key] = value
    return fields


def _status(fields: dict[str, str]) -> SnapshotStatus:
    _require(fields, _NEEDED)
    if fields["schema"] != STATUS_SCHEMA:
        raise SnapshotError(f"{_WHAT}: schema must be {STATUS_SCHEMA}", code="record-schema", member="schema")
    state, reason = fields["state"], fields.get("reason")
    if state not in {"available", "unavailable"}:
        raise SnapshotError(
            f"{_WHAT}: state must be available or unavailable", code="record-state", member="state"
        )
    sequence = parse_number(fields, "sequence", what=_WHAT)
    source_id, provider = fields["source"], fields["provider"]
    if reason is not None:
        if reason not in list(Withdrawn) or state != "unavailable":
            raise SnapshotError(
                f"{_WHAT}: reason must be one of {', '.join(Withdrawn)}, of an unavailable snapshot",
                code="record-reason",
                member="reason",
            )
        return SnapshotStatus(
            source_id=source_id, provider=provider, sequence=sequence, reason=Withdrawn(reason)
        )
    _require(fields, _VISIBLE)
    return SnapshotStatus(
        source_id=source_id,
        provider=provider,
        sequence=sequence,
        available=state == "available",
        epoch=parse_number(fields, "epoch", what=_WHAT, low=1),
        observed_unix_ms=parse_number(fields, "observed_unix_ms", what=_WHAT, low=1),
        ttl_ms=parse_number(fields, "ttl_ms", what=_WHAT, low=1, high=MAX_BOUNDS.max_ttl_ms),
        sha256=check_sha256(fields["sha256"], member="sha256", error=RecordLineError),
    )


def _require(fields: dict[str, str], keys: tuple[str, ...]) -> None:
    for key in keys:
        if key not in fields:
            raise SnapshotError(f"{_WHAT}: field {key} is missing", code="record-missing", member=key)
