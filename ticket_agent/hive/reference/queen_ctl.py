"""Control lines of ``/queen/ctl``: the spawn and kill of version-1 actions (GPU leases, compatibility)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.json_strict import parse_object

from .errors import invalid_payload

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Kill", "QueenControl", "Spawn", "SpawnGpu", "parse_queen_control"]

_U32: Final = 2**32 - 1
_U8: Final = 255
_MAX_BYTES: Final = 2048
_SPAWN_ROLES: Final[Mapping[str, str]] = {
    "heartbeat": "worker-heartbeat",
    "lora": "worker-lora",
    "bus": "worker-bus",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """Start a Worker of a role that reserves nothing."""

    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnGpu:
    """Start a GPU Worker with a reservation.

    Attributes:
        gpu_id: published device.
        mem_mb: memory, MiB, > 0.
        streams: 1..=255.
        ttl_s: seconds, > 0; stored only.
        priority: 0..=255.
    """

    gpu_id: str
    mem_mb: int
    streams: int
    ttl_s: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """End a Worker."""

    worker_id: str


QueenControl = Spawn | SpawnGpu | Kill


def parse_queen_control(text: str) -> QueenControl:
    """Parse one control line.

    Raises:
        RefusalError: invalid-payload.
    """
    try:
        value = parse_object(text.encode(), what="queen control", max_bytes=_MAX_BYTES)
    except ProtocolError:
        raise invalid_payload() from None
    if "kill" in value:
        _only(value, {"kill"})
        return Kill(worker_id=_text(value["kill"]))
    kind = _text(value.get("spawn"))
    _check_budget(value.get("budget", {}))
    if kind == "gpu":
        _only(value, {"spawn", "lease", "budget"})
        return _spawn_gpu(value.get("lease"))
    if kind not in _SPAWN_ROLES:
        raise invalid_payload()
    _only(value, {"spawn", "ticks", "budget"})
    if "ticks" in value:
        _integer(value["ticks"], 1, _U32)
    return Spawn(role=_SPAWN_ROLES[kind])


def _spawn_gpu(lease: object) -> SpawnGpu:
    if not isinstance(lease, dict):
        raise invalid_payload()
    _only(lease, {"gpu_id", "mem_mb", "streams", "ttl_s", "priority"})
    return SpawnGpu(
        gpu_id=_text(lease.get("gpu_id")),
        mem_mb=_integer(lease.get("mem_mb"), 1, _U32),
        streams=_integer(lease.get("streams"), 1, _U8),
        ttl_s=_integer(lease.get("ttl_s"), 1, _U32),
        priority=_integer(lease.get("priority", 0), 0, _U8),
    )


def _check_budget(budget: object) -> None:
    if not isinstance(budget, dict):
        raise invalid_payload()
    _only(budget, {"ttl_s", "ops"})
    for amount in budget.values():
        _integer(amount, 1, _U32)


def _only(value: Mapping[str, Any], allowed: set[str]) -> None:
    if not set(value) <= allowed:
        raise invalid_payload()


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise invalid_payload()
    return value


def _integer(value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise invalid_payload()
    return value
