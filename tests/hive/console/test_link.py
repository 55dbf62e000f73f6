from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from ticket_agent.hive.console.framing import FrameError, encode_frame
from ticket_agent.hive.console.link import Link, LinkBrokenError, LinkTimeoutError, NothingSentError

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_LINE = "x" * 8188


@pytest.fixture
def pair() -> Iterator[tuple[Link, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    with ours, theirs:
        yield Link(ours, time.monotonic), theirs


def soon() -> float:
    return time.monotonic() + 0.05


def later() -> float:
    return time.monotonic() + 20.0


def test_a_closed_peer_takes_nothing(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    theirs.close()
    with pytest.raises(NothingSentError, match="took no byte"):
        link.send("PING", later())


def test_a_passed_deadline_sends_nothing(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    with pytest.raises(NothingSentError):
        link.send("PING", time.monotonic())
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)


def test_a_command_that_left_in_part_is_not_called_unsent(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    with pytest.raises(LinkBrokenError, match="while the command was sent") as caught:
        link.send(LONG_LINE, soon())
    assert not isinstance(caught.value, NothingSentError)
    with pytest.raises(NothingSentError):
        link.send(LONG_LINE, soon())
    assert theirs.recv(4) == encode_frame(LONG_LINE)[:4]


def test_frames_arrive_whole(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    theirs.sendall(encode_frame("one") + encode_frame("two")[:5])
    assert link.receive(later()) == b"one"
    with pytest.raises(LinkTimeoutError):
        link.receive(soon())
    theirs.sendall(encode_frame("two")[5:])
    assert link.receive(later()) == b"two"
    theirs.close()
    with pytest.raises(LinkBrokenError, match="closed by the console"):
        link.receive(later())


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
    theirs.sendall(encode_frame("PONG")[6:] + encode_frame("OK QUIT"))
    assert link.receive(later()) == b"PONG"
    assert link.receive(later()) == b"OK QUIT"
    assert not link.surplus()


class Chatterbox(socket.socket):
    """Never has nothing to say."""

    def recv(self, *_: object) -> bytes:
        return encode_frame("PONG")


def test_a_peer_that_never_falls_silent_is_given_up() -> None:
    with Chatterbox() as sock:
        assert Link(sock, time.monotonic).surprise() == "does not fall silent"


def test_surplus_lines_are_seen(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    theirs.sendall(encode_frame("END") + encode_frame("PONG") + encode_frame("x"))
    assert link.receive(later()) == b"END"
    assert link.surplus()


def test_an_over_long_frame_is_no_frame(pair: tuple[Link, socket.socket]) -> None:
    link, theirs = pair
    theirs.sendall((8193).to_bytes(4, "little"))
    with pytest.raises(FrameError, match="8193"):
        link.receive(later())
