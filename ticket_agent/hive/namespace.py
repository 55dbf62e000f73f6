"""The namespace types, under the name by which users of a transport look for them."""

from __future__ import annotations

from ticket_agent.protocol.namespace import (
    Acked,
    AppendAnswer,
    HiveAuthError,
    HiveBusyError,
    HiveError,
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    Namespace,
    Refusal,
    RefusalKind,
    Refused,
    Unknown,
)

__all__ = [
    "Acked",
    "AppendAnswer",
    "HiveAuthError",
    "HiveBusyError",
    "HiveError",
    "HiveRefusedError",
    "HiveUnreachableError",
    "HiveViolationError",
    "Namespace",
    "Refusal",
    "RefusalKind",
    "Refused",
    "Unknown",
]
