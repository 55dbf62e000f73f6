"""The client on a real FUSE mount of the reference hive, which behaves as a hive's own mount tool does."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import pytest
from fuse_hive import Mounted, mounted_hive
from hive_support import DEADLETTER, LEASE_CTL, SNAPSHOT, SPEC, STATUS, raw_grant, running_hive
from mount_support import NEWEST, needs_fuse

from ticket_agent.hive.mount import tree
from ticket_agent.hive.mount.answers import MountIncompatibleError
from ticket_agent.hive.mount.client import MountConfig, MountNamespace
from ticket_agent.hive.reference import ConsoleServer, Fault, FaultKind, Faults, ReferenceHive
from ticket_agent.protocol.namespace import (
    Acked,
    HiveRefusedError,
    HiveUnreachableError,
    RefusalKind,
    Refused,
    Unknown,
)
from ticket_agent.protocol.paths import TicketPaths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = needs_fuse
LIVE_S = 3600.0
"""How long the kernel believes what it was told of a node: longer than any test."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ReferenceHive, ConsoleServer, Mounted]]:
    """One hive, one mount; tests leave both as they can be used by the next."""
    with (
        running_hive(NEWEST, faults=Faults()) as (hive, server),
        mounted_hive(
            server.port, tmp_path_factory.mktemp("fuse") / "hive", attributes_live_s=LIVE_S
        ) as mounted,
    ):
        yield hive, server, mounted


@pytest.fixture
def hive(scene: tuple[ReferenceHive, ConsoleServer, Mounted]) -> Iterator[ReferenceHive]:
    scene[0].reboot()
    yield scene[0]
    scene[1].faults.clear()


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def namespace(
    scene: tuple[ReferenceHive, ConsoleServer, Mounted], hive: ReferenceHive, slept: list[float]
) -> Iterator[MountNamespace]:
    def sleep(seconds: float) -> None:
        slept.append(seconds)
        _forget_size(scene[2].path / "host" / "tickets" / "spec")

    with MountNamespace(MountConfig(path=scene[2].path, tickets=TicketPaths()), sleep=sleep) as opened:
        yield opened


STATX = tree._statx()


def _forget_size(path: Path) -> None:
    """What time does to the size in which the kernel believes, at once."""
    assert STATX is not None
    fd = os.open(path, os.O_RDONLY)
    try:
        answer = ctypes.create_string_buffer(tree._STATX_BYTES)
        flags = tree._AT_EMPTY_PATH | tree._AT_STATX_FORCE_SYNC
        assert STATX(fd, b"", flags, tree._STATX_SIZE, answer) == 0
    finally:
        os.close(fd)


def _submit(hive: ReferenceHive, count: int, length: int = 0, name: str = "s") -> None:
    for number in range(count):
        worker = hive.spawn_worker("worker-gpu").worker_id
        ticket = f"{name}{number}".ljust(length, "x")
        hive.submit(raw_grant(hive, worker, ticket, f"{name}-{number}", key=ticket))


def test_reading_is_what_the_console_reads(hive: ReferenceHive, namespace: MountNamespace) -> None:
    _submit(hive, 30, length=100)
    for path in (SPEC, SNAPSHOT, STATUS, "/proc/boot", "/host/tickets/retention", "/proc/lifecycle/state"):
        assert namespace.read(path) == hive.cat(path), path
    assert len("\n".join(hive.cat(SNAPSHOT))) > 8192, "one answer of the mount would do"
    assert namespace.ls("/host/tickets") == sorted(set(hive.ls("/host/tickets")) - {"current"})


def test_a_log_that_wraps_is_read_as_it_is_now(hive: ReferenceHive, namespace: MountNamespace) -> None:
    _submit(hive, 12)
    before = namespace.read(SNAPSHOT)
    hive.slide(SNAPSHOT, 5)
    assert namespace.read(SNAPSHOT) == before[5:]
    hive.slide(SNAPSHOT, 100)
    assert namespace.read(SNAPSHOT) == []


def test_lines_go_in_one_by_one_without_a_pause(
    scene: tuple[ReferenceHive, ConsoleServer, Mounted],
    hive: ReferenceHive,
    namespace: MountNamespace,
    slept: list[float],
) -> None:
    for number in range(6):
        worker = hive.spawn_worker("worker-gpu").worker_id
        namespace.connect()
        # Somebody else writes as well, so that the size in which the kernel believes is wrong at once.
        (scene[2].path / "host" / "tickets" / "spec").stat()
        _submit(hive, 1, name=f"other{number}")
        line = raw_grant(hive, worker, f"t{number}", f"lease-{number}")
        assert isinstance(namespace.append(SPEC, line), Acked)
    assert len(hive.admissions()) == 12
    assert not slept


