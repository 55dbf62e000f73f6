"""Which generation of the root side is modelled, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["DEFAULT", "STRICT_A", "HiveProfile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveProfile:
    """Behaviour that differs between root tasks, and their bounds.

    Attributes:
        name: short name for banners and test ids.
        evicting_logs: ticket logs drop their oldest lines; otherwise they fill up for ever.
        retention: ``/host/tickets/retention`` exists.
        current: ``/host/tickets/current/<digest>`` exists.
        admission_refetch: ``/host/tickets/admission/<sequence>`` exists (newest roots).
        ticket_tail: TAIL is offered on the ticket logs.
        telemetry_cat: CAT is offered on a Worker's telemetry, as TAIL is.
        dense_sequence: admissions are numbered +1 without gaps; otherwise a number also exceeds the last
            control sequence of the Worker, so that gaps are legal.
        control_is_admission: a Worker's control carries the admission's number instead of its own counter.
        exclusive_workers: one open admission per Worker, a second one is Busy.
        retire_terminal: a full dedupe window retires its oldest terminal admission; otherwise Busy for ever.
        worker_state_schema: which telemetry line Workers write.
        accept_v1_lease_actions: version-1 lines with receipt actions are admitted, as by a root from before
            receipts.
        window: admissions remembered for deduplication.
        max_line_bytes: longest ticket or result line.
        log_bytes: bytes one ticket log retains, newlines included.
        log_frames: wire frames one ticket log retains.
        telemetry_ring_bytes: bytes of one Worker's telemetry ring.
        slots_per_role: Workers of one role that can live at a time.
        max_active_leases: leases that can be active at a time.
        max_preemptions: preemption records retained, and quota records stored.
        lease_ctl_bytes: bytes retained of the lease control log.
    """

    name: str
    evicting_logs: bool
    retention: bool
    current: bool
    ticket_tail: bool
    dense_sequence: bool
    control_is_admission: bool
    exclusive_workers: bool
    retire_terminal: bool
    slots_per_role: int
    worker_state_schema: Literal["v1", "v2"]
    admission_refetch: bool = False
    telemetry_cat: bool = False
    accept_v1_lease_actions: bool = False
    window: int = 256
    max_line_bytes: int = 2048
    log_bytes: int = 16384
    log_frames: int = 64
    telemetry_ring_bytes: int = 1024
    max_active_leases: int = 256
    max_preemptions: int = 256
    lease_ctl_bytes: int = 8192


DEFAULT: Final = HiveProfile(
    name="default",
    evicting_logs=True,
    retention=True,
    current=True,
    ticket_tail=True,
    dense_sequence=True,
    control_is_admission=False,
    exclusive_workers=True,
    retire_terminal=True,
    slots_per_role=64,
    worker_state_schema="v2",
)
"""The newer root: rings, retention offsets, dense numbers, one open admission per Worker."""

STRICT_A: Final = HiveProfile(
    name="strict-a",
    evicting_logs=False,
    retention=False,
    current=False,
    ticket_tail=False,
    dense_sequence=False,
    control_is_admission=True,
    exclusive_workers=False,
    retire_terminal=False,
    slots_per_role=1,
    worker_state_schema="v1",
)
"""The first root with receipts: logs that fill up for ever, numbers with legal gaps, no exclusivity."""
