"""Where a Worker's telemetry lives (shards and worker telemetry).

The label is computed rather than searched for: a listing of shards is bounded and may miss the Worker.
"""

from __future__ import annotations

import hashlib
import re

from .errors import WorkerStateError

__all__ = ["legacy_telemetry_path", "shard_label", "telemetry_path"]

MAX_SHARD_BITS = 8

_COMPONENT = re.compile(r"[A-Za-z0-9._-]{1,128}")


def shard_label(worker_id: str, *, shard_bits: int = MAX_SHARD_BITS) -> str:
    """Return the two hexadecimal digits of a Worker's shard.

    Args:
        worker_id: one path component, 1..=128 of ASCII letters, digits and ``. _ -``.
        shard_bits: bits of the first digest byte that the hive uses, 0..=8; with 0 everything is in ``00``.

    Raises:
        WorkerStateError: the id is no path component, or the bits are out of range.
    """
    if _COMPONENT.fullmatch(worker_id) is None or worker_id in {".", ".."}:
        raise WorkerStateError(
            "worker_id must be 1..=128 ASCII letters, digits or . _ - to name a telemetry path",
            code="worker-id",
            member="worker_id",
        )
    if not 0 <= shard_bits <= MAX_SHARD_BITS:
        raise WorkerStateError(
            f"shard_bits must be 0..=8, not {shard_bits}; see sharding in the hive's manifest",
            code="shard-bits",
            member="shard_bits",
        )
    first = hashlib.sha256(worker_id.encode("ascii")).digest()[0]
    return f"{first >> (MAX_SHARD_BITS - shard_bits):02x}"


def telemetry_path(worker_id: str, *, shard_bits: int = MAX_SHARD_BITS) -> str:
    """Return the path of a Worker's telemetry.

    Raises:
        WorkerStateError: as :func:`shard_label`.
    """
    return f"/shard/{shard_label(worker_id, shard_bits=shard_bits)}/worker/{worker_id}/telemetry"


def legacy_telemetry_path(worker_id: str) -> str:
    """Return the path without a shard, the only one on a hive without sharding and an alias on others.

    Raises:
        WorkerStateError: the id is no path component.
    """
    shard_label(worker_id)
    return f"/worker/{worker_id}/telemetry"
