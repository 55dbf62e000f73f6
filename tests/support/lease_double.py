"""A small in-memory hive with a lease ledger, for tests that need to lose, delay or refuse single answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ticket_agent.protocol.lease import (
    GrantControl,
    LeaseRecord,
    LeaseSummary,
    PreemptControl,
    PreemptionRecord,
    RenewBoundControl,
    RenewControl,
    parse_lease_control,
)
from ticket_agent.protocol.namespace import (
    Acked,
    AppendAnswer,
    HiveError,
    HiveRefusedError,
    HiveUnreachableError,
    Refusal,
    RefusalKind,
    Refused,
    Unknown,
)
from ticket_agent.protocol.spec import HostTicketSpec, parse_spec

if TYPE_CHECKING:
    from ticket_agent.protocol.lease import LeaseControl

WORKER = "worker-gpu-1"
GPU = "GPU-0"
LEASE = "lease-1"
LEASE_CTL = "/queen/lease/ctl"
QUEEN_CTL = "/queen/ctl"
WINDOW_BYTES = 256

NOT_FOUND = Refusal(kind=RefusalKind.INVALID_PATH, text="ERR CAT reason=invalid-path")
DENIED = Refusal(kind=RefusalKind.DENIED, text="ERR CAT reason=denied")
INVALID = Refusal(kind=RefusalKind.INVALID_PAYLOAD, text="ERR ECHO reason=policy detail=invalid-payload")


def ticket(action: str, /, **members: object) -> HostTicketSpec:
    """A root-admitted version-2 lease ticket."""
    value = {
        "schema": "host-ticket/v2",
        "id": "ticket-v2",
        "idempotency_key": "idem-v2",
        "action": action,
        "args": {},
        "receipt_mode": "worker",
        "operation_id": LEASE,
        "subject_ref": GPU,
        "receipt_worker_role": "worker-gpu",
        "receipt_worker_id": WORKER,
        "receipt_supervisor_generation": 2,
        "receipt_cap_generation": 3,
        "resolved_worker_slot": 0,
        "resolved_lease_epoch": 4,
        "admission_sequence": 5,
        **members,
    }
    return parse_spec(json.dumps(value).encode(), source="admitted")


def grant(**members: object) -> HostTicketSpec:
    return ticket("gpu.lease.grant", **members)


def renew(**members: object) -> HostTicketSpec:
    return ticket("gpu.lease.renew", **members)


def release(**members: object) -> HostTicketSpec:
    return ticket("gpu.lease.release", **members)


def ticket_v1(action: str, /, **members: object) -> HostTicketSpec:
    """A raw version-1 ticket."""
    value = {"schema": "host-ticket/v1", "id": "ticket-v1", "idempotency_key": "idem-v1", "action": action}
    return parse_spec(json.dumps({**value, **members}).encode(), source="raw")


@dataclass
class LeaseHive:
    """Implements Namespace; every fault is a plain attribute that a test sets.

    Attributes:
        answer: what happens to the next appends: "ack", "refuse", "lost" (applied, answer lost), "drop" (not
            applied, answer lost), "late" (answer lost, applied by ``arrive``), "down" (nothing is sent).
        keep_session: whether a lost answer leaves the session as it is.
        shows_nothing: whether an id without a lease reads as an empty node instead of not-found.
        broken: errors to raise for reads of a path.
        shown: lines to show for a path instead of the true ones.
    """

    gpus: list[str] = field(default_factory=lambda: [GPU, "GPU-1", "bridge", "models", "telemetry"])
    answer: str = "ack"
    keep_session: bool = False
    shows_nothing: bool = True
    capacity: int = 256
    broken: dict[str, HiveError] = field(default_factory=dict)
    shown: dict[str, list[str]] = field(default_factory=dict)
    session: int = 0
    attached: bool = False
    reads: list[str] = field(default_factory=list)
    writes: list[tuple[str, str]] = field(default_factory=list)
    leases: list[LeaseRecord] = field(default_factory=list)
    preempted: list[PreemptionRecord] = field(default_factory=list)
    total: int = 0
    seq: int = 0
    reservations: dict[str, list[str]] = field(default_factory=dict)
    spawned: int = 0
    late: tuple[str, str] | None = None

    # -- Namespace

    def ls(self, path: str) -> list[str]:
        self._reading(path)
        return list(self.gpus)

    def read(self, path: str) -> list[str]:
        self._reading(path)
        if path in self.shown:
            return list(self.shown[path])
        if path == "/proc/lease/summary":
            return [self.summary().encode()]
        if path == "/proc/lease/preemptions":
            return self.window()
        assert path.startswith("/proc/lease/by-id/"), path
        lines = [record.encode() for record in self.leases if record.id == path.rsplit("/", 1)[1]]
        if not lines and not self.shows_nothing:
            raise HiveRefusedError("CAT", path, NOT_FOUND)
        return lines

    def tail(self, path: str) -> list[str]:
        self._reading(path)
        gpu_id = path.split("/")[2]
        assert path == f"/gpu/{gpu_id}/lease"
        if gpu_id not in self.gpus:
            raise HiveRefusedError("TAIL", path, NOT_FOUND)
        return list(self.reservations.get(gpu_id, []))

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        if self.answer == "down":
            self.attached = False
            raise HiveUnreachableError("no connection to the hive")
        if session is not None and (not self.attached or session != self.session):
            raise HiveUnreachableError(f"session {session} is over; nothing was sent")
        self._attach()
        self.writes.append((path, line))
        if self.answer == "refuse":
            return Refused(INVALID)
        if self.answer == "late":
            self.late = (path, line)
        if self.answer in {"ack", "lost"}:
            try:
                self.apply(path, line)
            except ValueError:
                if self.answer == "ack":
                    return Refused(INVALID)
        if self.answer == "ack":
            return Acked()
        if not self.keep_session:
            self.attached = False
        return Unknown("connection reset")

    def close(self) -> None:
        self.attached = False

    # -- the ledger

    def arrive(self) -> None:
        """Apply the write that was still on its way."""
        assert self.late is not None
        path, line = self.late
        self.late = None
        self.apply(path, line)

    def apply(self, path: str, line: str) -> None:
        """Do what a line asks for; ValueError if the root would refuse it."""
        if path == QUEEN_CTL:
            self._queen(json.loads(line))
        else:
            assert path == LEASE_CTL
            self._lease(parse_lease_control(line))

    def grant(self, lease_id: str = LEASE, subject: str = WORKER, resource: str = GPU) -> LeaseRecord:
        """Another client's grant."""
        self._lease(GrantControl(id=lease_id, subject=subject, resource=resource, ttl_s=120, priority=0))
        return self.leases[-1]

    def preempt(self, lease_id: str = LEASE, reason: str = "other") -> PreemptionRecord:
        """Another client's preemption."""
        self._lease(PreemptControl(id=lease_id, reason=reason))
        return self.preempted[-1]

    def renew(self, lease_id: str = LEASE, request: str = "0" * 32, ttl_s: int = 9) -> None:
        """Another client's bound renewal."""
        [record] = [record for record in self.leases if record.id == lease_id]
        self._lease(
            RenewBoundControl(
                id=lease_id,
                subject=record.subject,
                resource=record.resource,
                request=request,
                ttl_s=ttl_s,
                priority=0,
            )
        )

    def reboot(self) -> None:
        """Lose everything; counters start anew."""
        self.leases, self.preempted, self.total, self.seq, self.reservations = [], [], 0, 0, {}
        self.attached = False

    def reconnect(self) -> None:
        """The next operation opens a new session."""
        self.attached = False

    def summary(self) -> LeaseSummary:
        return LeaseSummary(
            active=len(self.leases),
            preemptions=self.total,
            quotas=0,
            max_active=256,
            max_preemptions=self.capacity,
        )

    def window(self) -> list[str]:
        shown: list[str] = []
        for record in self.preempted:
            if sum(len(line) + 1 for line in [*shown, record.encode()]) > WINDOW_BYTES:
                break
            shown.append(record.encode())
        return shown

    def _lease(self, control: LeaseControl) -> None:
        found = [index for index, record in enumerate(self.leases) if record.id == getattr(control, "id", "")]
        if isinstance(control, GrantControl):
            if found:
                raise ValueError("already active")
            self.seq += 1
            self.leases.append(
                LeaseRecord(
                    id=control.id,
                    subject=control.subject,
                    resource=control.resource,
                    ttl_s=control.ttl_s,
                    priority=control.priority,
                    state="ACTIVE",
                    seq=self.seq,
                    request=None,
                )
            )
            return
        if not found:
            raise ValueError("not active")
        record = self.leases[found[0]]
        match control:
            case PreemptControl():
                self.seq += 1
                del self.leases[found[0]]
                ended = PreemptionRecord(
                    id=record.id,
                    subject=record.subject,
                    resource=record.resource,
                    reason=control.reason,
                    seq=self.seq,
                )
                self.preempted = [*self.preempted, ended][-self.capacity :]
                self.total += 1
            case RenewBoundControl():
                if (record.subject, record.resource) != (control.subject, control.resource):
                    raise ValueError("binding mismatch")
                if record.request == control.request:
                    if (record.ttl_s, record.priority) != (control.ttl_s, control.priority):
                        raise ValueError("replay changed parameters")
                    return
                self._renewed(found[0], control)
                self.leases[found[0]] = replace(self.leases[found[0]], request=control.request)
            case RenewControl():
                self._renewed(found[0], control)
            case _:
                raise ValueError("not modelled")

    def _renewed(self, index: int, control: RenewControl | RenewBoundControl) -> None:
        self.seq += 1
        self.leases[index] = replace(
            self.leases[index], ttl_s=control.ttl_s, priority=control.priority, seq=self.seq
        )

    def _queen(self, control: dict[str, object]) -> None:
        kill = control.get("kill")
        for gpu_id, log in self.reservations.items():
            for line in reversed(log):
                if f'"worker_id":"{kill}"' in line:
                    self._reserve(gpu_id, {**json.loads(line), "state": "RELEASED"})
                    return
        lease = control.get("lease")
        if not isinstance(lease, dict):
            return
        self.spawned += 1
        self._reserve(
            lease["gpu_id"],
            {
                "schema": "gpu-lease/v1",
                "state": "ACTIVE",
                "gpu_id": lease["gpu_id"],
                "worker_id": f"worker-{self.spawned}",
                "mem_mb": lease["mem_mb"],
                "streams": lease["streams"],
                "ttl_s": lease["ttl_s"],
                "priority": lease.get("priority", 0),
            },
        )

    def _reserve(self, gpu_id: str, record: dict[str, object]) -> None:
        line = json.dumps(record, separators=(",", ":"))
        self.reservations[gpu_id] = [*self.reservations.get(gpu_id, []), line]

    def _reading(self, path: str) -> None:
        self._attach()
        self.reads.append(path)
        if path in self.broken:
            raise self.broken[path]

    def _attach(self) -> None:
        if not self.attached:
            self.session += 1
            self.attached = True
