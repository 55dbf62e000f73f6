"""Results on ``/host/tickets/status`` and ``deadletter`` (root side, results)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.actions import RECEIPT_ACTIONS, V1_ACTIONS
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.result import HostTicketResult, parse_result

from .errors import busy, invalid_payload
from .ticket_logs import RESULT_SCHEMAS, Entry, split_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .admission import Admission, AdmissionDesk
    from .profile import HiveProfile
    from .ticket_logs import TicketLogs
    from .workers import WorkerEntry, WorkerTable

__all__ = ["OUTCOME_OF_STATE", "ResultDesk"]

OUTCOME_OF_STATE: Final[Mapping[str, str]] = {
    "succeeded": "confirmed",
    "failed": "rejected",
    "expired": "rejected",
}
"""Terminal result state -> receipt outcome, unless the pinned Worker is gone (then ``stale``)."""


class ResultDesk:
    """Checks results against their admissions and hands terminal ones to the pinned Worker.

    ``on_terminal`` hears every terminal line that was appended, with its ticket key.
    """

    def __init__(
        self,
        profile: HiveProfile,
        *,
        admissions: AdmissionDesk,
        workers: WorkerTable,
        logs: TicketLogs,
        on_terminal: Callable[[tuple[str, str], str], None],
    ) -> None:
        self._profile = profile
        self._admissions = admissions
        self._workers = workers
        self._logs = logs
        self._on_terminal = on_terminal

    def post(self, leaf: str, payload: str) -> None:
        """Take an append to ``status`` or ``deadletter``; which of the two it is is not checked.

        Raises:
            RefusalError: invalid-payload, busy or buffer-full, by the first check that fails.
        """
        entries = split_payload(payload, RESULT_SCHEMAS, max_line_bytes=self._profile.max_line_bytes)
        results = [self._parse(entry) for entry in entries]
        if entries[0].version == 1:
            self._post_v1(leaf, entries, results)
        else:
            self._post_v2(leaf, results[0])

    def _parse(self, entry: Entry) -> HostTicketResult:
        try:
            return parse_result(entry.line.encode(), max_line_bytes=self._profile.max_line_bytes)
        except ProtocolError:
            raise invalid_payload() from None

    def _post_v1(self, leaf: str, entries: list[Entry], results: list[HostTicketResult]) -> None:
        for result in results:
            if result.message is not None and not result.message.strip():
                raise invalid_payload()
            if result.action not in V1_ACTIONS:
                raise invalid_payload()
            if result.action in RECEIPT_ACTIONS and not self._profile.accept_v1_lease_actions:
                raise invalid_payload()
        lines = [entry.line for entry in entries]
        self._logs.append([(leaf, lines), (f"{leaf}.snapshot", lines)])
        for line, result in zip(lines, results, strict=True):
            if result.terminal:
                self._on_terminal((result.id, result.idempotency_key), line)

    def _post_v2(self, leaf: str, result: HostTicketResult) -> None:
        admission = self._admissions.find(result.id, result.idempotency_key)
        if admission is None or not result.echoes(admission.admitted):
            raise invalid_payload()
        if admission.outcome is not None:
            if result.terminal and result.result_digest == admission.result_digest:
                return
            raise invalid_payload()
        line = result.encode().decode()
        appends = [(leaf, [line]), (f"{leaf}.snapshot", [line])]
        worker = self._current_worker(admission)
        if not result.terminal:
            self._logs.append(appends)
            return
        control = 0 if worker is None else self._control_sequence(worker, admission)
        self._logs.preflight(appends)
        if worker is not None:
            self._workers.submit_control(worker, control)
        self._logs.append(appends)
        admission.outcome = "stale" if worker is None else OUTCOME_OF_STATE[result.state]
        admission.result_digest = result.result_digest
        self._on_terminal((result.id, result.idempotency_key), line)

    def _current_worker(self, admission: Admission) -> WorkerEntry | None:
        """Return the pinned Worker if it still is exactly the one that was admitted."""
        worker = self._workers.get(admission.admitted.receipt_worker_id or "")
        if worker is None:
            return None
        self._workers.sync(worker)
        return worker if worker.is_ready and worker.identity == admission.identity else None

    def _control_sequence(self, worker: WorkerEntry, admission: Admission) -> int:
        if not self._profile.control_is_admission:
            if worker.control:
                raise busy()
            return worker.last_control + 1
        if admission.sequence <= worker.last_control:
            raise invalid_payload()
        return admission.sequence