@pytest.mark.parametrize("there", [False, True])
def test_a_stale_size_is_waited_out_and_the_line_written_once(
    scene: tuple[ReferenceHive, ConsoleServer, Mounted],
    namespace: MountNamespace,
    slept: list[float],
    monkeypatch: pytest.MonkeyPatch,
    there: bool,
) -> None:
    """Where the kernel cannot be told to ask anew, EINVAL is met; a line that is there is not repeated."""
    hive = scene[0]
    monkeypatch.setattr(tree, "_statx", lambda: None)
    line = raw_grant(hive, hive.spawn_worker("worker-gpu").worker_id, "t0", "lease-0")
    namespace.connect()
    (scene[2].path / "host" / "tickets" / "spec").stat()
    if there:
        hive.submit(line)
    else:
        _submit(hive, 1)
    answer = namespace.append(SPEC, line)
    assert slept == [1.05], "longer than a kernel believes a size"
    assert isinstance(answer, Unknown if there else Acked)
    assert hive.cat(SPEC).count(line) == 1


def test_a_refusal_looks_like_a_lost_answer(hive: ReferenceHive, namespace: MountNamespace) -> None:
    answer = namespace.append(STATUS, "{}")
    assert isinstance(answer, Unknown)
    assert "EIO" in answer.why
    assert hive.appended(STATUS) == 0


def test_the_lifecycle_gate_is_named(hive: ReferenceHive, namespace: MountNamespace) -> None:
    namespace.connect()
    hive.set_lifecycle("DRAINING")
    answer = namespace.append(DEADLETTER, "{}")
    assert isinstance(answer, Unknown)
    assert "the hive is DRAINING" in answer.why
    lease = namespace.append(LEASE_CTL, "{}")
    assert isinstance(lease, Unknown)
    assert "DRAINING" not in lease.why


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/host/tickets/none", RefusalKind.INVALID_PATH),
        ("/host", RefusalKind.INVALID_PATH),
        ("/updates", RefusalKind.DENIED),
        ("/nope", RefusalKind.DENIED),
    ],
)
def test_refusals_of_the_mount_itself(namespace: MountNamespace, path: str, kind: RefusalKind) -> None:
    with pytest.raises(HiveRefusedError) as refused:
        namespace.read(path)
    assert refused.value.refusal.kind is kind
    answer = namespace.append(path, "line")
    assert isinstance(answer, Refused)
    assert answer.refusal.kind is kind


@pytest.mark.parametrize("applied", [FaultKind.DROP_AFTER, FaultKind.DROP_BEFORE])
def test_a_lost_answer_is_unknown_whether_it_was_applied_or_not(
    scene: tuple[ReferenceHive, ConsoleServer, Mounted],
    hive: ReferenceHive,
    namespace: MountNamespace,
    applied: FaultKind,
) -> None:
    line = raw_grant(hive, hive.spawn_worker("worker-gpu").worker_id, "t0", "lease-0")
    namespace.connect()
    scene[1].faults.add(Fault(kind=applied, verb="ECHO", nth=1))
    assert isinstance(namespace.append(SPEC, line), Unknown)
    assert namespace.read(SPEC) == ([line] if applied is FaultKind.DROP_AFTER else [])


def test_a_reboot_behind_the_mount_ends_the_session(hive: ReferenceHive, namespace: MountNamespace) -> None:
    _submit(hive, 1)
    namespace.connect()
    assert namespace.session == 1
    hive.reboot()
    worker = hive.spawn_worker("worker-gpu").worker_id
    with pytest.raises(HiveUnreachableError, match="session 1 is over; nothing was sent"):
        namespace.append(SPEC, raw_grant(hive, worker, "t", "lease"), session=1)
    assert namespace.session == 2
    assert not hive.cat(SPEC)


@pytest.mark.parametrize("believed_s", [0.0, LIVE_S])
def test_a_mount_whose_process_died(tmp_path: Path, believed_s: float) -> None:
    """Whether the kernel still believes what it was told of the directory, or asks and hears nothing."""
    with (
        running_hive(NEWEST) as (_, server),
        mounted_hive(server.port, tmp_path / "hive", attributes_live_s=believed_s) as mounted,
    ):
        config = MountConfig(path=mounted.path, tickets=TicketPaths(), exclusive=True)
        with MountNamespace(config) as namespace:
            namespace.read(SPEC)
            mounted.kill()
            for _ in range(2):
                with pytest.raises(HiveUnreachableError, match="ENOTCONN"):
                    namespace.read(SPEC)
            with pytest.raises(HiveUnreachableError, match="ENOTCONN"):
                namespace.append(SPEC, "line")
            mounted.unmount()
            with mounted_hive(server.port, tmp_path / "hive"):
                assert namespace.read(SPEC) == []
                assert namespace.session == 2


def test_the_first_release_of_mounts_is_recognised(tmp_path: Path) -> None:
    """Every size is 0 there and the kernel believes it: nothing can ever be read."""
    with running_hive(NEWEST) as (_, server), mounted_hive(server.port, tmp_path / "hive", "old") as mounted:
        assert os.listdir(mounted.path / "host" / "tickets")  # noqa: PTH208
        assert (mounted.path / "proc" / "boot").read_bytes() == b""
        with MountNamespace(MountConfig(path=mounted.path, tickets=TicketPaths())) as namespace:
            for operation in (
                lambda: namespace.ls("/host/tickets"),
                lambda: namespace.read(SPEC),
                lambda: namespace.append(SPEC, "{}"),
            ):
                with pytest.raises(MountIncompatibleError, match="shows every file as empty"):
                    operation()
