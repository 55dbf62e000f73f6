"""``/host/snapshots``: its directories, what its nodes show, and the commands that its ``ctl`` nodes take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.hive.console.framing import MAX_COMPONENT_LEN
from ticket_agent.protocol.paths import DEFAULT_MOUNT

from .errors import LabError, invalid_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment

    from .snapshot_receiver import SnapshotReceiver

__all__ = [
    "CONTROL",
    "check_servable",
    "is_snapshot_node",
    "list_snapshots",
    "read_snapshot_node",
    "snapshot_leaf",
]

ROOT: Final = ("host", "snapshots")
CONTROL: Final = "ctl"
LEAVES: Final = (CONTROL, "snapshot", "status")
"""Nodes of every pair, in listing order."""

COMPONENTS: Final = 3
"""Of a node's path below the root: provider, source and leaf."""


def check_servable(enrolment: SnapshotEnrolment) -> None:
    """Make sure that this hive has a path for everything enrolled.

    Raises:
        LabError: it has not.
    """
    if enrolment.mount != DEFAULT_MOUNT:
        raise LabError(
            f"the reference hive serves host nodes at {DEFAULT_MOUNT}, and the manifest mounts them at"
            f" {enrolment.mount}; set ecosystem.host.mount_at to {DEFAULT_MOUNT}"
        )
    for name in enrolment.providers():
        if len(name) > MAX_COMPONENT_LEN:
            raise LabError(
                f"provider {name} has {len(name)} characters; a path's component has at most"
                f" {MAX_COMPONENT_LEN}, so give it a shorter id"
            )


def is_snapshot_node(parts: tuple[str, ...]) -> bool:
    """Whether a path leads below ``/host/snapshots``, to a node that exists or not."""
    return parts[: len(ROOT)] == ROOT


def list_snapshots(receiver: SnapshotReceiver, below: tuple[str, ...]) -> Sequence[str] | None:
    """Return the names below a directory of ``/host/snapshots``; they come from the enrolment alone.

    None for a directory that is not there.
    """
    enrolment = receiver.enrolment
    match below:
        case ():
            return enrolment.providers()
        case (provider,):
            return enrolment.sources(provider) or None
        case (provider, source_id) if source_id in enrolment.sources(provider):
            return LEAVES
    return None


def snapshot_leaf(receiver: SnapshotReceiver, below: tuple[str, ...]) -> tuple[str, str, str]:
    """Return provider, source and leaf of an enrolled pair's node.

    Raises:
        RefusalError: invalid-path for everything else.
    """
    provider, source_id, leaf = below if len(below) == COMPONENTS else ("", "", "")
    if leaf in LEAVES and source_id in receiver.enrolment.sources(provider):
        return provider, source_id, leaf
    raise invalid_path()


def read_snapshot_node(receiver: SnapshotReceiver, below: tuple[str, ...]) -> list[str]:
    """Return what a node shows: one line, or none.

    Raises:
        RefusalError: invalid-path.
    """
    provider, source_id, leaf = snapshot_leaf(receiver, below)
    if leaf == "status":
        return [receiver.status(provider, source_id)]
    body = "" if leaf == CONTROL else receiver.snapshot(provider, source_id)
    return [body] if body else []
