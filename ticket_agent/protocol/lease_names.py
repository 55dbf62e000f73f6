"""Names in lease control, by the root's rules: stricter than those for tickets (GPU lease: identity)."""

from __future__ import annotations

import hashlib
import re

from .errors import LeaseError

__all__ = [
    "CONTROL_KEYS",
    "RESERVED_GPU_NAMES",
    "check_lease_id",
    "check_lease_resource",
    "check_lease_subject",
    "check_preempt_reason",
    "check_request_tag",
    "lease_name",
    "request_tag",
]

CONTROL_KEYS = frozenset(
    {
        "op",
        "id",
        "subject",
        "resource",
        "ttl_s",
        "priority",
        "reason",
        "request",
        "max_active",
        "max_preemptions",
    }
)
"""Member names of control lines. Root finds a member by searching for its quoted name anywhere in the line,
so a value that equals one of them would be misread."""

RESERVED_GPU_NAMES = frozenset({"bridge", "models", "telemetry"})
"""Entries of ``/gpu`` that are no GPUs."""

TAG_BYTES = 16

_RULES = {
    "id": (re.compile(r"[A-Za-z0-9_-]{1,32}"), "1..=32 ASCII letters, digits or _ -"),
    "subject": (re.compile(r"[A-Za-z0-9_-]{1,32}"), "1..=32 ASCII letters, digits or _ -"),
    "resource": (
        re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,48}"),
        "1..=48 ASCII letters, digits or . _ : -, not . or ..",
    ),
    "reason": (re.compile(r"[A-Za-z0-9._:-]{1,24}"), "1..=24 ASCII letters, digits or . _ : -"),
    "request": (re.compile(r"[0-9a-f]{32}"), "32 lowercase hexadecimal digits"),
}


def lease_name(value: object, member: str) -> str:
    """Return ``value`` if it has the shape of the named member.

    Raises:
        LeaseError: it has not; the text gives the rule.
    """
    pattern, rule = _RULES[member]
    if isinstance(value, str) and pattern.fullmatch(value) is not None:
        return value
    raise LeaseError(f"lease {member} must be {rule}", code="lease-name", member=member)


def check_lease_id(value: object) -> str:
    """Return ``value`` if root takes it as a lease id; a ticket's ``operation_id`` may be wider.

    Raises:
        LeaseError: root would refuse or misread it.
    """
    return _unambiguous(lease_name(value, "id"), "id")


def check_lease_subject(value: object) -> str:
    """Return ``value`` if root takes it as the subject of a lease, a Worker id.

    Raises:
        LeaseError: root would refuse or misread it.
    """
    return _unambiguous(lease_name(value, "subject"), "subject")


def check_lease_resource(value: object) -> str:
    """Return ``value`` if root takes it as the resource of a lease, a GPU id.

    Raises:
        LeaseError: root would refuse or misread it.
    """
    return _unambiguous(lease_name(value, "resource"), "resource")


def check_preempt_reason(value: object) -> str:
    """Return ``value`` if root takes it as the reason of a preemption; a ticket's reason may be wider.

    Raises:
        LeaseError: root would refuse or misread it.
    """
    return _unambiguous(lease_name(value, "reason"), "reason")


def check_request_tag(value: object) -> str:
    """Return ``value`` if it is a correlation tag of a bound renew.

    Raises:
        LeaseError: it is not.
    """
    return lease_name(value, "request")


def request_tag(idempotency_key: str) -> str:
    """Return the tag by which a bound renew is recognised: half of the key's SHA-256, in hexadecimal."""
    return hashlib.sha256(idempotency_key.encode("utf-8")).digest()[:TAG_BYTES].hex()


def _unambiguous(value: str, member: str) -> str:
    if value in CONTROL_KEYS:
        raise LeaseError(
            f"lease {member} {value} equals a member name of the control line; the root would misread it",
            code="lease-control-key",
            member=member,
        )
    return value
