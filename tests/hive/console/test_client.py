"""The client against a scripted console over real sockets."""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from capability_support import lab_ticket
from hive_support import WAITS
from scripted_console import TOKEN, FakeClock, Peer, ScriptedConsole, namespace, refused_port

from ticket_agent.hive.console.checks import ConsoleUsageError
from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.console.lock import ConsoleLock, lock_path
from ticket_agent.protocol.capability import Role
from ticket_agent.protocol.chunks import encode_line
from ticket_agent.protocol.namespace import (
    Acked,
    HiveAuthError,
    HiveBusyError,
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    Namespace,
    RefusalKind,
    Refused,
    Unknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPEC = "/host/tickets/spec.snapshot"
STATUS = "/host/tickets/status"
RESULT = '{"schema":"x"}'
ECHO = f"ECHO {STATUS} {RESULT}"
ECHO_OK = f"OK ECHO path={STATUS} bytes={len(RESULT)}"


def session(*exchanges: tuple[str, ...], end: Callable[[Peer], None] = Peer.quit) -> Callable[[Peer], None]:
    """A script: handshake, then command and answer lines, then the given end."""

    def script(peer: Peer) -> None:
        peer.handshake()
        for command, *lines in exchanges:
            peer.answer(command, *lines)
        end(peer)

    return script


def hang_up(peer: Peer) -> None:
    """Close without a word."""
    peer.sock.shutdown(socket.SHUT_WR)


def silent(peer: Peer) -> None:
    """Read AUTH and close instead of answering."""
    peer.expect(f"AUTH {TOKEN}")


def impatient(console: ScriptedConsole) -> ConsoleNamespace:
    """A client that is attached and waits for hardly anything; attaching may take as long as it needs."""
    hive = namespace(console.port)
    hive.connect()
    hive._command_s = 0.05
    return hive


LS_GPU = ("LS /gpu", "OK LS path=/gpu entries=2", "bridge", "GPU-0", "END")


# Sessions


def test_an_orderly_session() -> None:
    script = session(
        LS_GPU,
        (f"CAT {SPEC}", f"OK CAT path={SPEC} data=", '{"n":1}', '{"n":2}', "END"),
        ("TAIL /log/queen.log", "OK TAIL path=/log/queen.log", "one", "END"),
        (ECHO, ECHO_OK),
    )
    with ScriptedConsole(script) as console:
        hive: Namespace = namespace(console.port)
        assert hive.session == 0
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert hive.read(SPEC) == ['{"n":1}', '{"n":2}']
        assert hive.tail("/log/queen.log") == ["one"]
        assert hive.append(STATUS, RESULT) == Acked(f"path={STATUS} bytes={len(RESULT)}")
        assert hive.session == 1
        hive.close()


def test_frames_may_arrive_byte_by_byte() -> None:
    def script(peer: Peer) -> None:
        peer.expect(f"AUTH {TOKEN}")
        peer.dribble("OK AUTH")
        peer.expect("ATTACH queen")
        peer.dribble("OK ATTACH role=queen")
        peer.expect("LS /gpu")
        peer.dribble(*LS_GPU[1:])
        peer.quit()

    with ScriptedConsole(script) as console, namespace(console.port) as hive:
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]


def test_a_late_pong_is_dropped_wherever_it_comes() -> None:
    clock = FakeClock()

    def script(peer: Peer) -> None:
        peer.handshake()
        peer.answer("PING", "OK PING reply=pong")
        peer.answer("LS /gpu", "PONG", "OK LS path=/gpu entries=1", "PONG", "GPU-0", "END", "PONG")
        peer.answer(ECHO, "PONG", ECHO_OK)
        peer.quit()

    with ScriptedConsole(script) as console, namespace(console.port, clock) as hive:
        hive.connect()
        clock.now += 15.0
        hive.keepalive()
        assert hive.ls("/gpu") == ["GPU-0"]
        assert hive.append(STATUS, RESULT) == Acked(f"path={STATUS} bytes={len(RESULT)}")
        assert hive.session == 1


