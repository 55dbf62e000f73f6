"""Lease control lines and the root's lease records (GPU lease: control line, observation files)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import LeaseError, RecordLineError
from .json_strict import dumps, parse_object
from .lease_names import (
    CONTROL_KEYS,
    RESERVED_GPU_NAMES,
    check_lease_id,
    check_lease_resource,
    check_lease_subject,
    check_preempt_reason,
    check_request_tag,
    lease_name,
    request_tag,
)
from .records import parse_fields, parse_number
from .tokens import U8_MAX, U32_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "CONTROL_KEYS",
    "RESERVED_GPU_NAMES",
    "GrantControl",
    "LeaseControl",
    "LeaseRecord",
    "LeaseSummary",
    "PreemptControl",
    "PreemptionRecord",
    "QuotaControl",
    "RenewBoundControl",
    "RenewControl",
    "check_lease_id",
    "check_lease_resource",
    "check_lease_subject",
    "check_preempt_reason",
    "check_request_tag",
    "parse_lease_control",
    "parse_lease_record",
    "parse_lease_summary",
    "parse_preemption_record",
    "request_tag",
]

MAX_CONTROL_BYTES = 2048
ACTIVE_STATES = ("ACTIVE", "active")
"""The target writes the first, the host model the second."""


def _bounded(low: int, high: int) -> Callable[[object, str], int]:
    def check(value: object, member: str) -> int:
        if type(value) is int and low <= value <= high:
            return value
        raise LeaseError(
            f"lease {member} must be an integer in {low}..={high}", code="lease-range", member=member
        )

    return check


_CHECKS: Mapping[str, Callable[[object, str], object]] = {
    "id": lambda value, _: check_lease_id(value),
    "subject": lambda value, _: check_lease_subject(value),
    "resource": lambda value, _: check_lease_resource(value),
    "reason": lambda value, _: check_preempt_reason(value),
    "request": lambda value, _: check_request_tag(value),
    "ttl_s": _bounded(1, U32_MAX),
    "priority": _bounded(0, U8_MAX),
    "max_active": _bounded(1, U32_MAX),
    "max_preemptions": _bounded(1, U32_MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Control:
    """A control line; constructing one checks every value by the root's rules (raises LeaseError)."""

    op: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(self):
            _CHECKS[field.name](getattr(self, field.name), field.name)

    def encode(self) -> str:
        """Write the line without its newline, members sorted by name."""
        members = {"op": self.op, **asdict(self)}
        return dumps({name: members[name] for name in sorted(members)}).decode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantControl(_Control):
    """Grant ``resource`` to ``subject`` for ``ttl_s`` seconds; refused while the id is active."""

    op: ClassVar[str] = "grant"
    id: str
    subject: str
    resource: str
    ttl_s: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewControl(_Control):
    """Renew an active lease, whoever holds it."""

    op: ClassVar[str] = "renew"
    id: str
    ttl_s: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewBoundControl(_Control):
    """Renew a lease of exactly this binding; repeating the same ``request`` is no second renew."""

    op: ClassVar[str] = "renew-bound"
    id: str
    subject: str
    resource: str
    request: str
    ttl_s: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptControl(_Control):
    """End an active lease."""

    op: ClassVar[str] = "preempt"
    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaControl(_Control):
    """Store a quota; the root does not enforce it on grants."""

    op: ClassVar[str] = "quota"
    subject: str
    resource: str
    max_active: int
    max_preemptions: int


LeaseControl = GrantControl | RenewControl | RenewBoundControl | PreemptControl | QuotaControl

_CONTROLS: Mapping[str, type[LeaseControl]] = {
    control.op: control
    for control in (GrantControl, RenewControl, RenewBoundControl, PreemptControl, QuotaControl)
}


