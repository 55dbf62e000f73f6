"""Worker telemetry: is the receipt Worker READY under exactly the admitted identity? (worker telemetry)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .errors import ProtocolError, WorkerStateError
from .json_strict import dumps, parse_object
from .tokens import MAX_WORKER_ID_BYTES, U16_MAX, U32_MAX, U64_MAX, check_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .spec import HostTicketSpec

__all__ = [
    "MAX_LINES",
    "WorkerState",
    "encode_worker_state",
    "newest_worker_state",
    "parse_worker_state",
    "ready_refusal",
]

SCHEMAS = {"v1": "worker-runtime-state/v1", "v2": "worker-runtime-state/v2"}
MAX_BYTES = {SCHEMAS["v1"]: 512, SCHEMAS["v2"]: 255}
"""Longest line without its newline. Version 1 has no bound of its own; its widest line takes 420 bytes."""
MAX_LINES = 64
"""Newest telemetry lines that may decide."""

_IDENTITY = ("slot", "lease_epoch", "supervisor_generation", "cap_generation")
_SEQUENCE = ("ready_sequence", "control_sequence", "receipt_sequence", "completion_sequence")
_NAMES = ("worker_id", "role", "state")
_V1_MEMBERS = frozenset({"schema", *_NAMES, *_IDENTITY, *_SEQUENCE})
_V2_MEMBERS = frozenset({"schema", *_NAMES, "identity", "sequence"})
_WHAT = "worker state"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """One revision of a Worker's state.

    Attributes:
        worker_id: the Worker.
        role: its role, such as ``worker-gpu``.
        state: ``absent``, ``queued``, ``starting``, ``ready``, ``closing``, ``faulted`` or ``terminal``.
        slot: identity, together with ``lease_epoch``, ``supervisor_generation`` and ``cap_generation``; a
            respawned Worker has another one.
        ready_sequence: nonzero once the Worker was published.
        control_sequence: control record in flight, or 0.
        receipt_sequence: newest receipt.
        completion_sequence: newest completed receipt.
    """

    worker_id: str
    role: str
    state: str
    slot: int
    lease_epoch: int
    supervisor_generation: int
    cap_generation: int
    ready_sequence: int
    control_sequence: int
    receipt_sequence: int
    completion_sequence: int


def parse_worker_state(line: str) -> WorkerState:
    """Read one telemetry line of either schema.

    Raises:
        WorkerStateError: another schema, an unknown, missing or mistyped member, a value out of range.
        JsonError: no strict JSON object.
    """
    data = line.encode("utf-8", "surrogatepass").strip()
    document = parse_object(data, what=_WHAT, max_bytes=max(MAX_BYTES.values()))
    schema = document.get("schema")
    if schema == SCHEMAS["v1"]:
        _check_members(document, _V1_MEMBERS)
        numbers = {name: _number(document[name], name, U64_MAX) for name in (*_IDENTITY, *_SEQUENCE)}
        _number(numbers["slot"], "slot", U16_MAX)
    elif schema == SCHEMAS["v2"]:
        if len(data) > MAX_BYTES[schema]:
            raise WorkerStateError(
                f"{_WHAT}: line takes {len(data)} bytes; the limit is {MAX_BYTES[schema]}", code="too-long"
            )
        _check_members(document, _V2_MEMBERS)
        numbers = _array(document, "identity", _IDENTITY) | _array(document, "sequence", _SEQUENCE)
    else:
        raise WorkerStateError(
            f"{_WHAT}: schema must be {' or '.join(SCHEMAS.values())}", code="schema", member="schema"
        )
    worker_id, role, state = (
        check_token(document[name], member=name, error=WorkerStateError) for name in _NAMES
    )
    check_token(worker_id, member="worker_id", max_bytes=MAX_WORKER_ID_BYTES, error=WorkerStateError)
    return WorkerState(worker_id=worker_id, role=role, state=state, **numbers)


def encode_worker_state(state: WorkerState, *, schema: Literal["v1", "v2"]) -> str:
    """Write a telemetry line, without its newline."""
    names = {name: getattr(state, name) for name in _NAMES}
    numbers: dict[str, object]
    if schema == "v1":
        numbers = {name: getattr(state, name) for name in (*_IDENTITY, *_SEQUENCE)}
    else:
        numbers = {
            "identity": [getattr(state, name) for name in _IDENTITY],
            "sequence": [getattr(state, name) for name in _SEQUENCE],
        }
    return dumps({"schema": SCHEMAS[schema], **names, **numbers}).decode("utf-8")


def newest_worker_state(lines: Sequence[str], worker_id: str) -> WorkerState | None:
    """Return the newest state of one Worker.

    The telemetry ring wraps by bytes and takes foreign text, so fragments and other lines are skipped rather
    than refused.

    Args:
        lines: telemetry, oldest first; only the newest 64 are looked at.
        worker_id: the Worker whose line decides.
    """
    for line in reversed(lines[-MAX_LINES:]):
        try:
            state = parse_worker_state(line)
        except ProtocolError:
            continue
        if state.worker_id == worker_id:
            return state
    return None


def ready_refusal(state: WorkerState | None, spec: HostTicketSpec) -> str | None:
    """Tell in one line why the receipt Worker of an admitted ticket is not READY; None when it is."""
    worker = spec.receipt_worker_id
    if state is None:
        return f"no runtime state of receipt Worker {worker} is visible in its newest {MAX_LINES} lines"
    if state.state != "ready":
        return f"receipt Worker {worker} is {state.state}, not READY"
    if state.ready_sequence == 0:
        return f"receipt Worker {worker} was never published as READY"
    admitted = {
        "worker_id": worker,
        "role": spec.receipt_worker_role,
        "slot": spec.resolved_worker_slot,
        "lease_epoch": spec.resolved_lease_epoch,
        "supervisor_generation": spec.receipt_supervisor_generation,
        "cap_generation": spec.receipt_cap_generation,
    }
    for name, expected in admitted.items():
        seen = getattr(state, name)
        if seen != expected:
            return f"receipt Worker {worker} is another one now: {name} is {seen}, admitted was {expected}"
    return None


def _check_members(document: dict[str, Any], members: frozenset[str]) -> None:
    for name in document:
        if name not in members:
            raise WorkerStateError(f"{_WHAT}: unknown member {name}", code="member-unknown", member=name)
    for name in sorted(members):
        if name not in document:
            raise WorkerStateError(f"{_WHAT}: member {name} is missing", code="member-missing", member=name)


def _array(document: dict[str, Any], member: str, names: tuple[str, ...]) -> dict[str, int]:
    values = document[member]
    if not isinstance(values, list) or len(values) != len(names):
        raise WorkerStateError(
            f"{_WHAT}: {member} must be {len(names)} numbers", code="member-type", member=member
        )
    return {name: _number(value, member, U32_MAX) for name, value in zip(names, values, strict=True)}


def _number(value: object, member: str, high: int) -> int:
    if type(value) is int and 0 <= value <= high:
        return value
    raise WorkerStateError(
        f"{_WHAT}: {member} must be an integer in 0..={high}", code="member-range", member=member
    )
