from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from ticket_agent.hive.console.connection import Answered, ClientConnection
from ticket_agent.hive.console.framing import encode_frame
from ticket_agent.hive.console.link import Link, LinkBrokenError, LinkTimeoutError, NothingSentError
from ticket_agent.hive.console.replies import Command, Done, Verb, Violation
from ticket_agent.hive.credentials import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_LINE = encode_frame("x" * 8188)
PING = encode_frame("PING")
READ = Command(Verb.LS, "/host")
HEAD = encode_frame("OK LS path=/host entries=1")


def idle() -> ClientConnection:
    """A connection whose session is attached."""
    connection = ClientConnection(token=Secret("tok-4711"), role="queen")
    connection.start()
    connection.receive(encode_frame("OK AUTH") + encode_frame("OK ATTACH role=queen"))
    assert [connection.next_event() for _ in range(3)][2] is None
    return connection


def asked(link: Link) -> None:
    link.connection.command(READ)


@pytest.fixture
def pair() -> Iterator[tuple[Link, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    with ours, theirs:
        yield Link(ours, idle(), time.monotonic), theirs


def soon() -> float:
    return time.monotonic() + 0.05


def later() -> float:
    return time.monotonic() + 20.0


def test_a_closed_peer_takes_nothing(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    theirs.close()
    with pytest.raises(NothingSentError, match="took no byte"):
        link.send(PING, later())


def test_a_passed_deadline_sends_nothing(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    with pytest.raises(NothingSentError):
        link.send(PING, time.monotonic())
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)


def test_a_command_that_left_in_part_is_not_called_unsent(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    # A part fits in at once; the time for the rest of it is short, however late this thread is.
    moments = iter([0.0, 19.95])
    with pytest.raises(LinkBrokenError, match="while the command was sent") as caught:
        Link(link._sock, link.connection, lambda: next(moments)).send(LONG_LINE, 20.0)
    assert next(moments, None) is None
    assert not isinstance(caught.value, NothingSentError)
    with pytest.raises(NothingSentError):
        link.send(LONG_LINE, soon())
    assert theirs.recv(4) == LONG_LINE[:4]


def test_an_answer_is_waited_for(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    asked(link)
    end = encode_frame("END")
    theirs.sendall(HEAD + encode_frame("tickets") + end[:5])
    with pytest.raises(LinkTimeoutError):
        link.next_event(soon())
    theirs.sendall(end[5:])
    assert link.next_event(later()) == Answered(Done("path=/host entries=1", ("tickets",)))
    theirs.close()
    with pytest.raises(LinkBrokenError, match="closed by the console"):
        link.next_event(later())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", None),
        (encode_frame("PONG"), None),
        (encode_frame("PONG")[:3], None),
        (encode_frame("PONG") + encode_frame("END"), "nobody asked for"),
        (encode_frame("ERR CONSOLE reason=timeout"), "nobody asked for"),
        (b"\0\0\0\0", "garbage"),
    ],
)
def test_an_idle_connection_may_only_say_pong(
    pair: tuple[Link, socket.socket], data: bytes, why: str | None
) -> None:
    link, theirs = pair
    theirs.sendall(data)
    surprise = link.surprise()
    assert (surprise is None) == (why is None)
    assert why is None or why in (surprise or "")


def test_an_idle_connection_that_ended_is_noticed(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    theirs.sendall(encode_frame("PONG"))
    theirs.close()
    assert link.surprise() == "was closed by the console while idle"


def test_a_pong_cut_in_two_is_still_a_pong(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    theirs.sendall(encode_frame("PONG")[:6])
    assert link.surprise() is None
    link.connection.command(Command(Verb.QUIT))
    theirs.sendall(encode_frame("PONG")[6:] + encode_frame("OK QUIT"))
    assert link.next_event(later()) == Answered(Done(""))
    assert link.surplus() is None


class Chatterbox(socket.socket):
    """Never has nothing to say."""

    def recv(self, *_: object) -> bytes:
        return encode_frame("PONG")


def test_a_peer_that_never_falls_silent_is_given_up() -> None:
    with Chatterbox() as sock:
        assert Link(sock, idle(), time.monotonic).surprise() == "does not fall silent"


def test_surplus_lines_are_seen(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    asked(link)
    theirs.sendall(HEAD + encode_frame("END") + encode_frame("PONG") + encode_frame("x"))
    assert link.next_event(later()) == Answered(Done("path=/host entries=1"))
    assert link.surplus() == "carried a line nobody asked for"


def test_an_over_long_frame_is_no_frame(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    asked(link)
    theirs.sendall((8193).to_bytes(4, "little"))
    event = link.next_event(later())
    assert isinstance(event, Answered)
    assert isinstance(event.outcome, Violation)
    assert "8193" in event.outcome.why