def test_close_waits_for_the_end_of_the_console() -> None:
    returned = threading.Event()
    too_early: list[bool] = []

    def script(peer: Peer) -> None:
        peer.handshake()
        peer.quit()
        too_early.append(returned.wait(0.1))

    with ScriptedConsole(script) as console:
        hive = namespace(console.port)
        hive.connect()
        hive.close()
        returned.set()
    assert too_early == [False]


def test_close_opens_the_way_for_a_new_session() -> None:
    with ScriptedConsole(session(LS_GPU), session(LS_GPU)) as console:
        clock = FakeClock()
        hive = namespace(console.port, clock)
        hive.ls("/gpu")
        hive.close()
        hive.close()
        assert hive.session == 1
        hive.ls("/gpu")
        assert hive.session == 2
        assert clock.sleeps == []
        hive.close()


def test_close_bears_a_console_that_is_gone() -> None:
    with ScriptedConsole(session(LS_GPU, end=hang_up)) as console:
        hive = namespace(console.port)
        hive.ls("/gpu")
        hive.close()


def test_close_does_not_wait_for_ever() -> None:
    done = threading.Event()

    def script(peer: Peer) -> None:
        peer.handshake()
        peer.answer("QUIT", "OK QUIT")
        # A client that had given up waiting just before the answer came ends with a reset.
        with contextlib.suppress(ConnectionResetError):
            peer.expect_end()
        assert done.wait(60)

    with ScriptedConsole(script) as console:
        config = ConsoleConfig(port=console.port, token=TOKEN, use_lock=False, **WAITS | {"quit_s": 0.05})
        hive = ConsoleNamespace(config, env={})
        hive.connect()
        hive.close()
        done.set()


def test_a_ping_is_sent_only_after_fifteen_idle_seconds() -> None:
    clock = FakeClock()
    script = session(LS_GPU, ("PING", "OK PING reply=pong"), LS_GPU, ("PING", "OK PING reply=pong"))
    with ScriptedConsole(script) as console, namespace(console.port, clock) as hive:
        hive.keepalive()
        assert hive.session == 0
        hive.ls("/gpu")
        clock.now += 14.9
        hive.keepalive()
        clock.now += 0.1
        hive.keepalive()
        clock.now += 10.0
        hive.ls("/gpu")
        clock.now += 10.0
        hive.keepalive()
        clock.now += 5.0
        hive.keepalive()


def test_a_failed_keepalive_only_closes_the_session() -> None:
    clock = FakeClock()
    with ScriptedConsole(session(LS_GPU, end=hang_up), session(LS_GPU)) as console:
        hive = namespace(console.port, clock)
        hive.ls("/gpu")
        clock.now += 20.0
        hive.keepalive()
        assert hive.session == 1
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert hive.session == 2
        hive.close()


# Reads


def test_a_read_is_repeated_once_when_the_connection_breaks() -> None:
    def cut(peer: Peer) -> None:
        peer.handshake()
        peer.answer("LS /gpu", "OK LS path=/gpu entries=2", "bridge")

    with ScriptedConsole(cut, session(LS_GPU)) as console, namespace(console.port) as hive:
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert hive.session == 2


def test_a_read_is_repeated_after_a_reset() -> None:
    def reset(peer: Peer) -> None:
        peer.handshake()
        peer.expect("LS /gpu")
        peer.reset()

    with ScriptedConsole(reset, session(LS_GPU)) as console, namespace(console.port) as hive:
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]


def test_a_read_is_repeated_when_the_console_times_the_session_out() -> None:
    script = session(("LS /gpu", "ERR CONSOLE reason=timeout"), end=hang_up)
    with ScriptedConsole(script, session(LS_GPU)) as console, namespace(console.port) as hive:
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]


@pytest.mark.parametrize("lines", [[], ["ERR CONSOLE reason=timeout"]])
def test_a_read_is_not_repeated_twice(lines: list[str]) -> None:
    script = session(("LS /gpu", *lines), end=hang_up)
    with ScriptedConsole(script, script) as console, namespace(console.port) as hive:
        with pytest.raises(HiveUnreachableError, match=f"127.0.0.1:{console.port}: .*reading again is safe"):
            hive.ls("/gpu")
        assert hive.session == 2


