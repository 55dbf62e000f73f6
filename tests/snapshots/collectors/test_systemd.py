"""The collector ``systemd``: its projection, and its talk with a manager on a real bus, good and bad."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from collector_support import SHORT_S, context, published, refusal, vector_entries
from systemd_standin import INVOCATION, Manager, bus, needs_bus, unit_properties

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import DEFAULT_BOUNDS, SnapshotBounds, UnavailableReason
from ticket_agent.snapshots.collectors.dbus import MAX_MESSAGE_BYTES, ReplyTypeError, socket_of
from ticket_agent.snapshots.collectors.systemd import PATTERNS, collect, listed, project, unit_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.protocol.collecting import CollectContext
    from ticket_agent.protocol.snapshot import SnapshotEntry

AGENT, SSH = "cohesix-agent.service", "ssh.service"
ERRORS = "org.freedesktop.DBus.Error."


def values(unit: str = AGENT, **changes: Any) -> dict[str, Any]:
    return {name: value for name, (_, value) in unit_properties(unit).items()} | changes


def units(count: int) -> dict[str, dict[str, Any]]:
    names = [f"cohesix-w{index:03}.service" for index in range(count)]
    return {name: unit_properties(name) for name in names}


class TestProjection:
    def test_it_gives_the_shape_of_the_vector(self) -> None:
        stopped = values(SSH, InvocationID=b"", ActiveState="inactive", SubState="dead")
        entries = project([unit_entry(SSH, stopped), unit_entry(AGENT, values())], 0, DEFAULT_BOUNDS)
        assert entries == vector_entries("systemd_two_units")

    @pytest.mark.parametrize(
        "changes",
        [
            {"InvocationID": b"\x00\x01"},
            {"InvocationID": bytes(17)},
            {"Id": SSH},
            {"ActiveState": ""},
            {"ActiveState": "act ive"},
            {"SubState": "run\nning"},
            {"SubState": "r" * 129},
            {"Result": "../success"},
        ],
    )
    def test_what_systemd_does_not_give_is_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(ReplyTypeError):
            unit_entry(AGENT, values(**changes))

    def test_a_job_is_shown_by_its_number(self) -> None:
        entry = unit_entry(AGENT, values(Job=(2**32 - 1, "/org/freedesktop/systemd1/job/4294967295")))
        assert published("systemd", [entry])[entry.path] == {
            "unit": AGENT,
            "invocation_id": INVOCATION.hex(),
            "active_state": "active",
            "sub_state": "running",
            "job_id": 2**32 - 1,
            "service_result": "success",
        }

    def test_names_are_sorted_and_unique(self) -> None:
        assert listed([("b.service", 1), ("a.service", 2)]) == ["a.service", "b.service"]
        with pytest.raises(CollectError, match="twice"):
            listed([("a.service",), ("a.service",)])

    def test_no_units_are_a_source_and_nothing_else(self) -> None:
        assert published("systemd", project([], 0, DEFAULT_BOUNDS)) == {"source": "systemd-manager-dbus"}

    def test_bounds_without_room_for_the_count_are_refused(self) -> None:
        with pytest.raises(CollectError, match="raise"):
            project([unit_entry(AGENT, values())], 0, SnapshotBounds(max_entries=1))

    @pytest.mark.parametrize("most", [2, 3, 40, 64])
    @pytest.mark.parametrize("size", [700, 2000, 8192])
    def test_every_unit_is_shown_or_counted(self, most: int, size: int) -> None:
        bounds = SnapshotBounds(max_entries=most, max_bytes=size)
        rows = [unit_entry(name, values(name)) for name in units(70)]
        seen = published("systemd", project(rows, 5, bounds), bounds)
        shown = [path for path in seen if path.startswith("units/")]
        assert seen["omitted"] == {"units": 75 - len(shown)}
        assert shown == [f"units/{name}" for name in list(units(70))[: len(shown)]]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with bus(tmp_path) as found:
        yield found


def at(address: str, **options: Any) -> CollectContext:
    return context({"DBUS_SYSTEM_BUS_ADDRESS": address}, **options)


def seen(entries: list[SnapshotEntry]) -> dict[str, Any]:
    return published("systemd", entries)


@needs_bus
class TestOnABus:
    def test_two_units_as_in_the_vector(self, address: str) -> None:
        stopped = unit_properties(
            SSH, InvocationID=("ay", b""), ActiveState=("s", "inactive"), SubState=("s", "dead")
        )
        manager = Manager(units={SSH: stopped, AGENT: unit_properties(AGENT)})
        with manager.running(address):
            assert collect(at(address)) == vector_entries("systemd_two_units")

    def test_only_the_patterns_are_asked_for(self, address: str) -> None:
        names = ["cohesix.service", "cohesix-x.service", SSH, "ticket-agent.service"]
        every = [*names, "cron.service", "cohesix-x.timer", "cohesixd.service"]
        with Manager(units={name: unit_properties(name) for name in every}).running(address):
            shown = [path.removeprefix("units/") for path in seen(collect(at(address)))]
        assert shown == ["source", *sorted(names)]
        assert set(PATTERNS) == {"cohesix.service", "cohesix-*.service", SSH, "ticket-agent.service"}

    def test_a_host_without_such_units_is_available(self, address: str) -> None:
        with Manager().running(address):
            assert seen(collect(at(address))) == {"source": "systemd-manager-dbus"}

    @pytest.mark.parametrize(
        ("bad", "errors", "word"),
        [
            ({}, {}, "vanished"),
            ({"Id": ("s", AGENT)}, {f"{AGENT} SubState": f"{ERRORS}UnknownObject"}, "vanished"),
            ({"Id": ("s", AGENT)}, {AGENT: f"{ERRORS}AccessDenied"}, "refused"),
            ({"Id": ("s", AGENT)}, {f"{AGENT} Result": "org.example.Odd"}, "failed"),
            ({"InvocationID": ("ay", b"\x00\x01")}, {}, "malformed"),
            ({"InvocationID": ("s", "00")}, {}, "malformed"),
            ({"InvocationID": ("au", [1])}, {}, "malformed"),
            ({"Job": ("u", 0)}, {}, "malformed"),
            ({"Job": ("(us)", (0, "/"))}, {}, "malformed"),
            ({"ActiveState": ("v", ("s", "active"))}, {}, "malformed"),
            ({"ActiveState": ("s", "")}, {}, "malformed"),
            ({"Result": ("i", -1)}, {}, "malformed"),
            ({"Id": ("s", "other.service")}, {}, "malformed"),
        ],
    )
    def test_one_bad_unit_does_not_spoil_the_others(
        self, address: str, bad: dict[str, Any], errors: dict[str, str], word: str
    ) -> None:
        properties = unit_properties(AGENT, **bad) if bad else {}
        manager = Manager(units={AGENT: properties, SSH: unit_properties(SSH)}, errors=errors)
        with manager.running(address):
            found = seen(collect(at(address)))
        assert found[f"units/{AGENT}"] == {"unit": AGENT, "error": word}
        assert found[f"units/{SSH}"]["active_state"] == "active"

    @pytest.mark.parametrize(
        "reply", [("s", "/org/freedesktop/systemd1/unit/x"), ("o", "/other"), ("o", "/"), ("oo", None)]
    )
    def test_a_path_that_is_no_unit_s_is_not_followed(self, address: str, reply: tuple[str, Any]) -> None:
        replies = {"LoadUnit": ("as", ["x", "y"]) if reply[0] == "oo" else reply}
        manager = Manager(units={AGENT: unit_properties(AGENT)}, replies=replies)
        with manager.running(address):
            assert seen(collect(at(address)))[f"units/{AGENT}"] == {"unit": AGENT, "error": "malformed"}
        assert manager.asked["Get"] == 0

    def test_seventy_units_are_shown_as_far_as_they_fit_and_the_others_counted(self, address: str) -> None:
        manager = Manager(units=units(70))
        with manager.running(address):
            found = seen(collect(at(address)))
        shown = [path for path in found if path.startswith("units/")]
        assert 20 < len(shown) < 64
        assert shown == [f"units/{name}" for name in units(len(shown))]
        assert found["omitted"] == {"units": 70 - len(shown)}
        assert manager.asked["LoadUnit"] == 64

    @pytest.mark.parametrize(
        "name", ["cohesix-w@1.service", r"cohesix-a\x2db.service", "cohesix-a:b.service"]
    )
    def test_a_unit_whose_name_is_no_path_is_counted(self, address: str, name: str) -> None:
        with Manager(units={name: unit_properties(name), SSH: unit_properties(SSH)}).running(address):
            found = seen(collect(at(address)))
        assert list(found) == ["omitted", "source", f"units/{SSH}"]
        assert found["omitted"] == {"units": 1}

    def test_a_bus_without_a_manager_is_a_failed_source(self, address: str) -> None:
        error = refusal(collect, at(address))
        assert error.reason is UnavailableReason.SOURCE_FAILED
        assert "no systemd manager" in error.detail

    @pytest.mark.parametrize("name", ["ServiceUnknown", "NoReply", "NameHasNoOwner"])
    def test_a_manager_that_goes_between_two_calls_fails_the_source(self, address: str, name: str) -> None:
        units = {AGENT: unit_properties(AGENT), SSH: unit_properties(SSH)}
        with Manager(units=units, errors={f"{SSH} SubState": f"{ERRORS}{name}"}).running(address):
            error = refusal(collect, at(address))
        assert error.reason is UnavailableReason.SOURCE_FAILED
        assert "no systemd manager" in error.detail

    @pytest.mark.parametrize(
        ("manager", "said"),
        [
            (Manager(errors={"ListUnitsByPatterns": f"{ERRORS}UnknownMethod"}), "UnknownMethod"),
            (Manager(errors={"ListUnitsByPatterns": f"{ERRORS}AccessDenied"}), "AccessDenied"),
            (Manager(replies={"ListUnitsByPatterns": ("as", ["a.service"])}), "another type"),
            (Manager(replies={"ListUnitsByPatterns": ("a(ssssssous)", [])}), "another type"),
            (
                Manager(units={SSH: unit_properties(SSH)}, description="d" * MAX_MESSAGE_BYTES),
                f"the limit is {MAX_MESSAGE_BYTES}",
            ),
        ],
    )
    def test_a_list_that_cannot_be_used_fails_the_source(
        self, address: str, manager: Manager, said: str
    ) -> None:
        with manager.running(address):
            error = refusal(collect, at(address))
        assert error.reason is UnavailableReason.SOURCE_FAILED
        assert said in error.detail
        assert "nobody repeats" not in error.detail

    @pytest.mark.parametrize("member", ["ListUnitsByPatterns", "LoadUnit", "Get"])
    def test_a_manager_that_hangs_is_left_at_the_deadline(self, address: str, member: str) -> None:
        with Manager(units={SSH: unit_properties(SSH)}, silent=member).running(address):
            error = refusal(collect, at(address, seconds=SHORT_S))
        assert error.reason is UnavailableReason.TIMED_OUT

    def test_a_deadline_that_passed_asks_nothing(self, address: str) -> None:
        manager = Manager(units={SSH: unit_properties(SSH)})
        with manager.running(address):
            assert refusal(collect, at(address, seconds=0)).reason is UnavailableReason.TIMED_OUT
        assert not manager.asked


class TestWithoutABus:
    def test_other_systems_have_no_systemd(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        assert refusal(collect, context()).reason is UnavailableReason.NOT_SUPPORTED

    @pytest.mark.parametrize("name", ["absent", "file/below"])
    def test_no_socket_means_not_enabled(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").touch()
        error = refusal(collect, at(f"unix:path={tmp_path / name}"))
        assert error.reason is UnavailableReason.NOT_ENABLED

    def test_a_socket_that_nobody_listens_on_is_a_failed_source(self, tmp_path: Path) -> None:
        with closing(socket.socket(socket.AF_UNIX)) as bound:
            bound.bind(str(tmp_path / "bus"))
            error = refusal(collect, at(f"unix:path={tmp_path / 'bus'}"))
        assert error.reason is UnavailableReason.SOURCE_FAILED

    @pytest.mark.parametrize(
        ("address", "reason"),
        [
            ("tcp:host=127.0.0.1,port=1", UnavailableReason.NOT_ENABLED),
            ("nonsense", UnavailableReason.SOURCE_FAILED),
            ("unix:path", UnavailableReason.SOURCE_FAILED),
        ],
    )
    def test_other_addresses_are_explained(self, address: str, reason: UnavailableReason) -> None:
        assert refusal(collect, at(address)).reason is reason

    def test_sockets_of_addresses(self) -> None:
        assert socket_of("unix:path=/run/a%20b") == "/run/a b"
        assert socket_of("tcp:host=h,port=1;unix:abstract=x,guid=00") == "\0x"


@contextmanager
def false_bus(path: Path, talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A socket on which ``talk`` takes the place of a bus."""
    over = threading.Event()

    def serve() -> None:
        try:
            client, _ = listener.accept()
            with client:
                talk(client, over)
        except OSError:
            return

    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"unix:path={path}"
        over.set()
        thread.join(60)
        assert not thread.is_alive()


