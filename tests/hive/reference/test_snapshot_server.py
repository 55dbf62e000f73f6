"""Host snapshots through a hive: its nodes, its gates, and our clients over a real console and gateway."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hive_support import TOKEN, WAITS, ManualClock, RawConsole, new_hive, raw_grant, running, running_hive
from rest_support import rest
from snapshot_vectors import ENROLMENT, LINUX, encoded, full_record, publish, record

from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.reference import STRICT_A, LabError, ReferenceHive, RefusalError
from ticket_agent.protocol.chunks import decode_lines
from ticket_agent.protocol.namespace import (
    Acked,
    HiveRefusedError,
    Namespace,
    RefusalKind,
    Refused,
)
from ticket_agent.protocol.snapshot import SnapshotEntry, UnavailableReason, snapshot_digest
from ticket_agent.protocol.snapshot_enrolment import SnapshotPublisher
from ticket_agent.protocol.snapshot_status import Withdrawn, parse_status
from ticket_agent.protocol.snapshot_transfer import CHUNK_CHARACTERS, transfer_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = ENROLMENT.paths("systemd", LINUX)
ZEROS = "0" * 64
BEGIN = f"begin bytes=2 sha256={ZEROS}"


def receiving(**options: Any) -> ReferenceHive:
    """A hive that receives what the vectors enrol, by a clock that stands still."""
    return new_hive(**{"snapshots": ENROLMENT, "monotonic": ManualClock(1000), **options})


# -- nodes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/host", ["tickets", "snapshots", "systemd", "k8s", "docker", "nvidia"]),
        (
            "/host/snapshots",
            ["docker", "endpoint_compliance", "jetson", "k8s", "launchd", "network", "nvidia", "systemd"],
        ),
        ("/host/snapshots/network", ["linux-reference", "mac-controller"]),
        ("/host/snapshots/systemd", ["linux-reference"]),
        ("/host/snapshots/systemd/linux-reference", ["ctl", "snapshot", "status"]),
    ],
)
def test_listings_come_from_the_enrolment(path: str, names: list[str]) -> None:
    for profile in ({}, {"profile": STRICT_A}):
        assert receiving(**profile).ls(path) == names


ABSENT = [
    "/host/snapshots/nope",
    "/host/snapshots/systemd/mac-controller",
    "/host/snapshots/systemd/linux-reference/nope",
    "/host/snapshots/systemd/linux-reference/ctl/more",
    "/host/snapshots/systemd/linux-reference/ctl/status",
    "/host/snapshots/linux-reference/systemd/ctl",
    "/host/snapshots/net/linux-reference/ctl",
    "/host/snapshot",
]


@pytest.mark.parametrize("path", ABSENT)
def test_there_is_nothing_else(path: str) -> None:
    hive = receiving()
    for call in (hive.ls, hive.cat, hive.tail, lambda path: hive.echo(path, "end")):
        with pytest.raises(RefusalError, match="invalid-path"):
            call(path)


@pytest.mark.parametrize("path", ["/host/snapshots", "/host/snapshots/systemd", NODES.directory])
def test_directories_are_no_files(path: str) -> None:
    hive = receiving()
    for call in (hive.cat, hive.tail, lambda path: hive.echo(path, BEGIN)):
        with pytest.raises(RefusalError, match="invalid-path"):
            call(path)


@pytest.mark.parametrize("path", [NODES.ctl, NODES.snapshot, NODES.status])
def test_a_node_is_no_directory_and_no_log(path: str) -> None:
    hive = receiving()
    for call in (hive.ls, hive.tail):
        with pytest.raises(RefusalError, match="invalid-path"):
            call(path)


def test_a_hive_without_snapshots_has_no_such_nodes() -> None:
    hive = new_hive()
    assert hive.ls("/host") == ["tickets", "systemd", "k8s", "docker", "nvidia"]
    for path in ("/host/snapshots", NODES.status):
        with pytest.raises(RefusalError, match="invalid-path"):
            hive.cat(path)
    with pytest.raises(RefusalError, match="invalid-path"):
        hive.echo(NODES.ctl, BEGIN)
    with pytest.raises(LabError, match="not enrolled"):
        hive.snapshot_status("systemd", LINUX)


def test_what_the_nodes_show() -> None:
    hive = receiving()
    assert (hive.cat(NODES.ctl), hive.cat(NODES.snapshot)) == ([], [])
    data = publish(hive.echo, record())
    assert hive.cat(NODES.ctl) == []
    assert hive.cat(NODES.snapshot) == [data.decode()]
    (line,) = hive.cat(NODES.status)
    status = hive.snapshot_status("systemd", LINUX)
    assert (parse_status(line), status.sha256) == (status, snapshot_digest(data))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mount": "/elsewhere"}, "set ecosystem.host.mount_at to /host"),
        (
            {"publishers": (SnapshotPublisher(source_id="s", providers=("p" * 65,)),)},
            "has 65 characters; a path's component has at most 64",
        ),
    ],
)
def test_what_no_console_reaches_is_not_served(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LabError, match=words):
        receiving(snapshots=replace(ENROLMENT, **changes))


# -- gates ---------------------------------------------------------------------------------------------------


def refusal(hive: ReferenceHive, path: str, payload: str, role: str = "queen") -> str:
    with pytest.raises(RefusalError) as refused:
        hive.echo(path, payload, role=role)
    return refused.value.detail


def test_only_the_queen_writes_and_only_to_ctl() -> None:
    hive = receiving()
    assert refusal(hive, NODES.ctl, BEGIN, role="worker-gpu") == "denied"
    assert refusal(hive, NODES.snapshot, "{}") == "denied"
    assert refusal(hive, NODES.status, BEGIN) == "denied"
    assert refusal(hive, NODES.snapshot, "{}", role="worker-gpu") == "denied"
    assert refusal(hive, "/host/snapshots/nope/nope/ctl", BEGIN, role="worker-gpu") == "invalid-path"


@pytest.mark.parametrize("state", ["DRAINING", "QUIESCED", "OFFLINE", "BOOTING"])
def test_the_lifecycle_closes_the_gate_before_the_payload_is_looked_at(state: str) -> None:
    hive = receiving()
    data = publish(hive.echo, record())
    hive.set_lifecycle(state)
    for payload in (BEGIN, "gibberish"):
        assert refusal(hive, NODES.ctl, payload) == "denied"
    denied = f"lifecycle denied gate=host-publish state={state}"
    assert hive.cat("/kmesg")[-2:] == [denied, denied]
    assert hive.cat(NODES.snapshot) == [data.decode()]


def test_a_degraded_hive_still_receives() -> None:
    hive = receiving()
    hive.set_lifecycle("DEGRADED")
    publish(hive.echo, record())
    assert hive.snapshot_status("systemd", LINUX).sequence == 1


def test_a_payload_reaches_ctl_with_all_its_blanks() -> None:
    hive = receiving()
    *lines, end = transfer_lines(encoded(record()))
    for line in lines:
        assert hive.echo(NODES.ctl, line) == len(line)
    for odd in (f" {end}", f"{end} ", f"{end}\n", f"\r{end}", "", "\ud800"):
        assert refusal(hive, NODES.ctl, odd) == "invalid-payload"
    assert hive.echo(NODES.ctl, end) == 3


def test_a_ticket_still_loses_the_blanks_around_it() -> None:
    hive = receiving()
    line = raw_grant(hive, hive.spawn_worker("worker-gpu"), "t-1", "lease-1")
    assert hive.echo("/host/tickets/spec", f"  {line}\n") == len(line)


# -- time ----------------------------------------------------------------------------------------------------


def test_every_operation_withdraws_first_what_has_lapsed() -> None:
    clock = ManualClock(1000)
    hive = receiving(monotonic=clock)
    worker = hive.spawn_worker("worker-gpu")

    def operations() -> Iterator[Any]:
        yield lambda: hive.ls("/")
        yield lambda: hive.cat("/proc/boot")
        yield lambda: hive.tail("/log/queen.log")
        yield lambda: hive.wire("LS", "/host")
        yield lambda: hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
        yield lambda: refusal(hive, "/nope", "x")

    for sequence, operation in enumerate(operations(), start=1):
        publish(hive.echo, record(sequence))
        clock.advance(100)
        operation()
        # The clock goes back to where the record had not lapsed: it would be visible again.
        clock.advance(-1)
        assert hive.snapshot_status("systemd", LINUX).reason is Withdrawn.CLOCK_REGRESSED
        assert hive.cat(NODES.snapshot) == []
        clock.advance(1)


def test_a_reboot_forgets_the_fence() -> None:
    hive = receiving()
    publish(hive.echo, record(9))
    for line in [*transfer_lines(encoded(record(10)))][:-1]:
        hive.echo(NODES.ctl, line)
    hive.reboot()
    status = hive.snapshot_status("systemd", LINUX)
    assert (status.sequence, status.reason) == (0, Withdrawn.UNOBSERVED)
    assert refusal(hive, NODES.ctl, "end") == "invalid-payload"
    publish(hive.echo, record(1))
    assert hive.snapshot_status("systemd", LINUX).sequence == 1


def test_the_clock_of_a_hive_is_the_machines_own_unless_one_is_given() -> None:
    hive = new_hive(snapshots=ENROLMENT)
    publish(hive.echo, record(ttl_ms=30_000))
    assert hive.snapshot_status("systemd", LINUX).available


# -- the raw console -----------------------------------------------------------------------------------------


def test_a_transfer_line_by_line_over_a_console() -> None:
    with (
        running_hive(snapshots=ENROLMENT, snapshot_clock=ManualClock()) as (hive, server),
        RawConsole(server.port) as console,
    ):
        assert console.stream(f"LS {NODES.directory}") == ["ctl", "snapshot", "status"]
        assert console.stream(f"CAT {NODES.snapshot}") == []
        data = encoded(full_record())
        lines = list(transfer_lines(data))
        assert (len(lines), max(map(len, lines))) == (8, len("b64:") + CHUNK_CHARACTERS)
        for line in lines:
            assert console.ask(f"ECHO {NODES.ctl} {line}") == f"OK ECHO path={NODES.ctl} bytes={len(line)}"
        wire = console.stream(f"CAT {NODES.snapshot}")
        assert (len(wire), max(len(line.encode()) for line in wire) <= 256) == (47, True)
        assert decode_lines(wire) == [data.decode()] == hive.cat(NODES.snapshot)
        refused = console.ask(f"ECHO {NODES.ctl} end")
        assert refused == (
            f"ERR ECHO reason=policy detail=invalid-payload path={NODES.ctl} error=invalid payload"
        )
        denied = console.ask(f"ECHO {NODES.status} end")
        assert denied == f"ERR ECHO reason=policy detail=denied path={NODES.status} error=EPERM"


def test_a_console_takes_blanks_off_before_any_node_sees_them() -> None:
    with (
        running_hive(snapshots=ENROLMENT, snapshot_clock=ManualClock()) as (hive, server),
        RawConsole(server.port) as console,
    ):
        for line in transfer_lines(encoded(record())):
            assert console.ask(f"ECHO {NODES.ctl}   {line} ") == f"OK ECHO path={NODES.ctl} bytes={len(line)}"
        assert hive.snapshot_status("systemd", LINUX).sequence == 1


# -- our clients ---------------------------------------------------------------------------------------------


@contextmanager
def client(transport: str) -> Iterator[tuple[ReferenceHive, Namespace]]:
    """A hive behind a transport, and our client of it."""
    given: dict[str, Any] = {"snapshots": ENROLMENT, "snapshot_clock": ManualClock(1000)}
    if transport == "rest":
        # What its cache does is looked at below.
        given["cache_s"] = 0.0
    with running(transport, **given) as (hive, server):
        namespace: Any = (
            rest(server.url, auth_token=TOKEN)
            if transport == "rest"
            else ConsoleNamespace(ConsoleConfig(port=server.port, token=TOKEN, use_lock=False, **WAITS))
        )
        with closing(namespace):
            yield hive, namespace


TRANSPORTS = pytest.mark.parametrize("transport", ["console", "rest"])


@TRANSPORTS
def test_the_longest_record_there_and_back(transport: str) -> None:
    with client(transport) as (hive, namespace):
        snapshot = full_record()
        data = publish(lambda path, line: _acked(namespace, path, line), snapshot)
        assert len(data) == 8192
        assert hive.cat(NODES.snapshot) == [data.decode()]
        assert namespace.read(NODES.snapshot) == [data.decode()]
        (line,) = namespace.read(NODES.status)
        assert parse_status(line).sha256 == snapshot_digest(data)
        assert namespace.read(NODES.ctl) == []


def _acked(namespace: Namespace, path: str, line: str) -> None:
    assert isinstance(namespace.append(path, line), Acked)


@TRANSPORTS
@pytest.mark.parametrize(
    "odd", ["\u2028", "\u2029", "\u0085", "\x7f", "\x1f", "\n", "\r", "\u00a0", "\ufeff", "é"]
)
def test_odd_characters_at_every_edge_of_a_value(transport: str, odd: str) -> None:
    with client(transport) as (hive, namespace):
        value = f"{odd}a{odd}{odd}{odd}b" + odd * 200
        snapshot = record(entries=(SnapshotEntry("value", value),))
        data = publish(hive.echo, snapshot)
        assert namespace.read(NODES.snapshot) == [data.decode()]


@TRANSPORTS
def test_an_absent_record_and_a_short_one_are_no_group(transport: str) -> None:
    with client(transport) as (hive, namespace):
        assert namespace.read(NODES.snapshot) == []
        (line,) = namespace.read(NODES.status)
        assert parse_status(line).reason is Withdrawn.UNOBSERVED
        publish(hive.echo, record(2, reason=UnavailableReason.NOT_ENABLED))
        (text,) = namespace.read(NODES.snapshot)
        assert json.loads(text)["reason"] == "not_enabled"


@TRANSPORTS
def test_listings_and_refusals(transport: str) -> None:
    with client(transport) as (_, namespace):
        assert namespace.ls("/host/snapshots/network") == ["linux-reference", "mac-controller"]
        for path, kind in (
            (NODES.ctl, RefusalKind.INVALID_PAYLOAD),
            (NODES.status, RefusalKind.DENIED),
            ("/host/snapshots/net/linux-reference/ctl", RefusalKind.INVALID_PATH),
        ):
            answer = namespace.append(path, "end")
            assert isinstance(answer, Refused)
            assert answer.refusal.kind is kind
        with pytest.raises(HiveRefusedError) as refused:
            namespace.read("/host/snapshots/nope/linux-reference/status")
        assert refused.value.absent


def test_a_gateway_shows_an_old_status_and_our_client_waits_it_out() -> None:
    waited: list[float] = []
    now = [100.0]

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    given: dict[str, Any] = {"snapshots": ENROLMENT, "snapshot_clock": ManualClock(1000), "cache_s": 600.0}
    with (
        running("rest", **given) as (hive, server),
        rest(server.url, auth_token=TOKEN, cache_s=600.0, sleep=sleep, monotonic=lambda: now[0]) as ours,
        rest(server.url, auth_token=TOKEN, cache_s=0.0) as careless,
    ):
        now[0] += 700.0  # past the wait for what the gateway may know of an earlier session
        before = ours.read(NODES.status)
        waited.clear()
        *lines, end = transfer_lines(encoded(record()))
        for line in lines:
            _acked(ours, NODES.ctl, line)
        assert ours.read(NODES.status) == before
        assert waited == []
        _acked(ours, NODES.ctl, end)
        assert hive.snapshot_status("systemd", LINUX).sequence == 1
        assert careless.read(NODES.status) == before
        ours.read(NODES.status)
        assert waited == [pytest.approx(600.02)]
