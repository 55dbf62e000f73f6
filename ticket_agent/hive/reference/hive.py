"""The reference hive: the root side as one thread-safe object, and the lab's view of it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ticket_agent.protocol.lifecycle import LifecycleState
from ticket_agent.protocol.snapshot_status import SnapshotStatus, parse_status

from .appends import append
from .errors import LabError, RefusalError, invalid_payload
from .exports import ExportJobs
from .gpus import Gpu, GpuInventory, mock_gpu
from .lab import AdmissionView, Effect, LabBook
from .profile import DEFAULT, HiveProfile
from .root import Root
from .snapshot_nodes import check_servable, is_snapshot_node
from .ticket_logs import LOGS
from .tree import QUEEN, Content, cat, listing, split_path, tail, wire_lines

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable

    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment
    from ticket_agent.protocol.worker_state import WorkerState

    from .admission import Admission
    from .workers import Phase, WorkerEntry

__all__ = ["ReferenceHive"]


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class ReferenceHive:
    """A hive in memory that behaves as the real target does, for tests, demos and laptops.

    The first half is what a console session sees; a refusal is a :class:`RefusalError` and changed nothing.
    The second half is the lab: it spawns Workers, submits tickets, moves the lifecycle, reboots, counts.

    1. Every operation is atomic: one lock is held for all of it.
    2. Time comes from ``clock`` and ``monotonic`` alone; nothing in here waits.

    Args:
        profile: generation of the root side.
        clock: unix time in milliseconds.
        gpus: ids published at boot.
        snapshots: whose host snapshots are received; None for a hive without ``/host/snapshots``.
        monotonic: milliseconds that host snapshots live by.

    Raises:
        LabError: no console could reach the nodes of ``snapshots``.
    """

    def __init__(
        self,
        profile: HiveProfile = DEFAULT,
        *,
        clock: Callable[[], int],
        gpus: Iterable[str] = ("GPU-0", "GPU-1"),
        snapshots: SnapshotEnrolment | None = None,
        monotonic: Callable[[], int] = _monotonic_ms,
    ) -> None:
        if snapshots is not None:
            check_servable(snapshots)
        self._lock = threading.RLock()
        self._clock = clock
        self._monotonic = monotonic
        self._enrolment = snapshots
        self._book = LabBook()
        self._gpus = GpuInventory(clock)
        self._gpus.publish(mock_gpu(gpu_id) for gpu_id in gpus)
        self.exports = ExportJobs()
        """Jobs below ``/queen/export/lora_jobs``; the lab publishes them."""
        self._profile = profile
        self._root = self._boot()
        self._boots = 1

    @property
    def profile(self) -> HiveProfile:
        """The generation this hive models."""
        return self._profile

    def now_ms(self) -> int:
        """Unix milliseconds of the hive's clock."""
        return self._clock()

    # What a session sees

    def ls(self, path: str) -> list[str]:
        """Return the names below a directory.

        Raises:
            RefusalError: invalid-path, or buffer-full over 64 names.
        """
        with self._lock:
            self._poll()
            return wire_lines(Content(listing(self._root, split_path(path))))

    def cat(self, path: str, *, role: str = QUEEN) -> list[str]:
        """Return the logical lines of a file.

        Raises:
            RefusalError: invalid-path, denied, or buffer-full when the wire answer would not fit.
        """
        return self._read("CAT", path, role).lines

    def tail(self, path: str) -> list[str]:
        """Return the retained logical lines of a log-like node, oldest first.

        Raises:
            RefusalError: invalid-path, or buffer-full when the wire answer would not fit.
        """
        return self._read("TAIL", path, QUEEN).lines

    def wire(self, verb: str, path: str, *, role: str = QUEEN, newest: int | None = None) -> list[str]:
        """Return the data lines a console sends for LS, CAT or TAIL, long ticket lines in C1 frames.

        ``newest`` limits TAIL to that many logical lines.

        Raises:
            RefusalError: as ``ls``, ``cat`` and ``tail``.
        """
        if verb == "LS":
            return self.ls(path)
        content = self._read(verb, path, role)
        return wire_lines(content if newest is None else replace(content, lines=content.lines[-newest:]))

    def echo(self, path: str, payload: str, *, role: str = QUEEN) -> int:
        """Append to a node; return the bytes that it was given.

        Blanks around the payload are taken off, as consoles do, except for host snapshots, whose grammar
        knows none. (Whoever comes through a console has lost them before.)

        Raises:
            RefusalError: by the first gate that is closed: path, role, writability, lifecycle, payload.
        """
        with self._lock:
            now = self._poll()
            parts = split_path(path)
            text = payload if is_snapshot_node(parts) else payload.strip()
            try:
                size = len(text.encode())
            except UnicodeEncodeError:
                raise invalid_payload() from None
            append(self._root, parts, text, role=role, now=now)
            return size

    def _poll(self) -> int:
        """Let host snapshots lapse that have to; return the moment of the operation."""
        now = self._monotonic()
        if self._root.snapshots is not None:
            self._root.snapshots.poll(now)
        return now

    def _read(self, verb: str, path: str, role: str) -> Content:
        with self._lock:
            self._poll()
            parts = split_path(path)
            content = cat(self._root, parts, role) if verb == "CAT" else tail(self._root, parts)
            wire_lines(content)
            return content

    # What the lab does

    def spawn_worker(self, role: str, worker_id: str | None = None, *, ready: bool = True) -> WorkerState:
        """Spawn a Worker, READY at once unless ``ready=False``; a torn-down id comes back as a new identity.

        Raises:
            RefusalError: busy when the role has no free slot, invalid-payload for an unknown role.
            LabError: the id is malformed or alive.
        """
        with self._lock:
            return self._root.spawn(role, worker_id, ready=ready).state()

    def move_worker(self, worker_id: str, phase: Phase) -> WorkerState:
        """Move a Worker forward to a state.

        Raises:
            LabError: unknown Worker or no such transition.
        """
        with self._lock:
            entry = self._entry(worker_id)
            self._root.workers.move(entry, phase)
            return entry.state()

    def tear_down(self, worker_id: str) -> WorkerState:
        """End a Worker; its projection stays, terminal.

        Raises:
            LabError: unknown Worker.
        """
        with self._lock:
            entry = self._entry(worker_id)
            self._root.tear_down(entry)
            return entry.state()

    def replace_worker(self, worker_id: str) -> WorkerState:
        """End a Worker and spawn its id again: READY, with a new identity and counters at their start.

        Raises:
            LabError: unknown Worker.
        """
        with self._lock:
            entry = self._entry(worker_id)
            self._root.tear_down(entry)
            return self._root.spawn(entry.identity.role, worker_id).state()

    def worker(self, worker_id: str) -> WorkerState:
        """Return a Worker as it stands now, without a sync point.

        Raises:
            LabError: unknown Worker.
        """
        with self._lock:
            return self._entry(worker_id).state()

    def hold_receipts(self, hold: bool = True) -> None:
        """Let Workers wait with their receipts until ``complete_receipts``, or stop that."""
        with self._lock:
            self._root.workers.hold_receipts = hold

    def complete_receipts(self) -> int:
        """Let every Worker with a control in flight record receipt and completion; return how many did."""
        with self._lock:
            return self._root.workers.complete_receipts()

    def submit(self, raw_line: str) -> None:
        """Submit a ticket as a queen would.

        Raises:
            RefusalError: the hive refused it.
        """
        self.echo("/host/tickets/spec", raw_line)

    def admissions(self) -> list[AdmissionView]:
        """Return every admission since boot, retired ones included, in order."""
        with self._lock:
            return [_view(admission) for admission in self._root.admissions.history]

    def admission_of(self, ticket_id: str) -> AdmissionView:
        """Return the newest admission of a ticket id since boot.

        Raises:
            LabError: there is none.
        """
        with self._lock:
            for admission in reversed(self._root.admissions.history):
                if admission.admitted.id == ticket_id:
                    return _view(admission)
        raise LabError(f"no ticket {ticket_id!r} was admitted since boot; see admissions()")

    @property
    def effects(self) -> Counter[Effect]:
        """A copy of how often each mutation was applied since this object exists."""
        with self._lock:
            return self._book.effects.copy()

    def effect_count(self, kind: str, subject: str) -> int:
        """How often one kind of mutation was applied to one subject, whatever asked for it."""
        return sum(
            count
            for effect, count in self.effects.items()
            if (effect.kind, effect.subject) == (kind, subject)
        )

    def terminal_lines(self, key: tuple[str, str]) -> list[str]:
        """Return every terminal result line ever appended for ``(id, idempotency_key)``."""
        with self._lock:
            return list(self._book.terminal.get(key, ()))

    def appended(self, path: str) -> int:
        """How many lines were ever appended to a ticket log, given by path or by its last component."""
        with self._lock:
            return self._book.appended[self._leaf(path)]

    def slide(self, path: str, count: int) -> int:
        """Evict up to ``count`` oldest lines of a ticket log; return how many went.

        Raises:
            LabError: the path names no ticket log.
        """
        with self._lock:
            return self._root.logs.slide(self._leaf(path), count)

    def set_lifecycle(self, state: str, reason: str = "lab") -> None:
        """Put the hive into a lifecycle state, whatever the current one.

        Raises:
            ValueError: no such state.
        """
        with self._lock:
            self._root.lifecycle.enter(LifecycleState(state), reason)

    def publish_inventory(self, gpus: Iterable[str | Gpu], *, ttl_ms: int | None = None) -> None:
        """Publish devices in place of the current ones; they lapse after ``ttl_ms`` when it is given."""
        devices = [mock_gpu(gpu) if isinstance(gpu, str) else gpu for gpu in gpus]
        with self._lock:
            self._gpus.publish(devices, ttl_ms=ttl_ms)

    def withdraw_inventory(self) -> None:
        """Take all GPUs out of the namespace."""
        with self._lock:
            self._gpus.withdraw()

    def snapshot_status(self, provider: str, source_id: str) -> SnapshotStatus:
        """What the receiver says now about a pair of provider and source.

        Raises:
            LabError: it is not enrolled.
        """
        try:
            (line,) = self.cat(f"/host/snapshots/{provider}/{source_id}/status")
        except RefusalError:
            raise LabError(f"{provider} of {source_id} is not enrolled; see LS /host/snapshots") from None
        return parse_status(line)

    @property
    def boots(self) -> int:
        """How often this hive has booted."""
        with self._lock:
            return self._boots

    def reboot(self) -> None:
        """Lose all of the root's memory: numbers, logs, leases, Workers, host snapshots and their fences.

        The host republishes its inventory.

        What the lab counts (``effects``, ``terminal_lines``, ``appended``) goes on counting.
        """
        with self._lock:
            self._root = self._boot()
            self._boots += 1

    def _boot(self) -> Root:
        self._gpus.forget_reservations()
        return Root(
            self._profile,
            clock=self._clock,
            gpus=self._gpus,
            exports=self.exports,
            book=self._book,
            snapshots=self._enrolment,
        )

    def _entry(self, worker_id: str) -> WorkerEntry:
        entry = self._root.workers.get(worker_id)
        if entry is None:
            raise LabError(f"no Worker {worker_id!r} was spawned since boot; see LS /worker")
        return entry

    @staticmethod
    def _leaf(path: str) -> str:
        leaf = path.rsplit("/", 1)[-1]
        if leaf not in LOGS:
            raise LabError(f"{path!r} names no ticket log; expected one of {', '.join(LOGS)}")
        return leaf


def _view(admission: Admission) -> AdmissionView:
    return AdmissionView(
        sequence=admission.sequence,
        key=admission.admitted.key,
        action=admission.admitted.action,
        worker_id=admission.admitted.receipt_worker_id or "",
        outcome=admission.outcome,
        retired=admission.retired,
        line=admission.line,
    )
