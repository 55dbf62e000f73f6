from __future__ import annotations

import contextlib
import socket
import struct
import threading
from contextlib import ExitStack, suppress

import pytest
from hive_support import SNAPSHOT, SPEC, TOKEN, RawConsole, new_hive, raw_grant, running_hive

from ticket_agent.hive.console.framing import encode_frame
from ticket_agent.hive.reference import ConsoleServer, SessionOptions, Timeouts
from ticket_agent.protocol.chunks import decode_lines


def header(total: int) -> bytes:
    return struct.pack("<I", total)


def test_a_ticket_through_the_console() -> None:
    with running_hive() as (hive, server), RawConsole(server.port) as console:
        worker = hive.spawn_worker("worker-gpu")
        line = raw_grant(hive, worker, "t-1", "lease-1")
        assert console.ask(f"ECHO {SPEC} {line}") == f"OK ECHO path={SPEC} bytes={len(line)}"
        assert decode_lines(console.stream(f"CAT {SNAPSHOT}")) == hive.cat(SNAPSHOT)
        assert decode_lines(console.stream(f"TAIL {SNAPSHOT} 1")) == hive.cat(SNAPSHOT)
        refused = console.ask(f"ECHO {SNAPSHOT} {line}")
        assert refused == f"ERR ECHO reason=policy detail=denied path={SNAPSHOT} error=EPERM"
        assert console.stream("LS /host/tickets")[:2] == ["spec", "status"]


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        ("PING", "ERR AUTH reason=expected-token"),
        ("AUTH x", "ERR AUTH reason=invalid-length"),
        ("AUTH " + "x" * len(TOKEN), "ERR AUTH reason=invalid-token"),
    ],
)
@pytest.mark.parametrize("silent", [False, True])
def test_a_refused_credential(first: str, answer: str, silent: bool) -> None:
    options = SessionOptions(silent_auth=silent)
    with running_hive(options=options) as (_, server), RawConsole(server.port, attach=False) as console:
        console.send(first)
        if not silent:
            assert console.line() == answer
        assert console.line() is None


@pytest.mark.parametrize("data", [header(0), header(3), header(2309) + b"AUTH", header(2**31)])
def test_a_bad_first_frame_is_a_bare_end(data: bytes) -> None:
    with running_hive() as (_, server), RawConsole(server.port, attach=False) as console:
        console.sock.sendall(data)
        # The unread rest of the frame makes it a reset on some kernels.
        with suppress(ConnectionResetError):
            assert console.line() is None


def test_an_authentication_that_does_not_come() -> None:
    with (
        running_hive(timeouts=Timeouts(auth_s=0.02)) as (_, server),
        RawConsole(server.port, attach=False) as console,
    ):
        assert console.line() == "ERR AUTH reason=timeout"
        assert console.line() is None


def test_an_idle_session_ends() -> None:
    with (
        running_hive(timeouts=Timeouts(idle_s=0.02)) as (_, server),
        RawConsole(server.port, attach=False) as console,
    ):
        # In one piece: between two of them the session may be idle for too long already.
        console.send(f"AUTH {TOKEN}", "ATTACH queen")
        assert [console.line(), console.line()] == ["OK AUTH", "OK ATTACH role=queen"]
        assert console.line() == "ERR CONSOLE reason=timeout"
        assert console.line() is None


@pytest.mark.parametrize("total", [2309, 8192, 8193, 70000])
def test_an_over_long_frame_is_drained_and_the_session_goes_on(total: int) -> None:
    with running_hive() as (_, server), RawConsole(server.port) as console:
        console.sock.sendall(header(total))
        assert console.line() == "ERR FRAME reason=invalid-length"
        console.sock.sendall(b"x" * (total - 4) + encode_frame("PING"))
        assert console.line() == "OK PING reply=pong"


def test_the_longest_frame_and_the_longest_payload() -> None:
    with running_hive() as (_, server), RawConsole(server.port) as console:
        assert console.ask("PING " + "x" * 2299) == "OK PING reply=pong"
        too_long = "ERR PARSE reason=policy detail=argument payload exceeds allowed length"
        assert console.ask(f"ECHO {SPEC} " + "x" * 2049) == too_long
        invalid = f"ERR ECHO reason=policy detail=invalid-payload path={SPEC} error=invalid payload"
        assert console.ask(f"ECHO {SPEC} " + "x" * 2048) == invalid