def test_a_read_without_an_answer_ends_at_its_deadline() -> None:
    with (
        ScriptedConsole(session(("LS /gpu",), end=Peer.expect_end)) as console,
        impatient(console) as hive,
        pytest.raises(HiveUnreachableError, match="no answer in time during LS /gpu"),
    ):
        hive.ls("/gpu")


def test_the_deadline_covers_the_whole_answer() -> None:
    """A console that keeps dribbling must not hold a command beyond its deadline."""
    clock = FakeClock()
    stop = threading.Event()

    def script(peer: Peer) -> None:
        peer.handshake()
        peer.answer("LS /gpu", "OK LS path=/gpu entries=2")
        with contextlib.suppress(OSError):
            while not stop.is_set():
                clock.now += 0.5
                peer.send("PONG")

    with ScriptedConsole(script) as console, namespace(console.port, clock) as hive:
        with pytest.raises(HiveUnreachableError, match="no answer in time"):
            hive.ls("/gpu")
        stop.set()


def test_a_refused_read_names_kind_and_path_and_keeps_the_session() -> None:
    refused = "ERR CAT reason=policy detail=invalid-path path=/nope error=invalid path"
    with ScriptedConsole(session(("CAT /nope", refused), LS_GPU)) as console, namespace(console.port) as hive:
        with pytest.raises(HiveRefusedError, match="the hive refused CAT /nope") as caught:
            hive.read("/nope")
        assert caught.value.absent
        assert caught.value.refusal.text == refused
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert hive.session == 1


def test_a_parse_error_is_the_answer_of_a_read() -> None:
    refused = "ERR PARSE reason=policy detail=unsupported console command"
    with ScriptedConsole(session(("TAIL /gpu", refused))) as console, namespace(console.port) as hive:
        with pytest.raises(HiveRefusedError) as caught:
            hive.tail("/gpu")
        assert caught.value.refusal.kind is RefusalKind.GRAMMAR


def test_a_console_that_forgot_the_session_is_left() -> None:
    refused = "ERR LS reason=policy detail=unauthenticated"
    with (
        ScriptedConsole(session(("LS /gpu", refused), end=Peer.expect_end), session(LS_GPU)) as console,
        namespace(console.port) as hive,
    ):
        with pytest.raises(HiveRefusedError, match="unauthenticated"):
            hive.ls("/gpu")
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["OK CAT path=/other"], "another path"),
        (["OK LS path=/a entries=0"], "another verb"),
        (["OK CAT path=/a", "OK LS injected"], "looks like"),
        (["OK CAT path=/a", *["x"] * 65], "more than 64"),
        (["stored"], "before the answer"),
    ],
)
def test_a_violation_closes_the_session(lines: list[str], words: str) -> None:
    with (
        ScriptedConsole(session(("CAT /a", *lines), end=Peer.expect_end), session(LS_GPU)) as console,
        namespace(console.port) as hive,
    ):
        with pytest.raises(HiveViolationError, match=words):
            hive.read("/a")
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert hive.session == 2


