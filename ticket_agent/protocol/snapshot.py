"""The record ``cohesix-host-snapshot/v1``: what one provider of one host was at one moment.

A record is canonical: the same value has one encoding, and nothing else is accepted. It is an observation;
it admits nothing, proves no execution and is no attestation of the host.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .errors import JsonError, SnapshotError, SnapshotLimitError
from .json_strict import dumps, parse_object
from .snapshot_names import check_entry_path
from .tokens import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DEFAULT_BOUNDS",
    "MAX_BOUNDS",
    "SCHEMA",
    "HostSnapshot",
    "SnapshotBounds",
    "SnapshotDomain",
    "SnapshotEntry",
    "UnavailableReason",
    "decode_snapshot",
    "encode_snapshot",
    "snapshot_digest",
    "with_entries",
]

SCHEMA = "cohesix-host-snapshot/v1"
MAX_PROVIDERS = 32
"""Most providers that may be enrolled for one source (record layer)."""

_MEMBERS = (
    "schema",
    "provider",
    "source_id",
    "epoch",
    "sequence",
    "observed_unix_ms",
    "ttl_ms",
    "available",
    "reason",
    "entries",
)
"""In the order of the canonical encoding."""
_ENTRY_MEMBERS = ("path", "value")
_WHAT = "host snapshot"


class UnavailableReason(StrEnum):
    """Why a provider's state is not known."""

    NOT_SUPPORTED = "not_supported"
    NOT_ENABLED = "not_enabled"
    SOURCE_FAILED = "source_failed"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBounds:
    """How large a record may be.

    Attributes:
        max_bytes: its canonical bytes, 1 to 8192.
        max_entries: its entries, 1 to 64.
        max_value_bytes: UTF-8 bytes of one value, 1 to 4096.
        max_ttl_ms: its time to live in milliseconds, 1 to 30000.

    Raises:
        SnapshotLimitError: a bound outside its range.
    """

    max_bytes: int = 8192
    max_entries: int = 64
    max_value_bytes: int = 1024
    max_ttl_ms: int = 30_000

    def __post_init__(self) -> None:
        for name, most in (
            ("max_bytes", 8192),
            ("max_entries", 64),
            ("max_value_bytes", 4096),
            ("max_ttl_ms", 30_000),
        ):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise SnapshotLimitError(
                    f"{name} must be an integer in 1..={most}, not {value!r}",
                    code="snapshot-bounds",
                    member=name,
                )


DEFAULT_BOUNDS = SnapshotBounds()
MAX_BOUNDS = SnapshotBounds(max_value_bytes=4096)
"""The widest there can be, whatever the manifest says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDomain:
    """Whose records are accepted: one source in one writer epoch, and the providers enrolled for it."""

    source_id: str
    epoch: int
    providers: frozenset[str]


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """One fact: a relative path and a text, which native collectors write as JSON."""

    path: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSnapshot:
    """One record; made by :func:`decode_snapshot`, or checked by :func:`encode_snapshot`.

    Attributes:
        provider: whose state it is.
        source_id: the host, as the manifest calls it. A correlation name, no attestation.
        epoch: the writer epoch of the manifest, u64.
        sequence: u64 from 1; grows with every record of the source.
        observed_unix_ms: when the publisher began to look, by its own clock; u64 from 1.
        ttl_ms: how long it is shown after the receiver saw the transfer begin.
        reason: why there is nothing to show; None when there is.
        entries: in ascending order of their paths; none when there is a reason.
    """

    provider: str
    source_id: str
    epoch: int
    sequence: int
    observed_unix_ms: int
    ttl_ms: int
    reason: UnavailableReason | None = None
    entries: tuple[SnapshotEntry, ...] = ()

    @property
    def available(self) -> bool:
        """Whether the provider's state was observed."""
        return self.reason is None

    @property
    def source(self) -> SnapshotDomain:
        """The domain that accepts this record and no other provider's."""
        return SnapshotDomain(
            source_id=self.source_id, epoch=self.epoch, providers=frozenset({self.provider})
        )


