"""Capability tickets ``cohesix-ticket-<payload>.<mac>``: bytes to claims and back, and who minted them.

A ticket is a bearer secret: whoever has its text has its rights. Nothing in here shows it; what may be shown
is :attr:`Capability.fingerprint`. Deciding whether the claims suffice is in ``capability_check``.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

from .capability_bytes import CapabilityError, Reader, Writer
from .redaction import ticket_fingerprint

__all__ = [
    "MAX_TICKET_CHARS",
    "PREFIX",
    "Access",
    "Capability",
    "CapabilityError",
    "Claims",
    "Quotas",
    "Role",
    "Scope",
    "decode_ticket",
    "encode_claims",
    "mint_ticket",
    "verify_mac",
]

PREFIX: Final = "cohesix-ticket-"
MAX_TICKET_CHARS: Final = 224
"""Longest text of a ticket; 72 bytes of payload."""

MAX_SCOPES: Final = 16
MAC_BYTES: Final = 32
VERSIONS: Final = (1, 2)

_TICKET: Final = re.compile(r"cohesix-ticket-((?:[0-9a-f]{2})+)\.([0-9a-f]{64})")

_TICKS, _OPS, _TTL, _SUBJECT, _SCOPES, _QUOTAS = 1, 2, 4, 8, 16, 32
_KNOWN_FLAGS: Final = 63


class Role(StrEnum):
    """Who a ticket lets attach."""

    QUEEN = "queen"
    HEARTBEAT = "worker-heartbeat"
    GPU = "worker-gpu"
    BUS = "worker-bus"
    LORA = "worker-lora"


_ROLES: Final = tuple(Role)
"""In the order of their codes."""


class Access(IntEnum):
    """What a scope allows; the values are the codes."""

    READ = 0
    WRITE = 1
    READ_WRITE = 2

    @property
    def label(self) -> str:
        """``r``, ``w`` or ``rw``."""
        return ("r", "w", "rw")[self]

    def covers(self, other: Access) -> bool:
        """Whether this access includes the other one."""
        return self in {other, Access.READ_WRITE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A part of the namespace: the path itself and everything below it.

    Attributes:
        path: absolute path.
        access: what is allowed there.
        rate_per_s: operations a second; 0 for any number.
    """

    path: str
    access: Access
    rate_per_s: int = 0

    def holds(self, path: str) -> bool:
        """Whether ``path`` is this scope's path or below it."""
        return path == self.path or path.startswith(f"{self.path.rstrip('/')}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Limits for the whole ticket; 0 for none.

    Attributes:
        bandwidth: bytes.
        cursor_resumes: resumed tails.
        cursor_advances: advanced tails.
    """

    bandwidth: int = 0
    cursor_resumes: int = 0
    cursor_advances: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a ticket says.

    Attributes:
        role: who may attach with it.
        issued_at_ms: unix milliseconds.
        version: 1, or 2 of identity exchanges.
        ticks: budget in ticks of the target, or None.
        ops: budget in operations, or None.
        ttl_s: seconds from issue to expiry, or None for a ticket that does not expire.
        subject: whom it was issued to, or None.
        service: service of the mount it is bound to; empty for none.
        at: path of that mount; empty for none.
        scopes: parts of the namespace it is limited to; empty for no limit.
        quotas: limits for the whole ticket, or None.
    """

    role: Role
    issued_at_ms: int
    version: int = 1
    ticks: int | None = None
    ops: int | None = None
    ttl_s: int | None = None
    subject: str | None = None
    service: str = ""
    at: str = ""
    scopes: tuple[Scope, ...] = ()
    quotas: Quotas | None = None

    @property
    def expires_at_ms(self) -> int | None:
        """Unix milliseconds of the expiry, or None."""
        return None if self.ttl_s is None else self.issued_at_ms + 1000 * self.ttl_s

    def scope_for(self, path: str, access: Access) -> Scope | None:
        """The closest scope that allows this, or None."""
        allowing = [scope for scope in self.scopes if scope.holds(path) and scope.access.covers(access)]
        return max(allowing, key=lambda scope: len(scope.path), default=None)

    def allows(self, path: str, access: Access) -> bool:
        """Whether the scopes let a session do this; a ticket without scopes leaves it to the role."""
        return not self.scopes or self.scope_for(path, access) is not None


@dataclass(frozen=True, slots=True)
class Capability:
    """A decoded ticket; its MAC is not verified by decoding.

    Attributes:
        claims: what it says.
        payload: the bytes that the MAC is over.
        mac: the MAC it carries.
    """

    claims: Claims
    payload: bytes = field(repr=False)
    mac: bytes = field(repr=False)

    def reveal(self) -> str:
        """Return the ticket's text: the secret itself, for the wire and for a file with mode 0600 only."""
        return f"{PREFIX}{self.payload.hex()}.{self.mac.hex()}"

    @property
    def fingerprint(self) -> str:
        """A name for logs: the first 12 digits of the SHA-256 of the text."""
        return ticket_fingerprint(self.reveal())


def decode_ticket(text: str) -> Capability:
    """Take a ticket apart; what it claims may still be forged until ``verify_mac``.

    Raises:
        CapabilityError: it is no ticket, or not the only encoding of its claims. The text is not quoted.
    """
    if len(text) > MAX_TICKET_CHARS:
        raise CapabilityError(
            f"a ticket of {len(text)} characters exceeds the {MAX_TICKET_CHARS} of every console",
            code="ticket-length",
        )
    match = _TICKET.fullmatch(text)
    if match is None:
        raise CapabilityError(
            f"it is no ticket: expected {PREFIX}, hex digits in lower case, a dot and 64 more",
            code="ticket-form",
        )
    payload = bytes.fromhex(match[1])
    return Capability(_claims(payload), payload, bytes.fromhex(match[2]))


def encode_claims(claims: Claims) -> bytes:
    """Return the payload of a ticket.

    Raises:
        CapabilityError: a value does not fit its field.
    """
    if claims.version not in VERSIONS:
        raise CapabilityError(f"there is no ticket version {claims.version}", code="ticket-version")
    if len(claims.scopes) > MAX_SCOPES:
        raise CapabilityError(
            f"{len(claims.scopes)} scopes exceed the {MAX_SCOPES} of a ticket", code="ticket-scopes"
        )
    parts = (
        (_TICKS, claims.ticks),
        (_OPS, claims.ops),
        (_TTL, claims.ttl_s),
        (_SUBJECT, claims.subject),
        (_SCOPES, claims.scopes or None),
        (_QUOTAS, claims.quotas),
    )
    writer = Writer(compact=claims.version != 1)
    writer.fixed(claims.version, 1)
    writer.fixed(_ROLES.index(claims.role), 1)
    writer.fixed(sum(flag for flag, value in parts if value is not None), 1)
    for value in (claims.ticks, claims.ops, claims.ttl_s):
        if value is not None:
            writer.number(value)
    if claims.subject is not None:
        writer.text(claims.subject)
    writer.number(claims.issued_at_ms)
    writer.text(claims.service)
    writer.text(claims.at)
    if claims.scopes:
        writer.fixed(len(claims.scopes), 1)
        for scope in claims.scopes:
            writer.text(scope.path)
            writer.fixed(scope.access, 1)
            writer.fixed(scope.rate_per_s, 4)
    if claims.quotas is not None:
        writer.fixed(claims.quotas.bandwidth, 8)
        writer.fixed(claims.quotas.cursor_resumes, 4)
        writer.fixed(claims.quotas.cursor_advances, 4)
    return bytes(writer.data)


def mint_ticket(claims: Claims, secret: str) -> Capability:
    """Make a ticket for a lab whose secret is known.

    Raises:
        CapabilityError: the claims do not fit, or the text would be too long for a console.
        ModuleNotFoundError: the package ``blake3`` is not installed.
    """
    payload = encode_claims(claims)
    minted = Capability(claims, payload, _mac(payload, secret))
    # Decoding is the proof that a console will read what was meant, within its bounds.
    if decode_ticket(minted.reveal()).claims != claims:
        raise CapabilityError("these claims have no encoding of their own", code="ticket-canonical")
    return minted


def verify_mac(capability: Capability, secret: str) -> bool:
    """Whether the ticket was minted with ``secret``.

    Raises:
        ModuleNotFoundError: the package ``blake3`` is not installed.
    """
    return hmac.compare_digest(capability.mac, _mac(capability.payload, secret))


def _claims(payload: bytes) -> Claims:
    version = payload[0]
    if version not in VERSIONS:
        raise CapabilityError(f"ticket version {version} is not known here", code="ticket-version")
    reader = Reader(payload, start=1, compact=version != 1)
    role = reader.fixed(1)
    if role >= len(_ROLES):
        raise CapabilityError(f"ticket role {role} is not known here", code="ticket-role")
    flags = reader.fixed(1)
    if flags & ~_KNOWN_FLAGS:
        raise CapabilityError("the ticket has sections that are not known here", code="ticket-flags")
    ticks = reader.number() if flags & _TICKS else None
    ops = reader.number() if flags & _OPS else None
    ttl_s = reader.number() if flags & _TTL else None
    subject = reader.text() if flags & _SUBJECT else None
    issued_at_ms = reader.number()
    service, at = reader.text(), reader.text()
    scopes = _scopes(reader) if flags & _SCOPES else ()
    quotas = _quotas(reader) if flags & _QUOTAS else None
    reader.end()
    if version != 1 and ((flags & _SCOPES and not scopes) or quotas == Quotas()):
        raise CapabilityError("the ticket has an empty section", code="ticket-canonical")
    return Claims(
        role=_ROLES[role],
        issued_at_ms=issued_at_ms,
        version=version,
        ticks=ticks,
        ops=ops,
        ttl_s=ttl_s,
        subject=subject,
        service=service,
        at=at,
        scopes=scopes,
        quotas=quotas,
    )


def _scopes(reader: Reader) -> tuple[Scope, ...]:
    count = reader.fixed(1)
    if count > MAX_SCOPES:
        raise CapabilityError(f"{count} scopes exceed the {MAX_SCOPES} of a ticket", code="ticket-scopes")
    return tuple(_scope(reader) for _ in range(count))


def _scope(reader: Reader) -> Scope:
    path, access = reader.text(), reader.fixed(1)
    if access > Access.READ_WRITE:
        raise CapabilityError(f"access {access} of a scope is not known here", code="ticket-access")
    return Scope(path=path, access=Access(access), rate_per_s=reader.fixed(4))


def _quotas(reader: Reader) -> Quotas:
    return Quotas(bandwidth=reader.fixed(8), cursor_resumes=reader.fixed(4), cursor_advances=reader.fixed(4))


def _mac(payload: bytes, secret: str) -> bytes:
    from blake3 import blake3  # noqa: PLC0415 - an optional package, and only tickets need it

    return blake3(payload, key=blake3(secret.encode()).digest()).digest()