@pytest.mark.parametrize("garbage", [b"\x03\0\0\0", b"HTTP/1.1 400 Bad Request\r\n"])
def test_bytes_that_are_no_frames_close_the_session(garbage: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.handshake()
        peer.expect("CAT /a")
        peer.sock.sendall(garbage)
        peer.expect_end()

    with (
        ScriptedConsole(script) as console,
        namespace(console.port) as hive,
        pytest.raises(HiveViolationError, match="frame declares"),
    ):
        hive.read("/a")


def test_lines_behind_the_end_make_the_answer_untrustworthy() -> None:
    script = session(("CAT /a", "OK CAT path=/a", "one", "END", "three", "END"), end=Peer.expect_end)
    with ScriptedConsole(script, session(LS_GPU)) as console, namespace(console.port) as hive:
        with pytest.raises(HiveViolationError, match="lines followed the END of CAT /a"):
            hive.read("/a")
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert hive.session == 2


def test_a_stored_end_line_is_noticed_before_the_next_command() -> None:
    """The answer ended early; its rest must not be taken for the next one."""
    go = threading.Event()

    def script(peer: Peer) -> None:
        peer.handshake()
        peer.answer("CAT /a", "OK CAT path=/a", "one", "END")
        assert go.wait(60)
        peer.send("three", "END")
        peer.expect_end()

    with ScriptedConsole(script, session((ECHO, ECHO_OK))) as console, namespace(console.port) as hive:
        assert hive.read("/a") == ["one"]
        go.set()
        assert hive._link is not None
        assert select.select([hive._link._sock], [], [], 20)[0]
        assert isinstance(hive.append(STATUS, RESULT), Acked)
        assert hive.session == 2


def test_a_c1_group_is_reassembled_in_read_and_tail_only() -> None:
    line = '{"x":"' + "y" * 500 + '"}'
    frames = encode_line(line)
    script = session(
        (f"CAT {SPEC}", f"OK CAT path={SPEC} data=", "plain", *frames, "END"),
        (f"TAIL {SPEC}", f"OK TAIL path={SPEC}", *frames, *frames, "END"),
        (f"LS {SPEC}", f"OK LS path={SPEC}", *frames, "END"),
    )
    assert len(frames) == 3
    with ScriptedConsole(script) as console, namespace(console.port) as hive:
        assert hive.read(SPEC) == ["plain", line]
        assert hive.tail(SPEC) == [line, line]
        assert hive.ls(SPEC) == frames


def broken_groups() -> dict[str, list[str]]:
    first, second, third = encode_line("z" * 500)
    wrong = hashlib.sha256(b"other").hexdigest()
    return {
        "truncated": [first, second],
        "gap": [first, third],
        "reordered": [second, first, third],
        "digest": [frame.replace(frame.split(":")[3], wrong) for frame in (first, second, third)],
    }


@pytest.mark.parametrize("name", sorted(broken_groups()))
def test_a_broken_c1_group_fails_the_whole_read(name: str) -> None:
    frames = broken_groups()[name]
    with (
        ScriptedConsole(
            session((f"CAT {SPEC}", f"OK CAT path={SPEC}", "good", *frames, "END"), end=Peer.expect_end),
            session(LS_GPU),
        ) as console,
        namespace(console.port) as hive,
    ):
        with pytest.raises(HiveViolationError, match="broken C1 group"):
            hive.read(SPEC)
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert hive.session == 2


# Appends


def test_a_refused_append_is_definite() -> None:
    refused = f"ERR ECHO reason=busy detail=busy path={STATUS} error=busy"
    with (
        ScriptedConsole(session((ECHO, refused), (ECHO, ECHO_OK))) as console,
        namespace(console.port) as hive,
    ):
        answer = hive.append(STATUS, RESULT)
        assert isinstance(answer, Refused)
        assert (answer.refusal.kind, answer.refusal.text) == (RefusalKind.BUSY, refused)
        assert isinstance(hive.append(STATUS, RESULT), Acked)
        assert hive.session == 1


@pytest.mark.parametrize(
    "refused",
    [
        "ERR PARSE reason=policy detail=argument payload exceeds allowed length",
        "ERR FRAME reason=invalid-length",
    ],
)
def test_a_console_with_the_older_bounds_is_called_incompatible(refused: str) -> None:
    with ScriptedConsole(session((ECHO, refused))) as console, namespace(console.port) as hive:
        answer = hive.append(STATUS, RESULT)
        assert isinstance(answer, Refused)
        assert answer.refusal.kind is RefusalKind.GRAMMAR
        assert "older bounds" in answer.refusal.text
        assert "incompatible" in answer.refusal.text
        assert refused in answer.refusal.text


def test_another_parse_error_stays_as_it_is() -> None:
    refused = "ERR PARSE reason=policy detail=missing required argument: payload"
    with ScriptedConsole(session((ECHO, refused))) as console, namespace(console.port) as hive:
        answer = hive.append(STATUS, RESULT)
        assert isinstance(answer, Refused)
        assert answer.refusal.text == refused


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "closed by the console"),
        (["ERR CONSOLE reason=timeout"], "ended the session"),
        (["OK ECHO path=/host/tickets/deadletter bytes=14"], "another path"),
        (["OK PING reply=pong"], "another verb"),
        (["END"], "END came before"),
    ],
)
def test_an_append_whose_answer_was_lost_is_unknown_and_never_sent_again(
    lines: list[str], words: str
) -> None:
    with (
        ScriptedConsole(session((ECHO, *lines), end=hang_up), session(LS_GPU)) as console,
        namespace(console.port) as hive,
    ):
        answer = hive.append(STATUS, RESULT)
        assert isinstance(answer, Unknown)
        assert words in answer.why
        assert "read back" in answer.why
        assert hive.session == 1
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert hive.session == 2