def snapshot_digest(data: bytes) -> str:
    """SHA-256 of a record's canonical bytes: 64 lowercase hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def encode_snapshot(snapshot: HostSnapshot, *, domain: SnapshotDomain, bounds: SnapshotBounds) -> bytes:
    """Return the canonical bytes of a record that a publisher sends.

    Entry paths are held to the rule of the strictest reader, which is narrower than the receiver's.

    Raises:
        SnapshotLimitError: too many entries or bytes.
        SnapshotError: another rule of the record is broken.
    """
    _check(snapshot, domain, bounds, publishing=True)
    data = _encode(snapshot)
    if len(data) > bounds.max_bytes:
        raise SnapshotLimitError(
            f"{_WHAT} takes {len(data)} bytes; the limit is {bounds.max_bytes}", code="snapshot-bytes"
        )
    return data


def decode_snapshot(data: bytes, *, domain: SnapshotDomain, bounds: SnapshotBounds) -> HostSnapshot:
    """Read a record as a receiver does: strictly, within its domain and bounds, and byte for byte canonical.

    Raises:
        SnapshotLimitError: nothing, too many bytes or too many entries.
        SnapshotError: anything else that is not one canonical record of the domain.
    """
    if not 1 <= len(data) <= bounds.max_bytes:
        raise SnapshotLimitError(
            f"{_WHAT} takes {len(data)} bytes; the limits are 1..={bounds.max_bytes}", code="snapshot-bytes"
        )
    try:
        document = parse_object(data, what=_WHAT, max_bytes=bounds.max_bytes)
    except JsonError as error:
        raise SnapshotError(str(error), code=error.code, member=error.member) from None
    snapshot = _snapshot_of(document)
    _check(snapshot, domain, bounds, publishing=False)
    if _encode(snapshot) != data:
        raise SnapshotError(
            f"{_WHAT} is not canonical: compact JSON, members in their order, shortest escapes",
            code="snapshot-canonical",
        )
    return snapshot


def with_entries(snapshot: HostSnapshot, entries: Iterable[SnapshotEntry]) -> HostSnapshot:
    """Return the record with these entries, sorted as they have to be."""

    def place(entry: SnapshotEntry) -> bytes:
        # A lone surrogate has a place as well; it is refused when the record is encoded.
        return entry.path.encode("utf-8", "surrogatepass")

    return replace(snapshot, entries=tuple(sorted(entries, key=place)))


def _encode(snapshot: HostSnapshot) -> bytes:
    try:
        return dumps(
            {
                "schema": SCHEMA,
                "provider": snapshot.provider,
                "source_id": snapshot.source_id,
                "epoch": snapshot.epoch,
                "sequence": snapshot.sequence,
                "observed_unix_ms": snapshot.observed_unix_ms,
                "ttl_ms": snapshot.ttl_ms,
                "available": snapshot.available,
                "reason": snapshot.reason,
                "entries": [{"path": entry.path, "value": entry.value} for entry in snapshot.entries],
            }
        )
    except JsonError as error:
        raise SnapshotError(str(error), code=error.code) from None


def _check(
    snapshot: HostSnapshot, domain: SnapshotDomain, bounds: SnapshotBounds, *, publishing: bool
) -> None:
    if len(domain.providers) > MAX_PROVIDERS:
        raise SnapshotLimitError(
            f"more than {MAX_PROVIDERS} providers are enrolled for {domain.source_id}",
            code="snapshot-providers",
        )
    if snapshot.source_id != domain.source_id:
        raise _invalid("source_id", f"must be {domain.source_id}")
    if snapshot.provider not in domain.providers:
        raise _invalid("provider", f"must be one that is enrolled for {domain.source_id}")
    if snapshot.epoch != domain.epoch:
        raise _invalid("epoch", f"must be {domain.epoch}")
    _integer(snapshot.sequence, "sequence", 1, U64_MAX)
    _integer(snapshot.observed_unix_ms, "observed_unix_ms", 1, U64_MAX)
    _integer(snapshot.ttl_ms, "ttl_ms", 1, bounds.max_ttl_ms)
    if snapshot.reason is not None and snapshot.entries:
        raise _invalid("entries", "must be empty when there is a reason")
    if len(snapshot.entries) > bounds.max_entries:
        raise SnapshotLimitError(
            f"{_WHAT} has {len(snapshot.entries)} entries; the limit is {bounds.max_entries}",
            code="snapshot-entries",
            member="entries",
        )
    for entry in snapshot.entries:
        check_entry_path(entry.path, publishing=publishing)
        _check_value(entry, bounds)
    # The paths are ASCII by now, so the order of characters is the order of bytes.
    if any(before.path >= after.path for before, after in pairwise(snapshot.entries)):
        raise _invalid("entries", "must be in ascending order of their paths, each path once")


def _check_value(entry: SnapshotEntry, bounds: SnapshotBounds) -> None:
    # A text far too long is not encoded first only to be measured.
    size = len(entry.value)
    if size <= bounds.max_value_bytes:
        size = len(entry.value.encode("utf-8", "surrogatepass"))
    if size > bounds.max_value_bytes:
        raise _invalid(
            "entries", f"hold {size} bytes under {entry.path}; the limit is {bounds.max_value_bytes}"
        )
    if "\0" in entry.value:
        raise _invalid("entries", f"hold a NUL under {entry.path}")


def _snapshot_of(document: dict[str, Any]) -> HostSnapshot:
    _members(document, _MEMBERS, _WHAT)
    if document["schema"] != SCHEMA:
        raise _invalid("schema", f"must be {SCHEMA}")
    available, reason = document["available"], document["reason"]
    if type(available) is not bool:
        raise _invalid("available", "must be true or false")
    if reason is not None and (not isinstance(reason, str) or reason not in list(UnavailableReason)):
        raise _invalid("reason", f"must be null or one of {', '.join(UnavailableReason)}")
    if available != (reason is None):
        raise _invalid("reason", "must be null exactly when available is true")
    entries = document["entries"]
    if not isinstance(entries, list):
        raise _invalid("entries", "must be an array")
    return HostSnapshot(
        provider=_text(document, "provider"),
        source_id=_text(document, "source_id"),
        epoch=_integer(document["epoch"], "epoch", 1, U64_MAX),
        sequence=_integer(document["sequence"], "sequence", 1, U64_MAX),
        observed_unix_ms=_integer(document["observed_unix_ms"], "observed_unix_ms", 1, U64_MAX),
        ttl_ms=_integer(document["ttl_ms"], "ttl_ms", 1, U64_MAX),
        reason=None if reason is None else UnavailableReason(reason),
        entries=tuple(_entry(entry) for entry in entries),
    )


def _entry(entry: object) -> SnapshotEntry:
    if not isinstance(entry, dict):
        raise _invalid("entries", "must be objects")
    _members(entry, _ENTRY_MEMBERS, f"an entry of the {_WHAT}")
    return SnapshotEntry(_text(entry, "path"), _text(entry, "value"))


def _members(document: dict[str, Any], names: tuple[str, ...], what: str) -> None:
    if set(document) != set(names):
        odd = min(set(document).symmetric_difference(names))
        raise SnapshotError(
            f"{what} must have exactly the members {', '.join(names)}; look at {odd}",
            code="snapshot-members",
            member=odd,
        )


def _text(document: dict[str, Any], name: str) -> str:
    value = document[name]
    if not isinstance(value, str):
        raise _invalid(name, "must be a string")
    return value


def _integer(value: object, name: str, low: int, high: int) -> int:
    # bool is an int to Python, and to nobody else.
    if type(value) is not int or not low <= value <= high:
        raise _invalid(name, f"must be an integer in {low}..={high}")
    return value


def _invalid(member: str, rule: str) -> SnapshotError:
    return SnapshotError(f"{_WHAT}: {member} {rule}", code=f"snapshot-{member}", member=member)
