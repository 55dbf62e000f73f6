"""The root's Worker table: identities, forward-only states, counters and telemetry (root side, shards)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.shard import shard_label
from ticket_agent.protocol.worker_state import WorkerState, encode_worker_state

from .errors import LabError, busy, invalid_payload
from .rings import ByteRing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .profile import HiveProfile

__all__ = ["ROLES", "Identity", "Phase", "WorkerEntry", "WorkerTable"]

ROLES: Final = ("worker-heartbeat", "worker-gpu", "worker-lora", "worker-bus")
"""Roles a Worker can have."""

_MAX_WORKERS: Final = 1500
_MAX_LISTED: Final = 64
_CONSTRUCTED_AT_BOOT: Final = 3
"""Slots whose supervisor was constructed at boot (heartbeat, gpu, lora) took the first generations."""

_ID = re.compile(r"[A-Za-z0-9-]{1,32}")


class Phase(StrEnum):
    """Lifecycle state of a Worker, as telemetry prints it."""

    QUEUED = "queued"
    STARTING = "starting"
    READY = "ready"
    CLOSING = "closing"
    FAULTED = "faulted"
    TERMINAL = "terminal"


_END: Final = frozenset({Phase.CLOSING, Phase.FAULTED, Phase.TERMINAL})
_FORWARD: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.QUEUED: _END | {Phase.STARTING},
    Phase.STARTING: _END | {Phase.READY},
    Phase.READY: _END,
    Phase.CLOSING: frozenset({Phase.FAULTED, Phase.TERMINAL}),
    Phase.FAULTED: frozenset({Phase.CLOSING, Phase.TERMINAL}),
    Phase.TERMINAL: frozenset(),
}
"""States only move forward; TERMINAL is left by a new spawn alone, which makes a new identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The five-part identity that an admission pins.

    Attributes:
        role: role token.
        slot: role-local slot.
        lease_epoch: starts at 1, +1 per respawn in the slot.
        supervisor_generation: global counter, +1 per construction.
        cap_generation: starts at 1, +1 per respawn in the slot.
    """

    role: str
    slot: int
    lease_epoch: int
    supervisor_generation: int
    cap_generation: int


@dataclass(slots=True)
class WorkerEntry:
    """One row of the table. ``control != 0`` means that a control is in flight."""

    worker_id: str
    identity: Identity
    ring: ByteRing
    phase: Phase = Phase.QUEUED
    ready: int = 0
    control: int = 0
    receipt: int = 0
    completion: int = 0
    last_control: int = 0
    dirty: bool = field(default=True, repr=False)

    @property
    def is_ready(self) -> bool:
        """Whether an admission may pin this Worker."""
        return self.phase is Phase.READY and self.ready != 0

    def state(self) -> WorkerState:
        """Return the row as a frozen value."""
        identity = self.identity
        return WorkerState(
            worker_id=self.worker_id,
            role=identity.role,
            state=self.phase.value,
            slot=identity.slot,
            lease_epoch=identity.lease_epoch,
            supervisor_generation=identity.supervisor_generation,
            cap_generation=identity.cap_generation,
            ready_sequence=self.ready,
            control_sequence=self.control,
            receipt_sequence=self.receipt,
            completion_sequence=self.completion,
        )


class WorkerTable:
    """All Workers since boot, in spawn order.

    A Worker answers a control by itself at the next sync point, unless ``hold_receipts`` is set.
    Telemetry gets one line per sync point at which something changed; changes in between collapse.
    """

    def __init__(self, profile: HiveProfile) -> None:
        self._profile = profile
        self._entries: dict[str, WorkerEntry] = {}
        self._slots: dict[tuple[str, int], WorkerEntry] = {}
        self._generation = _CONSTRUCTED_AT_BOOT
        self.hold_receipts = False

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, worker_id: str) -> WorkerEntry | None:
        """Return a row, or None for an unknown id."""
        return self._entries.get(worker_id)

    def spawn(self, role: str, worker_id: str | None = None) -> WorkerEntry:
        """Queue a Worker; a terminal Worker's id may be spawned again and gets a new identity.

        Raises:
            RefusalError: busy when the role has no free slot, invalid-payload for an unknown role.
            LabError: the wanted id is malformed or alive.
        """
        if role not in ROLES:
            raise invalid_payload()
        chosen = self._free_id() if worker_id is None else worker_id
        if _ID.fullmatch(chosen) is None:
            raise LabError(f"worker id {chosen!r} is not 1..32 ASCII letters, digits or '-'; choose another")
        known = self._entries.get(chosen)
        if known is not None and known.phase is not Phase.TERMINAL:
            raise LabError(f"worker {chosen} is alive ({known.phase}); tear it down before spawning it again")
        slot = self._free_slot(role)
        before = self._slots.get((role, slot))
        self._generation += 1
        entry = WorkerEntry(
            chosen,
            Identity(
                role=role,
                slot=slot,
                lease_epoch=1 if before is None else before.identity.lease_epoch + 1,
                supervisor_generation=self._generation,
                cap_generation=1 if before is None else before.identity.cap_generation + 1,
            ),
            ByteRing(self._profile.telemetry_ring_bytes) if known is None else known.ring,
        )
        self._entries.pop(chosen, None)
        self._entries[chosen] = entry
        self._slots[(role, slot)] = entry
        self._emit(entry)
        return entry

    def move(self, entry: WorkerEntry, phase: Phase) -> None:
        """Move a Worker forward.

        Raises:
            LabError: the table has no such transition.
        """
        if phase not in _FORWARD[entry.phase]:
            raise LabError(f"worker {entry.worker_id} cannot go from {entry.phase} to {phase}")
        entry.phase = phase
        if phase is Phase.READY:
            entry.ready += 1
        entry.dirty = True

    def submit_control(self, entry: WorkerEntry, sequence: int) -> None:
        """Hand a Worker the outcome of its ticket."""
        entry.control = sequence
        entry.last_control = sequence
        entry.dirty = True
        self._emit(entry)

    def complete_receipts(self) -> int:
        """Let every Worker with a control in flight answer it; return how many did."""
        waiting = [entry for entry in self._entries.values() if entry.control and entry.is_ready]
        for entry in waiting:
            self._answer(entry)
        return len(waiting)

    def sync(self, entry: WorkerEntry) -> None:
        """A sync point of one Worker: it may answer its control, and telemetry catches up."""
        if entry.control and entry.is_ready and not self.hold_receipts:
            self._answer(entry)
        self._emit(entry)

    def sync_all(self) -> None:
        """A sync point of all Workers."""
        for entry in self._entries.values():
            self.sync(entry)

    def published(self, label: str | None = None) -> list[str]:
        """Return the newest 64 ids that were ever READY, in spawn order, of one shard label or of all."""
        ids = [entry.worker_id for entry in self._entries.values() if entry.ready]
        if label is not None:
            ids = [worker_id for worker_id in ids if shard_label(worker_id) == label]
        return ids[-_MAX_LISTED:]

    def labels(self) -> list[str]:
        """Return the distinct shard labels of published Workers."""
        ids = [entry.worker_id for entry in self._entries.values() if entry.ready]
        return list(dict.fromkeys(shard_label(worker_id) for worker_id in ids))

    def _emit(self, entry: WorkerEntry) -> None:
        if entry.dirty:
            line = encode_worker_state(entry.state(), schema=self._profile.worker_state_schema)
            entry.ring.write(line.encode() + b"\n")
            entry.dirty = False

    def _answer(self, entry: WorkerEntry) -> None:
        entry.receipt = entry.completion = entry.control
        entry.control = 0
        entry.dirty = True

    def _free_id(self) -> str:
        for number in range(1, _MAX_WORKERS + 1):
            if f"worker-{number}" not in self._entries:
                return f"worker-{number}"
        raise busy()

    def _free_slot(self, role: str) -> int:
        for slot in range(self._profile.slots_per_role):
            occupant = self._slots.get((role, slot))
            if occupant is None or occupant.phase is Phase.TERMINAL:
                return slot
        raise busy()