def test_lines_behind_an_acknowledged_append_cost_only_the_session() -> None:
    script = session((ECHO, ECHO_OK, "stale"), end=Peer.expect_end)
    with ScriptedConsole(script, session(LS_GPU)) as console, namespace(console.port) as hive:
        assert isinstance(hive.append(STATUS, RESULT), Acked)
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert hive.session == 2


def test_an_append_that_was_reset_is_unknown() -> None:
    def script(peer: Peer) -> None:
        peer.handshake()
        peer.expect(ECHO)
        peer.reset()

    with ScriptedConsole(script) as console, namespace(console.port) as hive:
        assert isinstance(hive.append(STATUS, RESULT), Unknown)


def test_an_append_without_an_answer_is_unknown_at_its_deadline() -> None:
    with ScriptedConsole(session((ECHO,), end=Peer.expect_end)) as console, impatient(console) as hive:
        answer = hive.append(STATUS, RESULT)
        assert isinstance(answer, Unknown)
        assert "no answer in time" in answer.why


def test_an_append_answered_with_garbage_is_unknown() -> None:
    def script(peer: Peer) -> None:
        peer.handshake()
        peer.expect(ECHO)
        peer.sock.sendall(b"\0\0\0\0")
        peer.expect_end()

    with ScriptedConsole(script) as console, namespace(console.port) as hive:
        assert isinstance(hive.append(STATUS, RESULT), Unknown)


def test_a_connection_that_died_while_idle_costs_an_append_nothing() -> None:
    with (
        ScriptedConsole(session(LS_GPU, end=hang_up), session((ECHO, ECHO_OK))) as console,
        namespace(console.port) as hive,
    ):
        hive.ls("/gpu")
        assert hive._link is not None
        assert select.select([hive._link._sock], [], [], 20)[0]
        assert isinstance(hive.append(STATUS, RESULT), Acked)
        assert hive.session == 2


def test_an_append_for_the_current_session_is_sent() -> None:
    with ScriptedConsole(session(LS_GPU, (ECHO, ECHO_OK))) as console, namespace(console.port) as hive:
        hive.ls("/gpu")
        assert isinstance(hive.append(STATUS, RESULT, session=1), Acked)


def test_an_append_for_a_session_that_died_while_idle_is_not_sent_in_another() -> None:
    with ScriptedConsole(session(LS_GPU, end=hang_up)) as console, namespace(console.port) as hive:
        hive.ls("/gpu")
        assert hive._link is not None
        assert select.select([hive._link._sock], [], [], 20)[0]
        with pytest.raises(HiveUnreachableError, match="session 1 is over; nothing was sent"):
            hive.append(STATUS, RESULT, session=1)
        assert hive.session == 1


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_an_append_for_another_session_is_not_sent(wrong: int) -> None:
    scripts = [session(LS_GPU, end=hang_up), session(LS_GPU, (ECHO, ECHO_OK))]
    with ScriptedConsole(*scripts) as console, namespace(console.port) as hive:
        with pytest.raises(HiveUnreachableError, match="session 0 is over"):
            hive.append(STATUS, RESULT, session=0)
        for _ in range(2):
            hive.ls("/gpu")
        with pytest.raises(HiveUnreachableError, match=f"session {wrong} is over"):
            hive.append(STATUS, RESULT, session=wrong)
        assert isinstance(hive.append(STATUS, RESULT, session=2), Acked)


