"""Ticket documents to start from, and strategies for valid ones."""

from __future__ import annotations

import json
import string
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import strategies as st

from ticket_agent.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

RAW: dict[str, Any] = {
    "schema": "host-ticket/v2",
    "id": "ticket-1",
    "idempotency_key": "key-1",
    "action": "gpu.lease.grant",
    "args": {"ttl_s": 30},
    "receipt_mode": "worker",
    "operation_id": "lease-1",
    "subject_ref": "GPU-0",
    "receipt_worker_role": "worker-gpu",
    "receipt_worker_id": "worker-1",
    "receipt_supervisor_generation": 2,
    "receipt_cap_generation": 3,
}
ADMISSION: dict[str, Any] = {"resolved_worker_slot": 0, "resolved_lease_epoch": 4, "admission_sequence": 5}
ADMITTED = RAW | ADMISSION
V1: dict[str, Any] = {
    "schema": "host-ticket/v1",
    "id": "ticket-1",
    "idempotency_key": "key-1",
    "action": "systemd.restart",
}
FEDERATED = V1 | {
    "source_hive": "hive-a",
    "target_hive": "hive-b",
    "relay_hop": 2,
    "relay_correlation_id": "ticket-1:key-1:hive-a:hive-b",
}
STATES = ("queued", "claimed", "running", "succeeded", "failed", "expired")


def outcome(function: Callable[[], T]) -> T | ProtocolError:
    """Return what the function returns or the refusal it raises; any other exception passes."""
    try:
        return function()
    except ProtocolError as error:
        return error


def line(document: object) -> bytes:
    """Encode a document as a caller would, with the standard library alone."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


_TOKEN_HEAD = string.ascii_letters + string.digits + "._:"


def tokens(max_size: int = 128) -> st.SearchStrategy[str]:
    """Texts that keep the token rule."""
    tail = st.text(_TOKEN_HEAD + "-", max_size=max_size - 1)
    return st.builds(str.__add__, st.sampled_from(_TOKEN_HEAD), tail)


nonzero_u64 = st.integers(1, 2**64 - 1)
sha256s = st.text("0123456789abcdef", min_size=64, max_size=64)
unicode_text = st.text(st.characters(exclude_categories=["Cs"]))

_term_args = st.fixed_dictionaries(
    {}, optional={"ttl_s": st.integers(1, 2**32 - 1), "priority": st.integers(0, 255)}
)
_ARGS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "gpu.lease.grant": _term_args,
    "gpu.lease.renew": _term_args,
    "gpu.lease.release": st.fixed_dictionaries(
        {},
        optional={
            "reason": st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=32),
        },
    ),
    "peft.export": st.just({}),
    "peft.import": st.fixed_dictionaries(
        {"adapter_ref": tokens(), "job_id": tokens()},
        optional={"adapter_sha256": sha256s, "lora_sha256": sha256s, "metrics_sha256": sha256s},
    ),
    "peft.activate": st.just({}),
    "peft.rollback": st.just({}),
    "peft.release": st.fixed_dictionaries(
        {"request_sha256": sha256s}, optional={"recovery_only": st.booleans()}
    ),
}


@st.composite
def raw_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Valid version-2 requests of a caller."""
    action = draw(st.sampled_from(sorted(_ARGS)))
    document: dict[str, Any] = {
        "schema": "host-ticket/v2",
        "id": draw(tokens()),
        "idempotency_key": draw(tokens()),
        "action": action,
        "args": draw(_ARGS[action]),
    }
    if draw(st.booleans()):
        document["expires_unix_ms"] = draw(nonzero_u64)
    return document | {
        "receipt_mode": "worker",
        "operation_id": draw(tokens()),
        "subject_ref": draw(tokens()),
        "receipt_worker_role": "worker-gpu" if action.startswith("gpu.") else "worker-lora",
        "receipt_worker_id": draw(tokens(32)),
        "receipt_supervisor_generation": draw(nonzero_u64),
        "receipt_cap_generation": draw(nonzero_u64),
    }


@st.composite
def admitted_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Valid version-2 requests as root admits them."""
    return draw(raw_documents()) | {
        "resolved_worker_slot": draw(st.integers(0, 65535)),
        "resolved_lease_epoch": draw(nonzero_u64),
        "admission_sequence": draw(nonzero_u64),
    }


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | unicode_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(unicode_text, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def v1_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Valid version-1 requests."""
    document: dict[str, Any] = {
        "schema": "host-ticket/v1",
        "id": draw(tokens()),
        "idempotency_key": draw(tokens()),
        "action": draw(tokens(24)),
    }
    args = draw(json_values)
    if args is not None:
        document["args"] = args
    if draw(st.booleans()):
        document |= {"source_hive": draw(tokens(24)), "target_hive": draw(tokens(24))}
    if draw(st.booleans()):
        document["relay_hop"] = draw(st.integers(1, 32))
    if draw(st.booleans()):
        document["relay_correlation_id"] = draw(tokens())
    if draw(st.booleans()):
        document["receipt_mode"] = "none"
    return document