def mute(client: socket.socket, over: threading.Event) -> None:
    while client.recv(4096):
        pass


def dripping_greeting(client: socket.socket, over: threading.Event) -> None:
    client.sendall(b"O")
    while not over.wait(0.01):
        client.sendall(b"K")


def refusing(client: socket.socket, over: threading.Event) -> None:
    client.recv(4096)
    client.sendall(b"REJECTED EXTERNAL\r\n")
    mute(client, over)


def leaving(client: socket.socket, over: threading.Event) -> None:
    client.recv(4096)


def after_greeting(data: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def talk(client: socket.socket, over: threading.Event) -> None:
        client.recv(4096)
        client.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
        client.recv(4096)
        client.sendall(data)
        mute(client, over)

    return talk


def dripping_messages(client: socket.socket, over: threading.Event) -> None:
    client.recv(4096)
    client.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
    client.recv(4096)
    head = b"l\x02\x01\x01" + (1000).to_bytes(4, "little") + b"\x01\0\0\0" + bytes(4)
    for byte in head:
        client.sendall(bytes([byte]))
    while not over.wait(0.01):
        client.sendall(b"\0")


def head(*, body: int = 0, fields: bytes = b"", endian: bytes = b"l", kind: bytes = b"\x02") -> bytes:
    start = endian + kind + b"\x01\x01" + body.to_bytes(4, "little") + b"\x01\0\0\0"
    return start + len(fields).to_bytes(4, "little") + fields + bytes(-(16 + len(fields)) % 8)


class TestFalseBuses:
    @pytest.mark.parametrize("talk", [mute, dripping_greeting, dripping_messages])
    def test_the_deadline_covers_connecting_too(self, tmp_path: Path, talk: Any) -> None:
        with false_bus(tmp_path / "bus", talk) as address:
            error = refusal(collect, at(address, seconds=SHORT_S))
        assert error.reason is UnavailableReason.TIMED_OUT

    @pytest.mark.parametrize(
        ("talk", "said"),
        [
            (refusing, "EXTERNAL"),
            (leaving, "closed"),
            (after_greeting(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "no D-Bus message"),
            (after_greeting(head(body=2**27)), "the limit is"),
            (after_greeting(head(fields=b"\xff" * 16)), "no D-Bus message"),
            (after_greeting(head(kind=b"\x09")), "no D-Bus message"),
            # An array of empty structures, which a decoder could read for ever.
            (after_greeting(head(fields=b"\x08\x03a()\0\0\0\xff\xff\0\0" + bytes(4))), "no D-Bus message"),
            (after_greeting(head(fields=b"\x05\x01u\0\x01\0\0\0")), "greet"),
        ],
    )
    def test_what_is_no_bus_is_a_failed_source(self, tmp_path: Path, talk: Any, said: str) -> None:
        with false_bus(tmp_path / "bus", talk) as address:
            error = refusal(collect, at(address))
        assert error.reason is UnavailableReason.SOURCE_FAILED
        assert said in error.detail

    def test_no_descriptor_is_left_open(self, tmp_path: Path) -> None:
        with false_bus(tmp_path / "bus", refusing) as address:
            before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count of names
            refusal(collect, at(address))
            assert len(os.listdir("/proc/self/fd")) <= before + 1, "at most the server's own end"  # noqa: PTH208
