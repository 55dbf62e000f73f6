"""Paths of the hive's namespace that the agent reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import ProtocolError

__all__ = [
    "DEFAULT_MOUNT",
    "GPU",
    "LEASE_ACTIVE",
    "LEASE_BY_ID",
    "LEASE_CTL",
    "LEASE_PREEMPTIONS",
    "LEASE_SUMMARY",
    "LIFECYCLE_STATE",
    "QUEEN_CTL",
    "TicketPaths",
    "lease_by_id",
]

DEFAULT_MOUNT = "/host"
LEASE_CTL = "/queen/lease/ctl"
QUEEN_CTL = "/queen/ctl"
LEASE_SUMMARY = "/proc/lease/summary"
LEASE_ACTIVE = "/proc/lease/active"
LEASE_BY_ID = "/proc/lease/by-id"
LEASE_PREEMPTIONS = "/proc/lease/preemptions"
LIFECYCLE_STATE = "/proc/lifecycle/state"
GPU = "/gpu"


def lease_by_id(lease_id: str) -> str:
    """Path of the record of one active lease. The id must have passed ``check_lease_id``."""
    return f"{LEASE_BY_ID}/{lease_id}"


@dataclass(frozen=True, slots=True)
class TicketPaths:
    """The ticket logs below a mount.

    Attributes:
        mount: absolute path other than ``/`` without ``.``, ``..`` and empty components; a trailing ``/`` is
            dropped.

    Raises:
        ProtocolError: another mount.
    """

    mount: str = DEFAULT_MOUNT

    def __post_init__(self) -> None:
        mount = self.mount.removesuffix("/")
        root, *components = mount.split("/")
        if root or not components or any(part in {"", ".", ".."} for part in components):
            raise ProtocolError(
                f"mount {self.mount!r} must be an absolute path below / without . and .. components",
                code="mount",
                member="mount",
            )
        object.__setattr__(self, "mount", mount)

    @property
    def directory(self) -> str:
        """The directory of the logs."""
        return f"{self.mount}/tickets"

    @property
    def spec(self) -> str:
        """Requests as callers appended them."""
        return f"{self.directory}/spec"

    @property
    def spec_snapshot(self) -> str:
        """Requests as root admitted them; the only ones that are executed."""
        return f"{self.directory}/spec.snapshot"

    @property
    def status(self) -> str:
        """Results claimed, running and succeeded."""
        return f"{self.directory}/status"

    @property
    def deadletter(self) -> str:
        """Results failed and expired."""
        return f"{self.directory}/deadletter"

    @property
    def status_snapshot(self) -> str:
        """Root's read-only copy of ``status``."""
        return f"{self.directory}/status.snapshot"

    @property
    def deadletter_snapshot(self) -> str:
        """Root's read-only copy of ``deadletter``."""
        return f"{self.directory}/deadletter.snapshot"

    @property
    def retention(self) -> str:
        """Offsets of what each log still holds."""
        return f"{self.directory}/retention"

    def stream(self, name: Literal["status", "deadletter"]) -> str:
        """Path of the log that a result belongs into."""
        return self.status if name == "status" else self.deadletter

    def admission(self, sequence: int) -> str:
        """Path under which newer roots keep one admitted request after the log has dropped it."""
        return f"{self.directory}/admission/{sequence}"
