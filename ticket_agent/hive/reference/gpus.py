"""The published GPU inventory and the version-1 spawn reservations (GPU leases, observation files)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from .rings import LineLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .queen_ctl import SpawnGpu

__all__ = ["Gpu", "GpuInventory", "Reservation", "mock_gpu"]

_LEASE_LOG_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One published device, in the member order of ``/gpu/<id>/info``.

    Attributes:
        id: name below ``/gpu``.
        name: product name.
        memory_mb: memory, MiB.
        sm_count: streaming multiprocessors.
        driver_version: driver.
        runtime_version: CUDA ``major.minor``.
    """

    id: str
    name: str
    memory_mb: int
    sm_count: int
    driver_version: str
    runtime_version: str


def mock_gpu(gpu_id: str) -> Gpu:
    """Return a fixture device; ``GPU-0`` is the larger one of the fixture publisher."""
    name, memory_mb, sm_count = ("Mock 4090", 24576, 144) if gpu_id == "GPU-0" else ("Mock 4060", 8192, 64)
    return Gpu(
        id=gpu_id,
        name=name,
        memory_mb=memory_mb,
        sm_count=sm_count,
        driver_version="555.0",
        runtime_version="12.4",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A version-1 spawn that holds a part of a GPU until its Worker is killed."""

    spawn: SpawnGpu
    worker_id: str

    def line(self, state: str) -> str:
        """Return the record of ``/gpu/<id>/lease`` for one state, ACTIVE or RELEASED."""
        record = {
            "schema": "gpu-lease/v1",
            "state": state,
            "gpu_id": self.spawn.gpu_id,
            "worker_id": self.worker_id,
            "mem_mb": self.spawn.mem_mb,
            "streams": self.spawn.streams,
            "ttl_s": self.spawn.ttl_s,
            "priority": self.spawn.priority,
        }
        return json.dumps(record, separators=(",", ":"))


class GpuInventory:
    """The devices a host bridge published last; all are withdrawn when its time to live passes."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._gpus: dict[str, Gpu] = {}
        self._expires_ms: int | None = None
        self._status = "state=idle"
        self._lease_logs: dict[str, LineLog] = {}
        self._reservations: dict[str, Reservation] = {}

    def publish(self, gpus: Iterable[Gpu], *, ttl_ms: int | None = None) -> None:
        """Replace the inventory; without ``ttl_ms`` it never lapses."""
        self._gpus = {gpu.id: gpu for gpu in gpus}
        self._expires_ms = None if ttl_ms is None else self._clock() + ttl_ms
        self._status = f"state=ok entries={len(self._gpus)}"

    def withdraw(self, reason: str = "withdrawn") -> None:
        """Take all devices out of the namespace."""
        self._gpus = {}
        self._expires_ms = None
        self._status = f"state=unavailable reason={reason}"

    def ids(self) -> list[str]:
        """Return the ids published now, in the publisher's order."""
        if self._expires_ms is not None and self._clock() >= self._expires_ms:
            self.withdraw("expired")
        return list(self._gpus)

    def status(self) -> str:
        """Return the line of ``/gpu/bridge/status``."""
        self.ids()
        return self._status

    def info_lines(self, gpu_id: str) -> list[str] | None:
        """Return ``/gpu/<id>/info`` in lines, or None for an unpublished id."""
        if gpu_id not in self.ids():
            return None
        return json.dumps(asdict(self._gpus[gpu_id]), indent=4).split("\n")

    def lease_lines(self, gpu_id: str) -> list[str] | None:
        """Return ``/gpu/<id>/lease``, or None for an unpublished id."""
        if gpu_id not in self.ids():
            return None
        log = self._lease_logs.get(gpu_id)
        return [] if log is None else log.lines()

    def reserve(self, reservation: Reservation) -> None:
        """Record a spawn on its GPU."""
        self._reservations[reservation.worker_id] = reservation
        self._lease_log(reservation.spawn.gpu_id).append([reservation.line("ACTIVE")])

    def release(self, worker_id: str) -> None:
        """Record that a Worker's reservation ended; nothing happens for a Worker without one."""
        reservation = self._reservations.pop(worker_id, None)
        if reservation is not None:
            self._lease_log(reservation.spawn.gpu_id).append([reservation.line("RELEASED")])

    def forget_reservations(self) -> None:
        """Drop all reservations and their logs, as a reboot does."""
        self._reservations.clear()
        self._lease_logs.clear()

    def _lease_log(self, gpu_id: str) -> LineLog:
        return self._lease_logs.setdefault(gpu_id, LineLog(max_bytes=_LEASE_LOG_BYTES))