def test_an_empty_frame_and_one_shorter_than_its_header() -> None:
    with running_hive() as (_, server), RawConsole(server.port) as console:
        console.sock.sendall(header(4))
        assert console.line() == "ERR PARSE reason=policy detail=empty command"
        console.sock.sendall(header(3))
        assert console.line() is None


def test_frames_split_byte_by_byte_and_joined() -> None:
    with running_hive() as (_, server), RawConsole(server.port, attach=False) as console:
        data = b"".join(map(encode_frame, (f"AUTH {TOKEN}", "ATTACH queen", "PING")))
        for byte in data:
            console.sock.sendall(bytes([byte]))
        console.send("PING", "LS /updates")
        lines = [console.line() for _ in range(6)]
        assert lines == [
            "OK AUTH",
            "OK ATTACH role=queen",
            "OK PING reply=pong",
            "OK PING reply=pong",
            "OK LS path=/updates entries=0",
            "END",
        ]


def test_a_command_that_was_cut_off_is_not_applied() -> None:
    with running_hive() as (hive, server):
        whole = encode_frame("ECHO /queen/lifecycle/ctl cordon")
        with RawConsole(server.port) as console:
            console.sock.sendall(whole[:-1])
            console.sock.shutdown(socket.SHUT_WR)
            assert console.line() is None
        assert hive.cat("/proc/lifecycle/state") == ["state=ONLINE"]


def test_a_second_client_hears_nothing_and_ends_when_the_first_has_left() -> None:
    with running_hive() as (_, server):
        with RawConsole(server.port) as first, RawConsole(server.port, attach=False) as second:
            second.send(f"AUTH {TOKEN}")
            for _ in range(3):
                assert first.ask("PING") == "OK PING reply=pong"
            second.sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.sock.recv(1)
            second.sock.settimeout(60)
            assert first.ask("QUIT") == "OK QUIT"
            first.sock.shutdown(socket.SHUT_WR)
            assert first.line() is None
            assert second.line() is None
        with RawConsole(server.port) as third:
            assert third.ask("PING") == "OK PING reply=pong"


def test_quit_waits_only_so_long_for_the_peers_end() -> None:
    with running_hive(timeouts=Timeouts(quit_s=0.02)) as (_, server), RawConsole(server.port) as console:
        assert console.ask("QUIT") == "OK QUIT"
        assert console.line() is None


def test_the_lab_console_works_beside_the_main_one() -> None:
    with running_hive(lab_port=0) as (hive, server), ExitStack() as stack:
        assert server.lab_port is not None
        main = stack.enter_context(RawConsole(server.port))
        lab = stack.enter_context(RawConsole(server.lab_port))
        worker = hive.spawn_worker("worker-gpu")
        line = raw_grant(hive, worker, "t-1", "lease-1")
        assert lab.ask(f"ECHO {SPEC} {line}") == f"OK ECHO path={SPEC} bytes={len(line)}"
        assert decode_lines(main.stream(f"CAT {SNAPSHOT}")) == hive.cat(SNAPSHOT)


def test_a_kicked_connection_ends_and_the_next_one_works() -> None:
    with running_hive() as (_, server):
        with RawConsole(server.port) as console:
            server.kick()
            assert console.line() is None
        server.kick()
        with _attached_soon(server.port) as console:
            assert console.ask("PING") == "OK PING reply=pong"


def _attached_soon(port: int) -> RawConsole:
    """Attach as a client would: the first connection after a break may still be ended by it."""
    for _ in range(100):
        with contextlib.suppress(AssertionError, OSError):
            return RawConsole(port)
    return RawConsole(port)


def test_the_server_leaves_neither_thread_nor_port_behind() -> None:
    before = set(threading.enumerate())
    with running_hive(lab_port=0) as (hive, server), RawConsole(server.port) as console:
        port = server.port
        assert len(set(threading.enumerate()) - before) == 2
        server.stop()
        assert console.line() is None
        server.stop()
        server.kick()
    # What an earlier test left may end meanwhile.
    assert not set(threading.enumerate()) - before
    with ConsoleServer(hive, token=TOKEN, port=port) as again, RawConsole(again.port) as console:
        assert console.ask("PING") == "OK PING reply=pong"


def test_a_server_that_was_never_started_can_be_stopped() -> None:
    server = ConsoleServer(new_hive(), token=TOKEN, lab_port=0)
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=60)


def test_a_taken_lab_port_leaves_nothing_open() -> None:
    with running_hive() as (hive, server), pytest.raises(OSError, match="in use"):
        ConsoleServer(hive, token=TOKEN, lab_port=server.port)
