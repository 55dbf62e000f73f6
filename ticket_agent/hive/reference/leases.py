"""The root's lease ledger: ``/queen/lease/ctl`` and ``/proc/lease`` (GPU leases, root-side semantics)."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.lease import (
    GrantControl,
    LeaseControl,
    LeaseRecord,
    LeaseSummary,
    PreemptControl,
    PreemptionRecord,
    QuotaControl,
    RenewBoundControl,
    RenewControl,
    parse_lease_control,
)

from .errors import buffer_full, invalid_payload
from .rings import LineLog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .profile import HiveProfile

__all__ = ["AGGREGATE_BYTES", "SUMMARY_BYTES", "LeaseLedger"]

SUMMARY_BYTES: Final = 160
"""Budget of ``/proc/lease/summary``, in bytes."""

AGGREGATE_BYTES: Final = 256
"""Budget of ``/proc/lease/active`` and ``/proc/lease/preemptions``, in bytes, newlines included."""

_ACTIVE: Final = "ACTIVE"


class LeaseLedger:
    """Active leases, the preemption ring and stored quotas.

    1. Grant, renew and preempt share one counter that starts at 1; a refused or repeated control does not
       move it, nor does a quota.
    2. A time to live is only stored: no timer ever ends a lease, and quotas are never enforced.
    3. A refused control changes nothing and is not logged.
    """

    def __init__(self, profile: HiveProfile) -> None:
        self._max_active = profile.max_active_leases
        self._max_records = profile.max_preemptions
        self._active: list[LeaseRecord] = []
        self._preemptions: deque[PreemptionRecord] = deque(maxlen=profile.max_preemptions)
        self._quotas: dict[tuple[str, str], QuotaControl] = {}
        self._preempted = 0
        self._seq = 0
        self.log = LineLog(max_bytes=profile.lease_ctl_bytes)

    @property
    def sequence(self) -> int:
        """Number of the last mutation, 0 before the first."""
        return self._seq

    def apply(self, text: str) -> LeaseControl | None:
        """Apply one control line; return it, or None when it repeats a bound renewal exactly.

        Raises:
            RefusalError: invalid-payload for everything the ledger refuses, buffer-full when it has no room.
        """
        try:
            control = parse_lease_control(text)
        except ProtocolError:
            raise invalid_payload() from None
        self.log.preflight([text])
        match control:
            case GrantControl():
                self._grant(control)
            case RenewBoundControl():
                if not self._renew_bound(control):
                    return None
            case RenewControl():
                self._renew(control)
            case PreemptControl():
                self._preempt(control)
            case QuotaControl():
                self._quota(control)
        self.log.append([text])
        return control

    def active(self) -> list[LeaseRecord]:
        """Return the active leases in the ledger's order."""
        return list(self._active)

    def preemptions(self) -> list[PreemptionRecord]:
        """Return the retained preemptions, oldest first."""
        return list(self._preemptions)

    def summary_line(self) -> str:
        """Return the line of ``/proc/lease/summary``; its preemptions count all since boot."""
        return LeaseSummary(
            active=len(self._active),
            preemptions=self._preempted,
            quotas=len(self._quotas),
            max_active=self._max_active,
            max_preemptions=self._max_records,
        ).encode()

    def active_lines(self) -> list[str]:
        """Return ``/proc/lease/active``: whole lines up to the first that would pass the budget."""
        return _within(AGGREGATE_BYTES, (record.encode() for record in self._active))

    def preemption_lines(self) -> list[str]:
        """Return ``/proc/lease/preemptions``, truncated in the same way."""
        return _within(AGGREGATE_BYTES, (record.encode() for record in self._preemptions))

    def by_id_lines(self, lease_id: str) -> list[str]:
        """Return the one line of an active lease, or none at all."""
        return [record.encode() for record in self._active if record.id == lease_id]

    def _index(self, lease_id: str) -> int:
        for index, record in enumerate(self._active):
            if record.id == lease_id:
                return index
        raise invalid_payload()

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _grant(self, control: GrantControl) -> None:
        if any(record.id == control.id for record in self._active):
            raise invalid_payload()
        if len(self._active) >= self._max_active:
            raise buffer_full()
        self._active.append(
            LeaseRecord(
                id=control.id,
                subject=control.subject,
                resource=control.resource,
                ttl_s=control.ttl_s,
                priority=control.priority,
                state=_ACTIVE,
                seq=self._next(),
                request=None,
            )
        )

    def _renew(self, control: RenewControl) -> None:
        index = self._index(control.id)
        self._active[index] = replace(
            self._active[index], ttl_s=control.ttl_s, priority=control.priority, seq=self._next()
        )

    def _renew_bound(self, control: RenewBoundControl) -> bool:
        index = self._index(control.id)
        record = self._active[index]
        if (record.subject, record.resource) != (control.subject, control.resource):
            raise invalid_payload()
        if record.request == control.request:
            if (record.ttl_s, record.priority) != (control.ttl_s, control.priority):
                raise invalid_payload()
            return False
        self._active[index] = replace(
            record,
            ttl_s=control.ttl_s,
            priority=control.priority,
            seq=self._next(),
            request=control.request,
        )
        return True

    def _preempt(self, control: PreemptControl) -> None:
        index = self._index(control.id)
        record = self._active[index]
        # The root removes by swapping the last record in, so the order of the survivors changes.
        self._active[index] = self._active[-1]
        self._active.pop()
        self._preempted += 1
        self._preemptions.append(
            PreemptionRecord(
                id=record.id,
                subject=record.subject,
                resource=record.resource,
                reason=control.reason,
                seq=self._next(),
            )
        )

    def _quota(self, control: QuotaControl) -> None:
        key = (control.subject, control.resource)
        if key not in self._quotas and len(self._quotas) >= self._max_records:
            raise buffer_full()
        self._quotas[key] = control


def _within(budget: int, lines: Iterable[str]) -> list[str]:
    kept: list[str] = []
    used = 0
    for line in lines:
        used += len(line.encode()) + 1
        if used > budget:
            break
        kept.append(line)
    return kept
