"""The files of a run directory: how a phase's process is found again and how its end is known.

    lock           held by the supervisor from before it exists until it is gone; the kernel releases it
    running.json   who runs, written durably before the phase's first instruction
    exit.json      how it ended, written durably when nothing of the phase is left
    output-*       what it wrote (see ``output_ring``)

What the files say together is unambiguous at every crash point: a free lock without ``running.json`` means
that nothing was started and nothing will be.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final, Self

from ticket_agent.peft.release.launch_errors import RunFileError
from ticket_agent.peft.release.process import ProcessIdentity

__all__ = [
    "EXIT_FILE",
    "LOCK_FILE",
    "MAX_RUN_FILE_BYTES",
    "MAX_TEXT",
    "RUNNING_FILE",
    "STARTING_FILES",
    "EndReason",
    "ExitRecord",
    "RunRecord",
    "now_ms",
    "read_exit",
    "read_running",
    "reserve_exit",
    "write_exit",
    "write_running",
]

LOCK_FILE: Final = "lock"
RUNNING_FILE: Final = "running.json"
EXIT_FILE: Final = "exit.json"
_RESERVED: Final = ".exit.reserved"
_RUNNING_NEW: Final = ".running.partial"

STARTING_FILES: Final = (LOCK_FILE, _RESERVED, _RUNNING_NEW)
"""What may be there before anything was started, and never with anything else."""

MAX_RUN_FILE_BYTES: Final = 4096
MAX_TEXT: Final = 400
"""Characters of free text in these files."""

_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_RUNNING_SCHEMA: Final = "ticket-agent-phase-running/v1"
_EXIT_SCHEMA: Final = "ticket-agent-phase-exit/v1"


class EndReason(StrEnum):
    """Why a phase's process is no more."""

    EXITED = "exited"
    """By itself, or by a signal that was not ours."""
    STOPPED = "stopped"
    """Somebody asked the supervisor to stop it."""
    DEADLINE = "deadline"
    """Its time was over."""
    NOT_STARTED = "not-started"
    """Its program could not be executed; not one instruction of it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """``running.json``.

    Attributes:
        launch_id: the caller's name of this launch.
        marker: random text that is in the environment of everything the phase starts.
        launcher: what confines it.
        unit: its systemd unit, or None.
        supervisor: the process that watches.
        child: the process that it started.
        started_unix_ms: when.
    """

    launch_id: str
    marker: str
    launcher: str
    unit: str | None
    supervisor: ProcessIdentity
    child: ProcessIdentity
    started_unix_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """``exit.json``.

    Attributes:
        launch_id: the caller's name of this launch.
        reason: why it ended.
        code: exit code, or None when it was killed or never ran.
        signal: number of the signal that killed it, or None. A confining program that runs in between
            reports the death by signal n of what it ran as a code: bubblewrap as 128 + n, systemd-run as 255.
        started_unix_ms: when it was started.
        ended_unix_ms: when nothing of it was left.
        output_bytes: how much it wrote.
        output_lost_bytes: how much of that could not be kept because the disk was full or failed.
        error: why it did not start, or None.
    """

    launch_id: str
    reason: EndReason
    code: int | None
    signal: int | None
    started_unix_ms: int
    ended_unix_ms: int
    output_bytes: int
    output_lost_bytes: int
    error: str | None = None

    @property
    def succeeded(self) -> bool:
        """It ended by itself with code 0; what it achieved, only its own observation can tell."""
        return self.reason is EndReason.EXITED and self.code == 0

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Read what :func:`write_exit` wrote."""
        wanted = {field.name: field.type for field in fields(cls)}
        if value.keys() != wanted.keys():
            raise RunFileError(f"{EXIT_FILE} has other members than its writer gives it")
        for name, annotation in wanted.items():
            allowed: list[type] = [type(None)] if "None" in annotation else []
            allowed.append(int if "int" in annotation else str)
            if type(value[name]) not in allowed:
                raise RunFileError(f"{EXIT_FILE}: {name} has the wrong type")
        try:
            return cls(**{**value, "reason": EndReason(value["reason"])})
        except ValueError:
            raise RunFileError(f"{EXIT_FILE}: the reason is none that is known") from None


