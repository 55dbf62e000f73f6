"""The actions of both ticket versions, as tables."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RECEIPT_ACTIONS", "ROLE_OF_ACTION", "V1_ACTIONS", "WORKER_GPU", "WORKER_LORA"]

WORKER_GPU = "worker-gpu"
WORKER_LORA = "worker-lora"

ROLE_OF_ACTION: Mapping[str, str] = MappingProxyType(
    {
        "gpu.lease.grant": WORKER_GPU,
        "gpu.lease.renew": WORKER_GPU,
        "gpu.lease.release": WORKER_GPU,
        "peft.export": WORKER_LORA,
        "peft.import": WORKER_LORA,
        "peft.activate": WORKER_LORA,
        "peft.rollback": WORKER_LORA,
        "peft.release": WORKER_LORA,
    }
)
"""Version-2 actions and the role of the Worker that receives their receipt."""

RECEIPT_ACTIONS: tuple[str, ...] = tuple(ROLE_OF_ACTION)
"""Actions that end with a receipt of a Worker; only these exist in version 2."""

V1_ACTIONS: tuple[str, ...] = (
    "gpu.lease.grant",
    "gpu.lease.renew",
    "gpu.lease.release",
    "peft.export",
    "peft.import",
    "peft.activate",
    "peft.rollback",
    "systemd.start",
    "systemd.stop",
    "systemd.restart",
    "systemd.status-check",
    "docker.restart",
    "docker.stop",
    "docker.status-check",
    "k8s.cordon",
    "k8s.drain",
    "k8s.lease.sync",
)
"""Actions of version 1. A current root refuses those of them that are receipt actions."""
