"""Admission of requests on ``/host/tickets/spec`` (root side, request admission)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.actions import RECEIPT_ACTIONS, V1_ACTIONS
from ticket_agent.protocol.current import correlation_digest
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.spec import HostTicketSpec, parse_spec

from .errors import busy, invalid_payload
from .ticket_logs import REQUEST_SCHEMAS, Entry, split_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .profile import HiveProfile
    from .ticket_logs import TicketLogs
    from .workers import Identity, WorkerEntry, WorkerTable

__all__ = ["Admission", "AdmissionDesk"]

_RAW_V2_MEMBERS: Final = frozenset(
    {
        "schema",
        "id",
        "idempotency_key",
        "action",
        "args",
        "expires_unix_ms",
        "receipt_mode",
        "operation_id",
        "subject_ref",
        "receipt_worker_role",
        "receipt_worker_id",
        "receipt_supervisor_generation",
        "receipt_cap_generation",
    }
)
"""Members a caller may write; the root knows no others, not even as null."""

_GPU_ACTION_PREFIX: Final = "gpu."
_MAX_SLOT: Final = 2**16 - 1


@dataclass(slots=True)
class Admission:
    """One admitted version-2 request and what became of it.

    Attributes:
        admitted: the request as it stands in ``spec.snapshot``.
        line: that request, canonical.
        raw_sha256: digest of the canonical caller line, for exact resends.
        identity: the Worker identity that was pinned.
        outcome: None while open, then ``confirmed``, ``rejected`` or ``stale``.
        result_digest: digest of the terminal result.
        retired: no longer in the dedupe window.
    """

    admitted: HostTicketSpec
    line: str
    raw_sha256: str
    identity: Identity
    outcome: str | None = None
    result_digest: str | None = None
    retired: bool = False

    @property
    def sequence(self) -> int:
        """The admission sequence."""
        return self.admitted.admission_sequence or 0


class AdmissionDesk:
    """Admits requests; remembers a window of them for deduplication and results.

    1. A refused request appends nothing, takes no number and retires nobody.
    2. An exact resend of a remembered request is acknowledged without any effect.
    3. Numbers only grow until reboot.
    """

    def __init__(
        self,
        profile: HiveProfile,
        *,
        workers: WorkerTable,
        logs: TicketLogs,
        gpu_ids: Callable[[], Sequence[str]],
    ) -> None:
        self._profile = profile
        self._workers = workers
        self._logs = logs
        self._gpu_ids = gpu_ids
        self._window: dict[str, Admission] = {}
        self._next_sequence = 1
        self._by_operation: dict[str, list[Admission]] = {}
        self.history: list[Admission] = []

    def post(self, payload: str) -> None:
        """Admit an append to ``spec``.

        Raises:
            RefusalError: invalid-payload, busy or buffer-full, by the first check that fails.
        """
        entries = split_payload(payload, REQUEST_SCHEMAS, max_line_bytes=self._profile.max_line_bytes)
        if entries[0].version == 1:
            for entry in entries:
                self._check_v1(entry)
            self._logs.append([("spec", [entry.line for entry in entries])])
            return
        self._admit(entries[0])

    def find(self, ticket_id: str, idempotency_key: str) -> Admission | None:
        """Return the remembered admission of a pair."""
        return self._window.get(correlation_digest(ticket_id, idempotency_key))

    def by_digest(self, digest: str) -> Admission | None:
        """Return the remembered admission of a correlation digest."""
        return self._window.get(digest)

    def of_operation(self, operation_id: str) -> list[Admission]:
        """Return all admissions of an operation id since boot, retired ones included, oldest first."""
        return list(self._by_operation.get(operation_id, ()))

    def by_sequence(self, sequence: int) -> Admission | None:
        """Return the remembered admission with a number."""
        for admission in self._window.values():
            if admission.sequence == sequence:
                return admission
        return None

    def _parse(self, entry: Entry) -> HostTicketSpec:
        try:
            return parse_spec(entry.line.encode(), source="raw", max_line_bytes=self._profile.max_line_bytes)
        except ProtocolError:
            raise invalid_payload() from None

    def _check_v1(self, entry: Entry) -> None:
        spec = self._parse(entry)
        if spec.target is not None and not spec.target.strip():
            raise invalid_payload()
        if spec.action not in V1_ACTIONS:
            raise invalid_payload()
        if spec.action in RECEIPT_ACTIONS and not self._profile.accept_v1_lease_actions:
            raise invalid_payload()

    def _admit(self, entry: Entry) -> None:
        if not set(entry.members) <= _RAW_V2_MEMBERS:
            raise invalid_payload()
        spec = self._parse(entry)
        if spec.action.startswith(_GPU_ACTION_PREFIX) and spec.subject_ref not in self._gpu_ids():
            raise invalid_payload()
        raw = spec.encode()
        raw_sha256 = hashlib.sha256(raw).hexdigest()
        digest = correlation_digest(*spec.key)
        known = self._window.get(digest)
        if known is not None:
            if known.raw_sha256 != raw_sha256:
                raise invalid_payload()
            return
        retiring = self._make_room()
        worker = self._pinned_worker(spec)
        admitted = spec.admit(
            slot=worker.identity.slot,
            lease_epoch=worker.identity.lease_epoch,
            admission_sequence=self._sequence_for(worker),
        )
        line = admitted.encode().decode()
        self._logs.append([("spec", [raw.decode()]), ("spec.snapshot", [line])])
        if retiring is not None:
            self._window.pop(retiring).retired = True
        admission = Admission(admitted, line, raw_sha256, worker.identity)
        self._window[digest] = admission
        self.history.append(admission)
        self._by_operation.setdefault(admitted.operation_id or "", []).append(admission)
        self._next_sequence = admission.sequence + 1

    def _make_room(self) -> str | None:
        if len(self._window) < self._profile.window:
            return None
        if not self._profile.retire_terminal:
            raise busy()
        terminal = [
            (admission.sequence, digest)
            for digest, admission in self._window.items()
            if admission.outcome is not None
        ]
        if not terminal:
            raise busy()
        return min(terminal)[1]

    def _pinned_worker(self, spec: HostTicketSpec) -> WorkerEntry:
        worker = self._workers.get(spec.receipt_worker_id or "")
        if worker is None:
            raise invalid_payload()
        self._workers.sync(worker)
        if self._profile.exclusive_workers and (worker.control or self._has_open(worker)):
            raise busy()
        pinned = (
            spec.receipt_worker_role,
            spec.receipt_supervisor_generation,
            spec.receipt_cap_generation,
        )
        identity = worker.identity
        actual = (identity.role, identity.supervisor_generation, identity.cap_generation)
        if not worker.is_ready or pinned != actual or identity.slot > _MAX_SLOT:
            raise invalid_payload()
        return worker

    def _has_open(self, worker: WorkerEntry) -> bool:
        return any(
            admission.outcome is None
            and admission.identity == worker.identity
            and admission.admitted.receipt_worker_id == worker.worker_id
            for admission in self._window.values()
        )

    def _sequence_for(self, worker: WorkerEntry) -> int:
        if self._profile.dense_sequence:
            return self._next_sequence
        return max(self._next_sequence, worker.last_control + 1)