def test_an_append_that_could_not_be_sent_raises() -> None:
    """The connection dies while idle and nobody listens any more: certain that nothing was sent."""
    with ScriptedConsole(session(LS_GPU, end=hang_up)) as console:
        hive = namespace(console.port)
        hive.ls("/gpu")
    assert hive._link is not None
    assert select.select([hive._link._sock], [], [], 20)[0]
    with pytest.raises(HiveUnreachableError, match="cannot connect"):
        hive.append(STATUS, RESULT)
    hive.close()


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("status", RESULT),
        (STATUS, ""),
        (STATUS, "x" * 2049),
        (STATUS, "\u00e9"),
        (STATUS, "a\nb"),
        ("/a b", "x"),
    ],
)
def test_what_no_console_can_carry_is_refused_before_connecting(path: str, line: str) -> None:
    hive = namespace(refused_port())
    with pytest.raises(ConsoleUsageError):
        hive.append(path, line)
    hive.close()


@pytest.mark.parametrize("call", [ConsoleNamespace.ls, ConsoleNamespace.read, ConsoleNamespace.tail])
def test_reads_check_their_path_before_connecting(call: Callable[[ConsoleNamespace, str], list[str]]) -> None:
    with pytest.raises(ConsoleUsageError):
        call(namespace(refused_port()), "/a/../b")


# Connecting


def test_nobody_listens() -> None:
    clock = FakeClock()
    port = refused_port()
    hive = namespace(port, clock)
    for _ in range(6):
        with pytest.raises(
            HiveUnreachableError, match=f"console 127.0.0.1:{port}: cannot connect: .*check host"
        ):
            hive.connect()
    assert clock.sleeps == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0])
    assert hive.session == 0


def test_a_session_that_worked_is_replaced_without_waiting() -> None:
    clock = FakeClock()
    scripts = [session(LS_GPU, end=hang_up) for _ in range(4)]
    with ScriptedConsole(*scripts) as console, namespace(console.port, clock) as hive:
        for number in range(1, 5):
            assert hive.ls("/gpu") == ["bridge", "GPU-0"]
            assert hive.session == number
        assert clock.sleeps == []


def test_sessions_that_break_before_any_answer_are_replaced_ever_more_slowly() -> None:
    clock = FakeClock()
    script = session(("LS /gpu",), end=hang_up)
    with ScriptedConsole(*[script] * 6) as console, namespace(console.port, clock) as hive:
        for _ in range(3):
            with pytest.raises(HiveUnreachableError):
                hive.ls("/gpu")
        assert clock.sleeps == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0])


def test_work_ends_the_back_off() -> None:
    clock = FakeClock()
    broken, works = session(("LS /gpu",), end=hang_up), session(LS_GPU, end=hang_up)
    with ScriptedConsole(broken, works, broken, works) as console, namespace(console.port, clock) as hive:
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert clock.sleeps == pytest.approx([0.2])
        with pytest.raises(HiveUnreachableError):
            hive.ls("/gpu")
        assert clock.sleeps == pytest.approx([0.2])
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert clock.sleeps == pytest.approx([0.2, 0.2])


def test_a_silently_refused_auth_is_tried_three_times_and_then_left_alone() -> None:
    clock = FakeClock()
    with ScriptedConsole(silent, silent, silent) as console, namespace(console.port, clock) as hive:
        with pytest.raises(HiveAuthError, match="token is wrong, another client holds"):
            hive.connect()
        assert clock.sleeps == [0.05, 1.2]
    clock.now += 58.0
    with pytest.raises(HiveAuthError, match="too many refused attempts"):
        hive.ls("/gpu")
    clock.now += 2.0
    with pytest.raises(HiveUnreachableError, match="cannot connect"):
        hive.ls("/gpu")


def test_a_listener_that_is_not_ready_yet_is_tried_again() -> None:
    clock = FakeClock()
    with ScriptedConsole(silent, session(LS_GPU)) as console, namespace(console.port, clock) as hive:
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert clock.sleeps == [0.05]
        assert hive.session == 1


def test_a_token_that_worked_before_is_not_blamed_for_a_silent_close() -> None:
    clock = FakeClock()
    scripts = [session(LS_GPU, end=hang_up), *[silent] * 6, session(LS_GPU)]
    with ScriptedConsole(*scripts) as console, namespace(console.port, clock) as hive:
        hive.ls("/gpu")
        for _ in range(2):
            with pytest.raises(HiveBusyError, match="worked before"):
                hive.ls("/gpu")
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]