def now_ms() -> int:
    """Wall clock."""
    return time.time_ns() // 1_000_000


def write_running(dir_fd: int, record: RunRecord) -> None:
    """Durably write ``running.json``, which must not exist.

    Raises:
        OSError: the file system failed.
    """
    body = {
        **{name: getattr(record, name) for name in ("launch_id", "marker", "launcher", "unit")},
        "supervisor": record.supervisor.to_json(),
        "child": record.child.to_json(),
        "started_unix_ms": record.started_unix_ms,
    }
    fd = os.open(_RUNNING_NEW, _NEW, 0o600, dir_fd=dir_fd)
    _fill(dir_fd, fd, _RUNNING_NEW, RUNNING_FILE, _encode(_RUNNING_SCHEMA, body))


def read_running(dir_fd: int) -> RunRecord | None:
    """Read ``running.json``; None when it does not exist.

    Raises:
        RunFileError: it is damaged.
        OSError: the file system failed.
    """
    value = _read(dir_fd, RUNNING_FILE, _RUNNING_SCHEMA)
    match value:
        case None:
            return None
        case {
            "launch_id": str(launch_id),
            "marker": str(marker),
            "launcher": str(launcher),
            "unit": str() | None as unit,
            "supervisor": supervisor,
            "child": child,
            "started_unix_ms": int(started),
        } if len(value) == 7:  # noqa: PLR2004 - these and no other ones
            return RunRecord(
                launch_id=launch_id,
                marker=marker,
                launcher=launcher,
                unit=unit,
                supervisor=ProcessIdentity.from_json(supervisor),
                child=ProcessIdentity.from_json(child),
                started_unix_ms=started,
            )
    raise RunFileError(f"{RUNNING_FILE} has other members than its writer gives it")


def reserve_exit(dir_fd: int) -> None:
    """Allocate the space of ``exit.json`` before anything runs, so that a full disk cannot swallow the end.

    Raises:
        OSError: there is no space, or the file system failed.
    """
    fd = os.open(_RESERVED, _NEW, 0o600, dir_fd=dir_fd)
    try:
        os.posix_fallocate(fd, 0, MAX_RUN_FILE_BYTES)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.fsync(dir_fd)


def write_exit(dir_fd: int, record: ExitRecord) -> None:
    """Durably write ``exit.json`` into the space that was reserved.

    Raises:
        OSError: the file system failed.
    """
    fd = os.open(_RESERVED, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    _fill(dir_fd, fd, _RESERVED, EXIT_FILE, _encode(_EXIT_SCHEMA, asdict(record)))


def read_exit(dir_fd: int) -> ExitRecord | None:
    """Read ``exit.json``; None when it does not exist.

    Raises:
        RunFileError: it is damaged.
        OSError: the file system failed.
    """
    value = _read(dir_fd, EXIT_FILE, _EXIT_SCHEMA)
    return None if value is None else ExitRecord.from_json(value)


def _encode(schema: str, body: dict[str, Any]) -> bytes:
    data = json.dumps({"schema": schema, **body}, separators=(",", ":")).encode() + b"\n"
    if len(data) > MAX_RUN_FILE_BYTES:
        raise RunFileError(f"a run file of {len(data)} bytes exceeds {MAX_RUN_FILE_BYTES}")
    return data


def _fill(dir_fd: int, fd: int, name: str, final: str, data: bytes) -> None:
    try:
        done = 0
        while done < len(data):
            done += os.write(fd, data[done:])
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(name, final, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    os.fsync(dir_fd)


def _read(dir_fd: int, name: str, schema: str) -> dict[str, Any] | None:
    try:
        fd = os.open(name, _READ, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    try:
        data = os.read(fd, MAX_RUN_FILE_BYTES + 1)
    finally:
        os.close(fd)
    value: object = None
    with suppress(ValueError, RecursionError):
        value = json.loads(data)
    if len(data) > MAX_RUN_FILE_BYTES or not isinstance(value, dict) or value.pop("schema", None) != schema:
        raise RunFileError(f"{name} is damaged or of another version ({len(data)} bytes)")
    return value
