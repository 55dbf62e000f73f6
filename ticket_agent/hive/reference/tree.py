"""The namespace: which node answers which verb, and what it answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.chunks import encode_line
from ticket_agent.protocol.current import CurrentTicket, encode_current
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.shard import shard_label

from .errors import buffer_full, denied, invalid_path
from .snapshot_nodes import list_snapshots, read_snapshot_node
from .ticket_logs import LOGS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .root import Root
    from .workers import WorkerEntry

__all__ = [
    "MAX_ANSWER_FRAMES",
    "MAX_WIRE_LINE",
    "PROVIDERS",
    "QUEEN",
    "Content",
    "cat",
    "listing",
    "split_path",
    "tail",
    "telemetry_worker",
    "wire_lines",
]

QUEEN: Final = "queen"
"""The role whose session may write."""

PROVIDERS: Final = ("systemd", "k8s", "docker", "nvidia")
"""Provider directories in listing order; the root offers one read-only ``status`` in each."""

MAX_WIRE_LINE: Final = 256
"""Longest line of an answer, in bytes."""

MAX_ANSWER_FRAMES: Final = 64
"""Most data frames of one answer; all lines share the budget."""

_MAX_DEPTH: Final = 8
_MAX_COMPONENT: Final = 64
_LABEL = re.compile(r"[0-9a-f]{2}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DECIMAL = re.compile(r"[1-9][0-9]{0,19}")
_LEASE_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")

_GPU_SERVICE_NODES: Final = ("bridge", "models", "telemetry")

_STATIC: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    (): ("gpu", "kmesg", "log", "proc", "queen", "trace", "updates", "shard", "worker", "host"),
    **{("host", provider): ("status",) for provider in PROVIDERS},
    ("log",): ("queen.log",),
    ("proc",): ("boot", "lifecycle", "lease"),
    ("proc", "lifecycle"): ("state", "reason", "since"),
    ("proc", "lease"): ("summary", "active", "by-id", "preemptions"),
    ("queen", "lifecycle"): ("ctl",),
    ("queen", "lease"): ("ctl",),
    ("queen", "telemetry"): (),
    ("trace",): ("ctl", "events"),
    ("updates",): (),
    ("gpu", "bridge"): ("ctl", "status"),
    ("gpu", "models"): (),
    ("gpu", "telemetry"): (),
}


@dataclass(frozen=True, slots=True)
class Content:
    """What a node holds: logical lines, and whether long ones may be cut into C1 frames."""

    lines: list[str]
    chunked: bool = False


def split_path(path: str) -> tuple[str, ...]:
    """Return the components of an absolute path; ``/`` has none.

    Raises:
        RefusalError: invalid-path.
    """
    if not path.startswith("/"):
        raise invalid_path()
    parts = tuple(path[1:].split("/")) if path != "/" else ()
    if len(parts) > _MAX_DEPTH or any(
        part in {"", ".", ".."} or "\0" in part or len(part.encode()) > _MAX_COMPONENT for part in parts
    ):
        raise invalid_path()
    return parts


def wire_lines(content: Content) -> list[str]:
    """Return the data lines of an answer.

    Raises:
        RefusalError: buffer-full when a line or the whole answer does not fit.
    """
    wire: list[str] = []
    for line in content.lines:
        if content.chunked:
            wire.extend(_chunks(line))
        elif len(line.encode()) <= MAX_WIRE_LINE:
            wire.append(line)
        else:
            raise buffer_full()
    if len(wire) > MAX_ANSWER_FRAMES:
        raise buffer_full()
    return wire


@lru_cache(maxsize=1024)
def _chunks(line: str) -> tuple[str, ...]:
    # Agents poll, so that the same lines are cut again and again.
    try:
        return tuple(encode_line(line))
    except ProtocolError:
        raise buffer_full() from None


def listing(root: Root, parts: tuple[str, ...]) -> list[str]:
    """Return the names below a directory.

    Raises:
        RefusalError: invalid-path.
    """
    root.workers.sync_all()
    names: Sequence[str] | None = _STATIC.get(parts)
    if names is None and parts:
        lister = _LISTERS.get(parts[0])
        names = None if lister is None else lister(root, parts[1:])
    if names is None:
        raise invalid_path()
    return list(names)


def _list_host(root: Root, rest: tuple[str, ...]) -> Sequence[str] | None:
    profile = root.profile
    extra = [
        name for name, there in (("retention", profile.retention), ("current", profile.current)) if there
    ]
    match rest:
        case ():
            return ["tickets", *([] if root.snapshots is None else ["snapshots"]), *PROVIDERS]
        case ("snapshots", *below) if root.snapshots is not None:
            return list_snapshots(root.snapshots, tuple(below))
        case ("tickets",):
            return [*LOGS, *extra]
        case ("tickets", "current") if profile.current:
            return []
    return None


def _list_gpu(root: Root, rest: tuple[str, ...]) -> Sequence[str] | None:
    if not rest:
        return [*_GPU_SERVICE_NODES, *root.gpus.ids()]
    return ["info", "ctl", "lease", "status"] if rest[0] in root.gpus.ids() and len(rest) == 1 else None


def _list_proc(root: Root, rest: tuple[str, ...]) -> Sequence[str] | None:
    return [record.id for record in root.leases.active()] if rest == ("lease", "by-id") else None


def _list_shard(root: Root, rest: tuple[str, ...]) -> Sequence[str] | None:
    match rest:
        case ():
            return root.workers.labels()
        case (label,) if _LABEL.fullmatch(label):
            return ["worker"]
        case (label, "worker") if _LABEL.fullmatch(label):
            return root.workers.published(label)
        case (_, "worker", _) if telemetry_worker(root, ("shard", *rest, "telemetry")):
            return ["telemetry"]
    return None


def _list_worker(root: Root, rest: tuple[str, ...]) -> Sequence[str] | None:
    if not rest:
        return root.workers.published()
    return ["telemetry"] if telemetry_worker(root, ("worker", *rest, "telemetry")) else None


def _list_queen(root: Root, rest: tuple[str, ...]) -> Sequence[str] | None:
    match rest:
        case ():
            return ["ctl", "lifecycle", "telemetry", "lease", *(["export"] if root.exports.ids() else [])]
        case ("export",) if root.exports.ids():
            return ["lora_jobs"]
        case ("export", "lora_jobs"):
            return root.exports.ids() or None
        case ("export", "lora_jobs", job_id):
            return root.exports.names(job_id)
    return None


_LISTERS: Final[Mapping[str, Callable[[Root, tuple[str, ...]], Sequence[str] | None]]] = {
    "host": _list_host,
    "gpu": _list_gpu,
    "proc": _list_proc,
    "queen": _list_queen,
    "shard": _list_shard,
    "worker": _list_worker,
}


def cat(root: Root, parts: tuple[str, ...], role: str) -> Content:
    """Return the whole content of a file.

    Raises:
        RefusalError: invalid-path, or EPERM for a node that only the queen may read.
    """
    if telemetry_worker(root, parts) is not None and not root.profile.telemetry_cat:
        raise invalid_path()
    match parts:
        case ("host", "tickets", *rest):
            return _cat_ticket_node(root, tuple(rest), role)
        case ("host", "snapshots", *rest) if root.snapshots is not None:
            return Content(read_snapshot_node(root.snapshots, tuple(rest)), chunked=True)
        case ("proc", "lease", *rest):
            return _cat_lease_node(root, tuple(rest))
        case ("gpu", *rest):
            return _cat_gpu_node(root, tuple(rest))
    lines = _plain_lines(root, parts)
    return tail(root, parts) if lines is None else Content(lines)


def _plain_lines(root: Root, parts: tuple[str, ...]) -> list[str] | None:
    line: str | None = None
    match parts:
        case ("host", provider, "status") if provider in PROVIDERS:
            line = "unavailable source=none"
        case ("proc", "lifecycle", name):
            line = root.lifecycle.node(name)
        case ("proc", "boot"):
            return ["Cohesix boot: root-task online", f"manifest.profile={root.profile.name}"]
        case ("kmesg",):
            return root.kernel_log.lines()
        case ("queen", "export", "lora_jobs", job_id, name):
            return root.exports.lines(job_id, name)
    return None if line is None else [line]


def tail(root: Root, parts: tuple[str, ...]) -> Content:
    """Return the retained lines of a log-like node.

    Raises:
        RefusalError: invalid-path where TAIL is not offered.
    """
    worker = telemetry_worker(root, parts)
    if worker is not None:
        root.workers.sync(worker)
        return Content(worker.ring.lines())
    match parts:
        case ("host", "tickets", leaf) if leaf in LOGS and root.profile.ticket_tail:
            return Content(root.logs.lines(leaf), chunked=True)
        case ("gpu", gpu_id, "lease"):
            lines = root.gpus.lease_lines(gpu_id)
            if lines is not None:
                return Content(lines)
        case ("log", "queen.log"):
            return Content(root.kernel_log.lines())
        case ("queen", "lease", "ctl"):
            return Content(root.leases.log.lines())
    raise invalid_path()


def telemetry_worker(root: Root, parts: tuple[str, ...]) -> WorkerEntry | None:
    """Return the published Worker whose telemetry a path names, by its one true shard label or its alias."""
    match parts:
        case ("shard", label, "worker", worker_id, "telemetry") if label == shard_label(worker_id):
            pass
        case ("worker", worker_id, "telemetry"):
            pass
        case _:
            return None
    worker = root.workers.get(worker_id)
    return worker if worker is not None and worker.ready else None


def _cat_ticket_node(root: Root, rest: tuple[str, ...], role: str) -> Content:
    match rest:
        case (leaf,) if leaf in LOGS:
            return Content(root.logs.lines(leaf), chunked=True)
        case ("retention",) if root.profile.retention:
            return Content(root.logs.retention_lines())
        case ("current", digest) if root.profile.current and _DIGEST.fullmatch(digest):
            return Content([_current_line(root, digest)])
        case ("admission", number) if root.profile.admission_refetch:
            if role != QUEEN:
                raise denied()
            admission = root.admissions.by_sequence(int(number)) if _DECIMAL.fullmatch(number) else None
            if admission is not None:
                return Content([admission.line], chunked=True)
    raise invalid_path()


def _current_line(root: Root, digest: str) -> str:
    admission = root.admissions.by_digest(digest)
    if admission is None:
        raise invalid_path()
    worker_id = admission.admitted.receipt_worker_id or ""
    identity = admission.identity
    worker = root.workers.get(worker_id)
    exact = worker if worker is not None and worker.identity == identity else None
    return encode_current(
        CurrentTicket(
            state=admission.outcome or "pending",
            role=identity.role,
            worker=worker_id,
            lifecycle="absent" if exact is None else exact.phase.value,
            slot=identity.slot,
            lease_epoch=identity.lease_epoch,
            supervisor_generation=identity.supervisor_generation,
            cap_generation=identity.cap_generation,
            ready_sequence=0 if exact is None else exact.ready,
            control_sequence=0 if exact is None else exact.control,
            receipt_sequence=0 if exact is None else exact.receipt,
            completion_sequence=0 if exact is None else exact.completion,
            admission=admission.sequence,
        )
    )


def _cat_lease_node(root: Root, rest: tuple[str, ...]) -> Content:
    match rest:
        case ("summary",):
            return Content([root.leases.summary_line()])
        case ("active",):
            return Content(root.leases.active_lines())
        case ("preemptions",):
            return Content(root.leases.preemption_lines())
        case ("by-id", lease_id) if _LEASE_ID.fullmatch(lease_id):
            return Content(root.leases.by_id_lines(lease_id))
    raise invalid_path()


def _cat_gpu_node(root: Root, rest: tuple[str, ...]) -> Content:
    lines: list[str] | None = None
    match rest:
        case ("bridge", "status"):
            lines = [root.gpus.status()]
        case (gpu_id, "info"):
            lines = root.gpus.info_lines(gpu_id)
        case (gpu_id, "lease"):
            lines = root.gpus.lease_lines(gpu_id)
        case (gpu_id, "ctl") if gpu_id in root.gpus.ids():
            lines = [f"LEASE {gpu_id}"]
        case (gpu_id, "status") if gpu_id in root.gpus.ids():
            lines = []
    if lines is None:
        raise invalid_path()
    return Content(lines)