def test_a_wrong_token_is_refused_three_times_a_minute_at_most() -> None:
    def refuse(peer: Peer) -> None:
        peer.answer(f"AUTH {TOKEN}", "ERR AUTH reason=invalid-token")

    clock = FakeClock()
    with ScriptedConsole(refuse, refuse, refuse) as console, namespace(console.port, clock) as hive:
        for _ in range(3):
            with pytest.raises(
                HiveAuthError, match=f"127.0.0.1:{console.port}: the console refused the token"
            ):
                hive.connect()
        for _ in range(5):
            with pytest.raises(HiveAuthError, match="too many refused attempts"):
                hive.connect()
        assert clock.sleeps == pytest.approx([0.2, 0.4])


def test_retries_do_not_exceed_the_ration() -> None:
    def refuse(peer: Peer) -> None:
        peer.answer(f"AUTH {TOKEN}", "ERR AUTH reason=invalid-token")

    clock = FakeClock()
    with ScriptedConsole(refuse, silent, silent) as console, namespace(console.port, clock) as hive:
        with pytest.raises(HiveAuthError, match="refused the token"):
            hive.connect()
        with pytest.raises(HiveAuthError, match="token is wrong, another client"):
            hive.connect()
        assert clock.sleeps == pytest.approx([0.2, 0.05])


def test_a_refused_attach_is_risked_twice_a_minute_at_most() -> None:
    def refuse(peer: Peer) -> None:
        peer.answer(f"AUTH {TOKEN}", "OK AUTH")
        peer.answer("ATTACH worker-gpu", "ERR ATTACH reason=policy detail=denied")
        peer.expect_end()

    with (
        ScriptedConsole(refuse, refuse) as console,
        namespace(console.port, role="worker-gpu") as hive,
    ):
        for _ in range(2):
            with pytest.raises(HiveAuthError, match="needs a valid ticket"):
                hive.connect()
        with pytest.raises(HiveAuthError, match="too many refused attempts"):
            hive.connect()


def throttled(delay_ms: int) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.answer(f"AUTH {TOKEN}", "OK AUTH")
        peer.answer("ATTACH queen", f"ERR ATTACH reason=quota detail=throttled delay_ms={delay_ms}")
        peer.expect_end()

    return script


def test_a_short_throttle_is_waited_for() -> None:
    clock = FakeClock()
    with ScriptedConsole(throttled(240), session(LS_GPU)) as console, namespace(console.port, clock) as hive:
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]
        assert clock.sleeps == [0.24]


def test_a_long_throttle_is_reported_and_respected() -> None:
    clock = FakeClock()
    with (
        ScriptedConsole(throttled(64000), session(LS_GPU)) as console,
        namespace(console.port, clock) as hive,
    ):
        with pytest.raises(HiveBusyError, match="delay_ms=64000"):
            hive.connect()
        clock.now += 63.0
        with pytest.raises(HiveBusyError, match="possible in 1 s"):
            hive.connect()
        clock.now += 1.0
        assert hive.ls("/gpu") == ["bridge", "GPU-0"]


def test_a_console_that_never_answers_auth_is_busy() -> None:
    def mute(peer: Peer) -> None:
        peer.expect(f"AUTH {TOKEN}")
        peer.expect_end()

    with (
        ScriptedConsole(mute) as console,
        namespace(console.port, auth_s=0.05) as hive,
        pytest.raises(HiveBusyError, match="AUTH got no answer"),
    ):
        hive.connect()


def test_a_peer_that_is_no_console_is_a_violation() -> None:
    def other(peer: Peer) -> None:
        peer.expect(f"AUTH {TOKEN}")
        peer.sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        peer.expect_end()

    with (
        ScriptedConsole(other) as console,
        namespace(console.port) as hive,
        pytest.raises(HiveViolationError, match="check that this is a Cohesix console"),
    ):
        hive.connect()


