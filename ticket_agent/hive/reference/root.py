"""The root task's memory of one boot, and what control lines do to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.lease import (
    GrantControl,
    LeaseControl,
    PreemptControl,
    QuotaControl,
    RenewBoundControl,
    request_tag,
)

from .admission import AdmissionDesk
from .errors import invalid_payload
from .gpus import GpuInventory, Reservation
from .leases import LeaseLedger
from .lifecycle import Lifecycle
from .queen_ctl import Kill, SpawnGpu, parse_queen_control
from .results import ResultDesk
from .rings import LineLog
from .snapshot_receiver import SnapshotReceiver
from .ticket_logs import TicketLogs
from .workers import Phase, WorkerEntry, WorkerTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment
    from ticket_agent.protocol.spec import HostTicketSpec

    from .exports import ExportJobs
    from .lab import LabBook
    from .profile import HiveProfile

__all__ = ["Root"]

_LOG_BYTES: Final = 16384
_LOG_LINES: Final = 64
_ACTION_OF_KIND: Final[Mapping[str, str]] = {
    "grant": "gpu.lease.grant",
    "renew-bound": "gpu.lease.renew",
    "renew": "gpu.lease.renew",
    "preempt": "gpu.lease.release",
}


class Root:
    """All state that lives in the root's memory: a reboot makes a new one."""

    def __init__(
        self,
        profile: HiveProfile,
        *,
        clock: Callable[[], int],
        gpus: GpuInventory,
        exports: ExportJobs,
        book: LabBook,
        snapshots: SnapshotEnrolment | None = None,
    ) -> None:
        self.profile = profile
        self.book = book
        self.gpus = gpus
        self.exports = exports
        self.lifecycle = Lifecycle(clock)
        self.kernel_log = LineLog(max_bytes=_LOG_BYTES, max_frames=_LOG_LINES)
        self.workers = WorkerTable(profile)
        self.leases = LeaseLedger(profile)
        self.logs = TicketLogs(profile, book.on_append)
        self.admissions = AdmissionDesk(profile, workers=self.workers, logs=self.logs, gpu_ids=gpus.ids)
        self.results = ResultDesk(
            profile,
            admissions=self.admissions,
            workers=self.workers,
            logs=self.logs,
            on_terminal=book.on_terminal,
        )
        self.snapshots = None if snapshots is None else SnapshotReceiver(snapshots)

    def spawn(self, role: str, worker_id: str | None = None, *, ready: bool = True) -> WorkerEntry:
        """Spawn a Worker; unless told otherwise it becomes READY at once."""
        entry = self.workers.spawn(role, worker_id)
        if ready:
            self.workers.move(entry, Phase.STARTING)
            self.workers.move(entry, Phase.READY)
            self.kernel_log.append([f"WORKER_TASK_READY worker={entry.worker_id} role={role}"])
        return entry

    def tear_down(self, entry: WorkerEntry) -> None:
        """End a Worker and what it had reserved; an ended one stays as it is."""
        if entry.phase is Phase.TERMINAL:
            return
        if entry.phase is not Phase.CLOSING:
            self.workers.move(entry, Phase.CLOSING)
            self.workers.sync(entry)
        self.workers.move(entry, Phase.TERMINAL)
        self.workers.sync(entry)
        self.gpus.release(entry.worker_id)

    def lease_control(self, payload: str) -> None:
        """Apply a line of ``/queen/lease/ctl``. No lifecycle state gates it.

        Raises:
            RefusalError: invalid-payload or buffer-full.
        """
        control = self.leases.apply(payload)
        if control is not None:
            kind, subject = _name(control)
            self.book.on_effect(kind, subject, self._cause(kind, control))

    def queen_control(self, payload: str) -> None:
        """Apply a line of ``/queen/ctl``.

        Raises:
            RefusalError: invalid-payload, or busy when no Worker slot is free.
        """
        control = parse_queen_control(payload)
        if isinstance(control, Kill):
            entry = self.workers.get(control.worker_id)
            if entry is None or entry.phase is Phase.TERMINAL:
                raise invalid_payload()
            self.tear_down(entry)
            self.book.on_effect("kill", control.worker_id, None)
        elif isinstance(control, SpawnGpu):
            if control.gpu_id not in self.gpus.ids():
                raise invalid_payload()
            entry = self.spawn("worker-gpu")
            self.gpus.reserve(Reservation(spawn=control, worker_id=entry.worker_id))
            self.book.on_effect("spawn", control.gpu_id, None)
        else:
            self.spawn(control.role)
            self.book.on_effect("spawn", control.role, None)

    def _cause(self, kind: str, control: LeaseControl) -> int | None:
        """Find the admission that asked for a mutation: an open one first, else the newest that fits."""
        if isinstance(control, QuotaControl):
            return None
        fitting = [
            admission
            for admission in self.admissions.of_operation(control.id)
            if admission.admitted.action == _ACTION_OF_KIND[kind] and _asks_for(admission.admitted, control)
        ]
        if not fitting:
            return None
        return max(fitting, key=lambda admission: (admission.outcome is None, admission.sequence)).sequence


def _name(control: LeaseControl) -> tuple[str, str]:
    match control:
        case GrantControl():
            return "grant", control.id
        case RenewBoundControl():
            return "renew-bound", control.id
        case PreemptControl():
            return "preempt", control.id
        case QuotaControl():
            return "quota", f"{control.subject}@{control.resource}"
    return "renew", control.id


def _asks_for(spec: HostTicketSpec, control: LeaseControl) -> bool:
    if isinstance(control, GrantControl | RenewBoundControl):
        pinned = (spec.receipt_worker_id, spec.subject_ref) == (control.subject, control.resource)
        if isinstance(control, GrantControl):
            return pinned
        return pinned and request_tag(spec.idempotency_key) == control.request
    return True