def parse_lease_control(text: str) -> LeaseControl:
    """Read one control line as strictly as the root does.

    Raises:
        LeaseError: unknown op, unknown or missing member, a nested or mistyped value, a value out of range.
        JsonError: no strict JSON object.
    """
    document = parse_object(
        text.encode("utf-8", "surrogatepass"), what="lease control", max_bytes=MAX_CONTROL_BYTES
    )
    op = document.pop("op", None)
    control = _CONTROLS.get(op) if isinstance(op, str) else None
    if control is None:
        raise LeaseError(f"lease op must be one of {', '.join(_CONTROLS)}", code="lease-op", member="op")
    names = {field.name for field in fields(control)}
    for name in document:
        if name not in names:
            raise LeaseError(f"lease {op} has no member {name}", code="member-unknown", member=name)
    for name in sorted(names):
        if name not in document:
            raise LeaseError(f"lease {op} needs member {name}", code="member-missing", member=name)
    members: dict[str, Any] = document
    return control(**members)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """One active lease, a line of ``/proc/lease/active`` or ``/proc/lease/by-id/<id>``.

    Attributes:
        id: the lease.
        subject: Worker that holds it.
        resource: GPU.
        ttl_s: seconds granted; stored, never enforced by the root.
        priority: 0..=255.
        state: ``ACTIVE`` on the target, ``active`` on the host model.
        seq: number of the change that last touched it, from the counter that preemptions share.
        request: tag of the newest bound renew, if one landed.
    """

    id: str
    subject: str
    resource: str
    ttl_s: int
    priority: int
    state: str = "ACTIVE"
    seq: int
    request: str | None = None

    def encode(self) -> str:
        """Write the line as the root does, without its newline."""
        line = (
            f"id={self.id} subject={self.subject} resource={self.resource} ttl_s={self.ttl_s} "
            f"priority={self.priority} state={self.state} seq={self.seq}"
        )
        return line if self.request is None else f"{line} request={self.request}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRecord:
    """One ended lease, a line of ``/proc/lease/preemptions``."""

    id: str
    subject: str
    resource: str
    reason: str
    seq: int

    def encode(self) -> str:
        """Write the line as the root does, without its newline."""
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSummary:
    """The line of ``/proc/lease/summary``.

    Attributes:
        active: leases active now.
        preemptions: preemptions since boot, not just the retained ones.
        quotas: quotas stored.
        max_active: capacity of the active list.
        max_preemptions: preemptions that are retained.
    """

    active: int
    preemptions: int
    quotas: int
    max_active: int
    max_preemptions: int

    def encode(self) -> str:
        """Write the line as the root does, without its newline."""
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def parse_lease_record(line: str) -> LeaseRecord:
    """Read one active lease.

    Raises:
        RecordLineError: an unknown, missing or repeated field, a bad number, or another state.
        LeaseError: a name that breaks the root's rules.
    """
    what = "lease record"
    keys = ("id", "subject", "resource", "ttl_s", "priority", "state", "seq")
    values = parse_fields(line, what=what, keys=keys, optional=("request",))
    if values["state"] not in ACTIVE_STATES:
        raise RecordLineError(f"{what}: state must be ACTIVE", code="record-state", member="state")
    return LeaseRecord(
        id=lease_name(values["id"], "id"),
        subject=lease_name(values["subject"], "subject"),
        resource=lease_name(values["resource"], "resource"),
        ttl_s=parse_number(values, "ttl_s", what=what, low=1, high=U32_MAX),
        priority=parse_number(values, "priority", what=what, high=U8_MAX),
        state=values["state"],
        seq=parse_number(values, "seq", what=what, low=1),
        request=check_request_tag(values["request"]) if "request" in values else None,
    )


def parse_preemption_record(line: str) -> PreemptionRecord:
    """Read one preemption.

    Raises:
        RecordLineError: an unknown, missing or repeated field, or a bad number.
        LeaseError: a name that breaks the root's rules.
    """
    what = "preemption record"
    values = parse_fields(line, what=what, keys=("id", "subject", "resource", "reason", "seq"))
    return PreemptionRecord(
        id=lease_name(values["id"], "id"),
        subject=lease_name(values["subject"], "subject"),
        resource=lease_name(values["resource"], "resource"),
        reason=lease_name(values["reason"], "reason"),
        seq=parse_number(values, "seq", what=what, low=1),
    )


def parse_lease_summary(line: str) -> LeaseSummary:
    """Read the summary.

    Raises:
        RecordLineError: an unknown, missing or repeated field, or a bad number.
    """
    what = "lease summary"
    names = [field.name for field in fields(LeaseSummary)]
    values = parse_fields(line, what=what, keys=names)
    return LeaseSummary(**{name: parse_number(values, name, what=what) for name in names})
