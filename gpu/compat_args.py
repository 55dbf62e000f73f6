"""Free-form arguments of the version-1 lease actions, checked and turned into the lines they mean. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.json_strict import dumps, parse_object
from ticket_agent.protocol.lease import (
    RESERVED_GPU_NAMES,
    RenewControl,
    check_lease_id,
    check_lease_resource,
    check_lease_subject,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = [
    "CompatArgsError",
    "Reservation",
    "active_reservation",
    "gpu_of",
    "kill_line",
    "newest_of",
    "parse_reservations",
    "renew_line",
    "spawn_line",
    "worker_of",
]

U8: Final = 255
U32: Final = 2**32 - 1
DEFAULT_MEM_MB: Final = 4096
DEFAULT_STREAMS: Final = 1
DEFAULT_TTL_S: Final = 120
RESERVATION_BYTES: Final = 1024
ACTIVE: Final = "ACTIVE"
RELEASED: Final = "RELEASED"


class CompatArgsError(Exception):
    """The arguments of a version-1 lease ticket cannot be carried out; the text says which and why."""

    code = "compat-args"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One record of ``/gpu/<id>/lease`` (schema ``gpu-lease/v1``), as far as a release needs it."""

    state: str
    gpu_id: str
    worker_id: str


def gpu_of(spec: HostTicketSpec) -> str:
    """The GPU a ticket is about: ``args.gpu_id``, else the target ``/gpu/<id>/...``.

    Raises:
        CompatArgsError: neither names a GPU, or the name is none.
    """
    named = _text(_args(spec), "gpu_id") or _gpu_in_target(spec.target)
    if named is None:
        raise CompatArgsError(f"{spec.action} needs args.gpu_id or a target /gpu/<id>/...")
    gpu_id = _checked(check_lease_resource, named)
    if gpu_id in RESERVED_GPU_NAMES:
        raise CompatArgsError(f"{spec.action}: /gpu/{gpu_id} is not a GPU")
    return gpu_id


def spawn_line(spec: HostTicketSpec, gpu_id: str) -> tuple[str, str]:
    """The line for ``/queen/ctl`` that reserves a GPU, and its terms for messages.

    Raises:
        CompatArgsError: a number is out of range.
    """
    args = _args(spec)
    lease: dict[str, Any] = {
        "gpu_id": gpu_id,
        "mem_mb": _number(args, "mem_mb", 1, U32, DEFAULT_MEM_MB),
        "streams": _number(args, "streams", 1, U8, DEFAULT_STREAMS),
        "ttl_s": _number(args, "ttl_s", 1, U32, DEFAULT_TTL_S),
    }
    terms = " ".join(f"{name}={value}" for name, value in lease.items())
    priority = _number(args, "priority", 0, U8, None)
    if priority is not None:
        lease["priority"] = priority
    budget = {
        name: value
        for name, member in (("ttl_s", "budget_ttl_s"), ("ops", "budget_ops"))
        if (value := _number(args, member, 1, U32, None)) is not None
    }
    control: dict[str, Any] = {"spawn": "gpu", "lease": lease}
    if budget:
        control["budget"] = budget
    return dumps(control).decode(), terms


def renew_line(spec: HostTicketSpec) -> tuple[str, str, int]:
    """The line for ``/queen/lease/ctl`` that renews a lease, the lease's id and its time to live in seconds.

    Raises:
        CompatArgsError: a number is out of range or missing, or the id is none.
    """
    args = _args(spec)
    lease_id = _checked(check_lease_id, _text(args, "lease_id") or spec.id)
    ttl_s = _number(args, "ttl_s", 1, U32, None)
    priority = _number(args, "priority", 0, U8, None)
    if priority is None:
        raise CompatArgsError(
            f"{spec.action} needs args.priority (0..=255): the hive refuses a renewal without"
        )
    ttl_s = DEFAULT_TTL_S if ttl_s is None else ttl_s
    return RenewControl(id=lease_id, ttl_s=ttl_s, priority=priority).encode(), lease_id, ttl_s


def worker_of(spec: HostTicketSpec) -> str | None:
    """The Worker that a release names, None if it names none.

    Raises:
        CompatArgsError: the name is none.
    """
    named = _text(_args(spec), "worker_id")
    return None if named is None else _checked(check_lease_subject, named)


def kill_line(worker_id: str) -> str:
    """The line for ``/queen/ctl`` that ends a Worker and with it its reservation."""
    return dumps({"kill": worker_id}).decode()


def parse_reservations(lines: Iterable[str], gpu_id: str) -> list[Reservation]:
    """The reservation records of a GPU, oldest first; lines that are none are skipped."""
    found = []
    for line in lines:
        try:
            members = parse_object(line.encode(), what="reservation", max_bytes=RESERVATION_BYTES)
        except (ProtocolError, UnicodeEncodeError):
            continue
        state, worker_id = members.get("state"), members.get("worker_id")
        if members.get("gpu_id") == gpu_id and isinstance(state, str) and isinstance(worker_id, str):
            found.append(Reservation(state=state, gpu_id=gpu_id, worker_id=worker_id))
    return found


def newest_of(reservations: Iterable[Reservation], worker_id: str) -> Reservation | None:
    """A Worker's newest record."""
    return next((record for record in reversed(list(reservations)) if record.worker_id == worker_id), None)


def active_reservation(reservations: Iterable[Reservation]) -> Reservation | None:
    """The newest record that is ACTIVE and that no later record of its Worker ends."""
    newest: dict[str, Reservation] = {}
    for record in reservations:
        newest.pop(record.worker_id, None)
        newest[record.worker_id] = record
    return next((record for record in reversed(newest.values()) if record.state == ACTIVE), None)


def _args(spec: HostTicketSpec) -> Mapping[str, Any]:
    args = {} if spec.args is None else spec.args
    if not isinstance(args, dict):
        raise CompatArgsError(f"{spec.action} takes its args as an object")
    return args


def _gpu_in_target(target: str | None) -> str | None:
    parts = (target or "").split("/")
    # "/gpu/<id>" splits into "", "gpu" and the id.
    return parts[2] if len(parts) > 2 and parts[:2] == ["", "gpu"] and parts[2] else None  # noqa: PLR2004


def _text(args: Mapping[str, Any], name: str) -> str | None:
    value = args.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise CompatArgsError(f"args.{name} must be a string")
    return value.strip() or None


def _number(args: Mapping[str, Any], name: str, low: int, high: int, default: int | None) -> int | None:
    value = args.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise CompatArgsError(f"args.{name} must be an unsigned integer")
    if not low <= value <= high:
        raise CompatArgsError(f"args.{name} must be in {low}..={high}")
    return value


def _checked(check: Any, value: str) -> str:
    try:
        return str(check(value))
    except ProtocolError as error:
        raise CompatArgsError(str(error)) from error
