"""What the daemon says: events, the status file, the service manager's socket."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import pytest
from agent_support import Bench, agent_on
from capability_support import lab_ticket
from hive_support import ManualClock, raw_grant, running_hive

from ticket_agent.agent.events import EVENT_SCHEMA, EventLog
from ticket_agent.agent.notify import ServiceNotifier
from ticket_agent.agent.statusfile import MAX_STATUS_BYTES, STATUS_NAME, StatusFile, read_status
from ticket_agent.protocol.capability import decode_ticket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = 1_700_000_000_123


# -- events


def _log(stream: TextIO, **options: str) -> EventLog:
    return EventLog(stream, clock=lambda: NOW, **options)  # type: ignore[arg-type]


def test_json_events_are_one_object_per_line() -> None:
    stream = io.StringIO()
    _log(stream, style="json").emit("info", "transition", key="k\n", count=3, yes=True, absent=None)
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line) == {
        "schema": EVENT_SCHEMA,
        "unix_ms": NOW,
        "level": "info",
        "event": "transition",
        "key": "k\n",
        "count": 3,
        "yes": True,
    }


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_capability_ticket_never_reaches_the_log(style: str) -> None:
    stream = io.StringIO()
    _log(stream, style=style).emit("warning", "refused", detail=f"ERR ATTACH {lab_ticket()} denied")
    assert lab_ticket()[15:60] not in stream.getvalue()
    assert f"[ticket {decode_ticket(lab_ticket()).fingerprint}] denied" in stream.getvalue()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ('say "x"', '"say \\"x\\""'),
        ("line\nbreak", '"line\\nbreak"'),
        (7, "7"),
    ],
)
def test_text_events_keep_to_one_line(value: str | int, shown: str) -> None:
    stream = io.StringIO()
    _log(stream).emit("warning", "waiting", why=value)
    assert stream.getvalue() == f"2023-11-14T22:13:20.123Z warning waiting why={shown}\n"


def test_events_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    log = _log(stream, style="json", level="warning")
    for level in ("debug", "info", "warning", "error"):
        log.emit(level, level)
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["warning", "error"]


def test_the_same_detail_about_a_subject_is_written_once() -> None:
    stream = io.StringIO()
    log = _log(stream, style="json")
    for subject, detail in [("a", "x"), ("a", "x"), ("b", "x"), ("a", "y"), ("a", "y"), ("a", "x")]:
        log.once("info", "waiting", subject, detail)
    log.settled("waiting", "a")
    log.settled("waiting", "never-seen")
    log.once("info", "waiting", "a", "x")
    assert [json.loads(line)["detail"] for line in stream.getvalue().splitlines()] == [
        "x",
        "x",
        "y",
        "x",
        "x",
    ]


def test_what_is_remembered_is_bounded() -> None:
    log = _log(io.StringIO())
    for number in range(10_000):
        log.once("info", "waiting", str(number), "x")
    assert len(log._last) <= 4096


def test_a_stream_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    closed = io.StringIO()
    closed.close()
    _log(closed).emit("error", "anything")
    reading, writing = os.pipe()
    os.close(reading)
    # Unbuffered, so that nothing is left to be flushed when the broken pipe is closed.
    with io.TextIOWrapper(os.fdopen(writing, "wb", buffering=0), write_through=True) as broken:
        _log(broken).emit("error", "anything")


# -- status file


@contextmanager
def _waiting_agent(tmp_path: Path, tickets: int = 1) -> Iterator[Bench]:
    clock = ManualClock()
    with (
        running_hive(clock=clock) as (hive, server),
        agent_on(server, tmp_path / "state", clock=clock) as bench,
    ):
        for number in range(tickets):
            worker = hive.spawn_worker("worker-gpu")
            hive.submit(raw_grant(hive, worker, f"t{number}", f"lease-{number}"))
        hive.set_lifecycle("DRAINING")
        bench.passes(1)
        yield bench


@contextmanager
def _status_in(path: Path, bench: Bench, now: list[float] | None = None) -> Iterator[tuple[StatusFile, int]]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield (
            StatusFile(
                fd,
                pid=42,
                boot_id="boot",
                clock=bench.clock,
                monotonic=lambda: now[0] if now is not None else 0.0,
            ),
            fd,
        )
    finally:
        os.close(fd)


def test_the_status_says_who_waits_for_what(tmp_path: Path) -> None:
    with _waiting_agent(tmp_path) as bench, _status_in(tmp_path, bench) as (status, fd):
        bench.agent.unparsable["odd"] = "from the future"
        status.write(bench.agent)
        document = read_status(fd)
        assert document is not None
        assert document["pid"] == 42
        assert document["epoch"] == 1
        assert "DRAINING" in document["waiting"]["2:t0:key-t0"]
        assert document["unparsable"] == {"odd": "from the future"}
        assert (tmp_path / STATUS_NAME).stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [STATUS_NAME, "state"]


def test_the_status_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    now = [10.0]
    with _waiting_agent(tmp_path) as bench, _status_in(tmp_path, bench, now) as (status, fd):
        seen = []
        for moment in (10.0, 10.5, 10.999, 11.0, 11.5):
            now[0] = moment
            bench.agent.totals.passes = int(moment * 1000)
            status.write_if_due(bench.agent)
            document = read_status(fd)
            assert document is not None
            seen.append(document["passes"])
    assert seen == [10_000, 10_000, 10_000, 11_000, 11_000]


def test_the_status_stays_readable_however_much_waits(tmp_path: Path) -> None:
    with _waiting_agent(tmp_path, 20) as bench, _status_in(tmp_path, bench) as (status, fd):
        for op in bench.agent.operations.values():
            op.waiting = "w\x00\u20ac" * 5_000
        bench.agent.unparsable.update({f"{number:04d}" + "k" * 500: "u" * 5_000 for number in range(300)})
        status.write(bench.agent)
        assert (tmp_path / STATUS_NAME).stat().st_size < MAX_STATUS_BYTES
        document = read_status(fd)
        assert document is not None
        assert len(document["waiting"]) == 20
        assert len(document["unparsable"]) == 100


def test_a_link_at_the_temporarys_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    with _waiting_agent(tmp_path) as bench, _status_in(tmp_path, bench) as (status, fd):
        (tmp_path / f".{STATUS_NAME}.42.tmp").symlink_to(victim)
        status.write(bench.agent)
        assert read_status(fd) is not None
    assert victim.read_text() == "precious"
    assert not (tmp_path / STATUS_NAME).is_symlink()


def test_a_link_at_the_files_own_name_is_replaced_and_never_read_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text('{"schema":"ticket-agent-status/v1"}')
    with _waiting_agent(tmp_path) as bench, _status_in(tmp_path, bench) as (status, fd):
        (tmp_path / STATUS_NAME).symlink_to(victim)
        assert read_status(fd) is None
        status.write(bench.agent)
        assert read_status(fd) is not None
    assert victim.read_text() == '{"schema":"ticket-agent-status/v1"}'


def test_a_directory_that_takes_no_file_is_tolerated(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with _waiting_agent(tmp_path) as bench, _status_in(gone, bench) as (status, fd):
        gone.rmdir()
        status.write(bench.agent)
        assert read_status(fd) is None


@pytest.mark.parametrize(("room", "expected"), [(None, 2), (300, 1), (0, 1)])
def test_a_disk_that_takes_a_part_leaves_the_last_whole_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int | None, expected: int
) -> None:
    """A write may come out short: the rest follows, or the file of before stays."""
    real, taken = os.write, [0]

    def writes_a_little(fd: int, data: bytes) -> int:
        if room is not None and taken[0] >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(fd, bytes(data[:100]))
        taken[0] += written
        return written

    place = tmp_path / "place"
    place.mkdir()
    with _waiting_agent(tmp_path) as bench, _status_in(place, bench) as (status, fd):
        bench.agent.totals.passes = 1
        status.write(bench.agent)
        bench.agent.totals.passes = 2
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", writes_a_little)
            status.write(bench.agent)
        document = read_status(fd)
        assert document is not None
        assert document["passes"] == expected
        assert [path.name for path in place.iterdir()] == [STATUS_NAME]


def test_a_directory_at_the_files_name_leaves_no_litter(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / STATUS_NAME).mkdir(parents=True)
    with _waiting_agent(tmp_path) as bench, _status_in(place, bench) as (status, _fd):
        status.write(bench.agent)
        assert [path.name for path in place.iterdir()] == [STATUS_NAME]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema":"other"}', b"\xff", b"{}" + b" " * 300_000])
def test_what_is_no_status_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / STATUS_NAME).write_bytes(data)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert read_status(fd) is None
    finally:
        os.close(fd)


# -- service manager


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_the_manager_hears_everything(tmp_path: Path, abstract: bool) -> None:
    name = f"@ticket-agent-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(60)
        notifier = ServiceNotifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000"}, pid=1)
        assert notifier.watchdog_s == 3.0
        notifier.ready("serving")
        notifier.status("one waits")
        notifier.alive()
        notifier.stopping()
        heard = [manager.recv(4096) for _ in range(4)]
    assert heard == [b"READY=1\nSTATUS=serving", b"STATUS=one waits", b"WATCHDOG=1", b"STOPPING=1"]


def test_without_a_watchdog_no_sign_of_life_is_sent(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        notifier = ServiceNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}, pid=1)
        notifier.alive()
        notifier.stopping()
        assert manager.recv(4096) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "/nobody/listens", "x" * 300, "vsock:2:1234"])
def test_a_manager_that_is_not_there_is_no_error(address: str) -> None:
    notifier = ServiceNotifier({"NOTIFY_SOCKET": address}, pid=1)
    notifier.ready("serving")
    notifier.stopping()


@pytest.mark.parametrize(
    ("usec", "owner", "interval"),
    [
        ("2000000", "", 2.0),
        ("2000000", "7", 2.0),
        ("2000000", "8", None),
        ("", "", None),
        ("0", "", None),
        ("000", "7", None),
        ("-1", "", None),
        ("1e6", "", None),
        ("\u0663", "", None),
        ("9" * 5000, "", None),
        ("18446744073709551615", "", None),
    ],
)
def test_the_watchdogs_interval(usec: str, owner: str, interval: float | None) -> None:
    """Zero would make the loop spin; more than 64 bits would not even parse."""
    environ = {"WATCHDOG_USEC": usec, "WATCHDOG_PID": owner}
    assert ServiceNotifier(environ, pid=7).watchdog_s == interval
