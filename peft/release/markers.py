"""The small files beside ``accepted.json``: who works in the root, what blocks it, what the server loads.

Each is written and read with the same bound, so that none can be written that cannot be read back.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from ticket_agent.peft.release.canonical import decode_object, encode
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.rules import (
    check_operation_id,
    choice,
    digest_text,
    exact,
    field_names,
    integer,
    text,
)
from ticket_agent.protocol.tokens import U64_MAX

__all__ = [
    "BLOCKED_FILE",
    "MAX_MARKER_BYTES",
    "OWNER_FILE",
    "RUNTIME_FILE",
    "Blocker",
    "Owner",
    "RuntimeSelection",
]

OWNER_FILE: Final = "active-release.json"
BLOCKED_FILE: Final = "release-blocked.json"
RUNTIME_FILE: Final = "runtime.json"
MAX_MARKER_BYTES: Final = 8192
MAX_REASON_BYTES: Final = 1024

_BLOCKED_SCHEMA: Final = "ticket-agent-release-blocked/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The release that is not finished: its id and the digest of its request."""

    operation_id: str
    request_sha256: str

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)
        digest_text(self.request_sha256, "request_sha256")

    def encode(self) -> bytes:
        """The canonical bytes."""
        return encode(asdict(self))

    @classmethod
    def parse(cls, data: bytes) -> Owner:
        """Read what :meth:`encode` wrote.

        Raises:
            DocumentError: anything else.
        """
        document = decode_object(data, what=OWNER_FILE, max_bytes=MAX_MARKER_BYTES)
        with reading(OWNER_FILE):
            return cls(**exact(document, field_names(cls)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Why no release may start.

    Attributes:
        operation_id: the release whose rollback failed.
        request_sha256: digest of its request.
        reason: one line of 1..=1024 bytes for people.
        since_unix_ms: when it was found.
    """

    operation_id: str
    request_sha256: str
    reason: str
    since_unix_ms: int

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)
        digest_text(self.request_sha256, "request_sha256")
        text(self.reason, "reason", MAX_REASON_BYTES, ascii_only=False)
        integer(self.since_unix_ms, "since_unix_ms", 0, U64_MAX)

    @property
    def owner(self) -> Owner:
        """The release."""
        return Owner(operation_id=self.operation_id, request_sha256=self.request_sha256)

    def encode(self) -> bytes:
        """The canonical bytes."""
        return encode(asdict(self) | {"schema": _BLOCKED_SCHEMA})

    @classmethod
    def parse(cls, data: bytes) -> Blocker:
        """Read what :meth:`encode` wrote.

        Raises:
            DocumentError: anything else.
        """
        document = decode_object(data, what=BLOCKED_FILE, max_bytes=MAX_MARKER_BYTES)
        with reading(BLOCKED_FILE):
            exact(document, ("schema", *field_names(cls)))
            choice(document.pop("schema"), "schema", (_BLOCKED_SCHEMA,), code="release-schema")
            return cls(**document)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSelection:
    """What the server loads.

    Attributes:
        bundle_sha256: the bundle that it is started with.
        adapter_sha256: identity of the adapter in it; None for the base model.
    """

    bundle_sha256: str
    adapter_sha256: str | None

    def __post_init__(self) -> None:
        digest_text(self.bundle_sha256, "bundle_sha256")
        if self.adapter_sha256 is not None:
            digest_text(self.adapter_sha256, "adapter_sha256")

    def encode(self) -> bytes:
        """The canonical bytes."""
        return encode(asdict(self))

    @classmethod
    def parse(cls, data: bytes) -> RuntimeSelection:
        """Read what :meth:`encode` wrote.

        Raises:
            DocumentError: anything else.
        """
        document = decode_object(data, what=RUNTIME_FILE, max_bytes=MAX_MARKER_BYTES)
        with reading(RUNTIME_FILE):
            return cls(**exact(document, field_names(cls)))
