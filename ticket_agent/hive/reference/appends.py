"""What an append does: which node takes it, from whom, and in which lifecycle state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .errors import RefusalError, buffer_full, denied, invalid_path, invalid_payload
from .lifecycle import Gate
from .snapshot_nodes import CONTROL, is_snapshot_node, snapshot_leaf
from .ticket_logs import LOGS, WRITABLE_LOGS
from .tree import MAX_WIRE_LINE, PROVIDERS, QUEEN, telemetry_worker

if TYPE_CHECKING:
    from .root import Root
    from .workers import WorkerEntry

__all__ = ["append"]

_TICKETS: Final = ("host", "tickets")


def append(root: Root, parts: tuple[str, ...], text: str, *, role: str, now: int) -> None:
    """Append to a node.

    Args:
        root: the root's memory.
        parts: components of the node's path.
        text: the payload.
        role: of the session.
        now: monotonic milliseconds.

    Raises:
        RefusalError: by the first gate that is closed: path, role, writability, lifecycle, payload.
    """
    worker = telemetry_worker(root, parts)
    if worker is not None:
        _write_telemetry(root, worker, text)
        return
    match parts:
        case ("host", *_) if is_snapshot_node(parts):
            _write_snapshot(root, parts[2:], text, role=role, now=now)
        case ("host", *_):
            _write_host(root, parts, text, role)
        case ("queen", "lease", "ctl"):
            _require_queen(role)
            root.lease_control(text)
        case ("queen", "ctl"):
            _require_queen(role)
            root.lifecycle.require(Gate.NEW_WORK)
            root.queen_control(text)
        case ("queen", "lifecycle", "ctl"):
            _require_queen(role)
            root.lifecycle.control(text, workers_exist=len(root.workers) > 0)
        case ("log", "queen.log"):
            _write_log(root, text)
        case _:
            raise invalid_path()


def _write_host(root: Root, parts: tuple[str, ...], text: str, role: str) -> None:
    leaf = parts[2] if parts[:2] == _TICKETS and len(parts) == len(_TICKETS) + 1 else ""
    provider_status = parts[1:] in {(provider, "status") for provider in PROVIDERS}
    if leaf not in LOGS and not provider_status:
        raise invalid_path()
    _require_queen(role)
    if leaf not in WRITABLE_LOGS:
        raise denied()
    _require_host_publish(root)
    if leaf == "spec":
        root.admissions.post(text)
    else:
        root.results.post(leaf, text)


def _write_snapshot(root: Root, below: tuple[str, ...], text: str, *, role: str, now: int) -> None:
    receiver = root.snapshots
    if receiver is None:
        raise invalid_path()
    provider, source_id, leaf = snapshot_leaf(receiver, below)
    _require_queen(role)
    if leaf != CONTROL:
        raise denied()
    _require_host_publish(root)
    receiver.write(provider, source_id, text, now)


def _write_telemetry(root: Root, worker: WorkerEntry, text: str) -> None:
    root.lifecycle.require(Gate.TELEMETRY)
    root.workers.sync(worker)
    if not worker.is_ready:
        raise denied()
    worker.ring.write(text.encode())


def _write_log(root: Root, text: str) -> None:
    if len(text.encode()) > MAX_WIRE_LINE:
        raise buffer_full()
    if not text:
        raise invalid_payload()
    root.kernel_log.append([text])


def _require_queen(role: str) -> None:
    if role != QUEEN:
        raise denied()


def _require_host_publish(root: Root) -> None:
    try:
        root.lifecycle.require(Gate.HOST_PUBLISH)
    except RefusalError:
        root.kernel_log.append([f"lifecycle denied gate=host-publish state={root.lifecycle.state}"])
        raise