def test_the_credential_is_read_again_at_each_connect(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first-token\n")

    def script(token: str) -> Callable[[Peer], None]:
        def run(peer: Peer) -> None:
            peer.handshake(token)
            peer.answer(*LS_GPU)

        return run

    with (
        ScriptedConsole(script("first-token"), script("second-token")) as console,
        namespace(console.port, token=f"file:{path}") as hive,
    ):
        hive.ls("/gpu")
        path.write_text("second-token\n")
        hive.ls("/gpu")


def test_a_ticket_is_presented_with_the_role(tmp_path: Path) -> None:
    ticket = lab_ticket(role=Role.GPU, subject="worker-2")

    def script(peer: Peer) -> None:
        peer.expect(f"AUTH {TOKEN}")
        peer.send("OK AUTH")
        peer.expect(f"ATTACH worker-gpu {ticket}")
        peer.send("OK ATTACH role=worker-gpu")
        peer.quit()

    env = {"COH_AUTH_TOKEN": TOKEN, "TICKET": ticket}
    with (
        ScriptedConsole(script) as console,
        namespace(console.port, token=None, role="worker-gpu", ticket="env:TICKET", env=env) as hive,
    ):
        hive.connect()


def test_credentials_are_checked_before_connecting() -> None:
    port = refused_port()
    for hive, words in (
        (namespace(port, token="changeme"), "placeholder"),
        (namespace(port, token=None), "no console credential"),
        (namespace(port, ticket="x" * 225), "longer than 224"),
    ):
        with pytest.raises(HiveAuthError, match=words):
            hive.connect()


def test_no_message_ever_holds_a_secret() -> None:
    ticket = "cohesix-ticket-77.88"
    config = ConsoleConfig(token=TOKEN, ticket=ticket)
    hive = ConsoleNamespace(config, env={})
    shown = f"{config} {config!r} {hive!r} {vars(hive)!r}"
    assert TOKEN not in shown
    assert ticket not in shown

    def script(peer: Peer) -> None:
        peer.answer(f"AUTH {TOKEN}", f"ERR AUTH reason=bad token {TOKEN}")

    with ScriptedConsole(script) as console, namespace(console.port) as hive:
        with pytest.raises(HiveAuthError) as caught:
            hive.connect()
        assert TOKEN not in repr(caught.value)


def test_an_illegal_role_is_a_defect_of_the_caller() -> None:
    with pytest.raises(ConsoleUsageError):
        namespace(1, role="queen x")


@pytest.mark.parametrize("host", ["a" * 64 + ".invalid", "a\0b"])
def test_an_impossible_host_is_unreachable(host: str) -> None:
    hive = ConsoleNamespace(ConsoleConfig(host=host, use_lock=False), env={"COH_AUTH_TOKEN": TOKEN})
    with pytest.raises(HiveUnreachableError, match="cannot connect"):
        hive.connect()


# The lock


def test_the_lock_is_held_from_the_first_connect_to_close(tmp_path: Path) -> None:
    with ScriptedConsole(session(LS_GPU, end=hang_up), session(LS_GPU)) as console:
        other = ConsoleLock(lock_path("127.0.0.1", console.port, directory=tmp_path))
        hive = namespace(console.port, lock_dir=tmp_path)
        other.acquire()
        other.release()
        for _ in range(2):
            hive.ls("/gpu")
            with pytest.raises(HiveBusyError):
                other.acquire()
        hive.close()
        other.acquire()
        other.release()


def test_a_held_lock_stops_the_client_before_it_connects(tmp_path: Path) -> None:
    port = refused_port()
    other = ConsoleLock(lock_path("127.0.0.1", port, directory=tmp_path))
    other.acquire()
    hive = namespace(port, lock_dir=tmp_path)
    with pytest.raises(HiveBusyError, match="console busy: lock held at"):
        hive.connect()
    other.release()
    with pytest.raises(HiveUnreachableError):
        hive.connect()
    hive.close()


def test_the_environment_disables_the_lock(tmp_path: Path) -> None:
    hive = namespace(refused_port(), lock_dir=tmp_path, env={"COHSH_CONSOLE_LOCK": "off"})
    with pytest.raises(HiveUnreachableError):
        hive.connect()
    assert list(tmp_path.iterdir()) == []
