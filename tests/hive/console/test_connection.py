"""The client's connection and the console's, without sockets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transcript_replay import connection_for, idle_connection

from ticket_agent.hive.console.accepting import Broken, Hello, Line, Overlong, ServerConnection, ServerEvent
from ticket_agent.hive.console.connection import (
    CLIENT_MOVES,
    Answered,
    ClientConnection,
    ClientEvent,
    ConnectionStateError,
    State,
    ToSend,
    Unasked,
)
from ticket_agent.hive.console.framing import OLDER_BOUNDS, FrameError, encode_frame
from ticket_agent.hive.console.handshake import Attached, FailureKind, HandshakeFailure
from ticket_agent.hive.console.replies import Command, Done, Ended, Err, Verb, Violation
from ticket_agent.protocol.chunks import encode_line

LS = Command(Verb.LS, "/gpu")
CAT = Command(Verb.CAT, "/host/tickets/spec.snapshot")
CAT_HEAD = "OK CAT path=/host/tickets/spec.snapshot data="


def frames(*lines: str) -> bytes:
    return b"".join(encode_frame(line) for line in lines)


def drained(connection: ClientConnection) -> list[ClientEvent]:
    found: list[ClientEvent] = []
    while (event := connection.next_event()) is not None:
        found.append(event)
    return found


def told(connection: ClientConnection, *lines: str) -> list[ClientEvent]:
    connection.receive(frames(*lines))
    return drained(connection)


def asked(command: Command = LS) -> ClientConnection:
    connection = idle_connection()
    connection.command(command)
    return connection


def test_a_whole_session() -> None:
    connection = connection_for("tok-4711")
    assert connection.start() == frames("AUTH tok-4711")
    assert told(connection, "OK AUTH") == [ToSend(frames("ATTACH queen"))]
    assert told(connection, "OK ATTACH role=queen") == [Attached("queen")]
    assert connection.command(LS) == frames("LS /gpu")
    assert state_of(connection) == "busy"
    assert told(connection, "OK LS path=/gpu entries=1", "GPU-0") == []
    assert told(connection, "END") == [Answered(Done("path=/gpu entries=1", ("GPU-0",)))]
    assert state_of(connection) == "idle"
    assert connection.command(Command(Verb.QUIT)) == frames("QUIT")
    assert told(connection, "OK QUIT") == [Answered(Done(""))]
    assert state_of(connection) == "closed"
    assert connection.ended() is None


def state_of(connection: ClientConnection) -> str:
    """As a text: a type checker takes a property for a constant."""
    return str(connection.state)


def test_the_moves_are_the_documented_ones_and_an_illegal_one_changes_nothing() -> None:
    assert set(CLIENT_MOVES) == set(State)
    busy = asked()
    for connection in (connection_for("tok"), busy):
        before = state_of(connection)
        with pytest.raises(ConnectionStateError):
            connection.command(LS)
        assert state_of(connection) == before
    for connection in (idle_connection(), busy):
        before = state_of(connection)
        with pytest.raises(ConnectionStateError):
            connection.start()
        assert state_of(connection) == before
    assert told(busy, "OK LS path=/gpu entries=0", "END") == [Answered(Done("path=/gpu entries=0"))]


def test_a_command_longer_than_a_frame_changes_nothing() -> None:
    connection = idle_connection()
    with pytest.raises(FrameError):
        connection.command(Command(Verb.ECHO, "/x", "y" * 9000))
    assert connection.state is State.IDLE


def test_c1_groups_are_reassembled_where_they_may_stand() -> None:
    line = "x" * 600
    read = asked(CAT)
    assert told(read, CAT_HEAD, *encode_line(line), "plain", "END") == [
        Answered(Done(CAT_HEAD.removeprefix("OK CAT "), (line, "plain")))
    ]
    broken = asked(CAT)
    (event,) = told(broken, CAT_HEAD, *encode_line(line)[:-1], "END")
    assert isinstance(event, Answered)
    assert isinstance(event.outcome, Violation)
    assert "broken C1 group" in event.outcome.why
    assert broken.state is State.CLOSED
    listed = asked()
    first = encode_line(line)[0]
    assert told(listed, "OK LS path=/gpu entries=1", first, "END") == [
        Answered(Done("path=/gpu entries=1", (first,)))
    ]


SURPRISES = {
    "a stored OK line": ("OK LS injected",),
    "a stored ERR line": ("ERR CAT injected",),
    "END before the answer": ("END",),
    "another path": ("OK LS path=/host entries=1",),
    "another verb": ("OK CAT path=/gpu data=",),
    "a data line first": ("GPU-0",),
    "announced end": ("ERR CONSOLE reason=timeout",),
    "forgotten session": ("ERR LS reason=policy detail=unauthenticated",),
}


@pytest.mark.parametrize("lines", SURPRISES.values(), ids=SURPRISES)
def test_a_surprise_closes_for_good_and_nothing_is_guessed(lines: tuple[str, ...]) -> None:
    connection = asked()
    events = told(connection, *lines, "OK LS path=/gpu entries=0", "END")
    assert len(events) == 1
    assert connection.state is State.CLOSED
    assert connection.buffered == 0
    assert told(connection, "OK LS path=/gpu entries=0", "END") == []


def test_a_stored_end_line_shows_when_the_rest_arrives() -> None:
    connection = asked(CAT)
    done, rest = told(connection, CAT_HEAD, "END", "{}", "END")
    assert done == Answered(Done(CAT_HEAD.removeprefix("OK CAT "), ()))
    assert rest == Unasked("carried a line nobody asked for")
    assert connection.state is State.CLOSED


def test_a_late_pong_is_dropped_everywhere() -> None:
    connection = idle_connection()
    assert told(connection, "PONG") == []
    connection.command(LS)
    events = told(connection, "PONG", "OK LS path=/gpu entries=1", "PONG", "GPU-0", "PONG", "END", "PONG")
    assert events == [Answered(Done("path=/gpu entries=1", ("GPU-0",)))]
    assert connection.state is State.IDLE


@pytest.mark.parametrize(
    "pseudo", ["PARSE reason=policy detail=empty command", "FRAME reason=invalid-length"]
)
def test_a_grammar_error_ends_the_command_in_flight_and_keeps_the_session(pseudo: str) -> None:
    connection = asked()
    (event,) = told(connection, f"ERR {pseudo}")
    assert isinstance(event, Answered)
    assert isinstance(event.outcome, Err)
    assert connection.state is State.IDLE


@pytest.mark.parametrize("garbage", [b"\0\0\0\0", b"\x03\0\0\0", (8193).to_bytes(4, "little"), b"\xff" * 4])
def test_what_garbage_means_depends_on_the_state(garbage: bytes) -> None:
    auth = connection_for("tok")
    auth.start()
    idle, busy = idle_connection(), asked()
    found: list[ClientEvent] = []
    for connection in (auth, idle, busy):
        connection.receive(garbage)
        found += drained(connection)
        assert connection.state is State.CLOSED
    failure, unasked, answered = found
    assert isinstance(failure, HandshakeFailure)
    assert failure.kind is FailureKind.VIOLATION
    assert isinstance(unasked, Unasked)
    assert isinstance(answered, Answered)
    assert isinstance(answered.outcome, Violation)


def test_what_an_end_and_a_deadline_mean_depends_on_the_state() -> None:
    auth = connection_for("tok")
    auth.start()
    late = connection_for("tok")
    late.start()
    attach = connection_for("tok")
    attach.start()
    told(attach, "OK AUTH")
    steps = (auth.ended(), late.expired(), attach.ended())
    kinds = [step.kind for step in steps if isinstance(step, HandshakeFailure)]
    assert kinds == [FailureKind.SILENT_CLOSE, FailureKind.NO_ANSWER, FailureKind.UNAVAILABLE]
    assert idle_connection().ended() == Unasked("was closed by the console while idle")
    assert idle_connection().expired() is None
    assert asked().ended() == Answered(Ended("the connection was closed by the console"))
    assert connection_for("tok").ended() is None


def test_an_end_before_ok_auth_names_everything_it_can_mean() -> None:
    connection = connection_for("tok")
    connection.start()
    failure = connection.ended()
    assert isinstance(failure, HandshakeFailure)
    for words in ("token is wrong", "another client holds", "came too late"):
        assert words in failure.why


def test_credentials_hide() -> None:
    connection = connection_for("tok-4711", ticket="cohesix-ticket-00.11")
    connection.start()
    events = told(connection, "OK AUTH")
    assert "ticket-00" not in repr(events)
    assert "tok-4711" not in repr(connection)
    assert "tok-4711" not in repr(Hello(b"AUTH tok-4711"))


# The console's side


def heard(connection: ServerConnection) -> list[ServerEvent]:
    found: list[ServerEvent] = []
    while (event := connection.next_event()) is not None:
        found.append(event)
        if isinstance(event, Hello) and event.payload == b"AUTH good":
            connection.authenticated()
    return found


def test_nothing_is_looked_at_before_the_hello_was_accepted() -> None:
    connection = ServerConnection()
    connection.receive(frames("AUTH bad", "LS /"))
    assert heard(connection) == [Hello(b"AUTH bad")]
    assert connection.next_event() is None
    connection.close()
    with pytest.raises(ConnectionStateError):
        connection.authenticated()
    with pytest.raises(ConnectionStateError):
        ServerConnection().authenticated()


def test_commands_behind_an_accepted_hello_are_heard() -> None:
    connection = ServerConnection()
    connection.receive(frames("AUTH good", "ATTACH queen", "LS /"))
    assert heard(connection) == [Hello(b"AUTH good"), Line(b"ATTACH queen"), Line(b"LS /")]


@pytest.mark.parametrize("data", [(261).to_bytes(4, "little"), (8193).to_bytes(4, "little"), b"\x03\0\0\0"])
def test_an_illegal_first_frame_drops_the_connection(data: bytes) -> None:
    connection = ServerConnection(bounds=OLDER_BOUNDS)
    connection.receive(data + frames("AUTH good"))
    (event,) = heard(connection)
    assert isinstance(event, Broken)
    assert connection.state is State.CLOSED
    assert connection.buffered == 0


@pytest.mark.parametrize(("size", "fits"), [(256, True), (257, False), (8188, False), (8189, False)])
@pytest.mark.parametrize("queue_depth", [None, 8])
def test_a_frame_over_the_bound_is_skipped_exactly(size: int, fits: bool, queue_depth: int | None) -> None:
    connection = ServerConnection(bounds=OLDER_BOUNDS, queue_depth=queue_depth)
    long = (4 + size).to_bytes(4, "little") + b"x" * size
    connection.receive(frames("AUTH good") + long + frames("PING"))
    expected = Line(b"x" * size) if fits else Overlong(4 + size)
    assert heard(connection) == [Hello(b"AUTH good"), expected, Line(b"PING")]


def test_a_frame_shorter_than_its_header_drops_a_session() -> None:
    connection = ServerConnection()
    connection.receive(frames("AUTH good", "PING") + b"\x03\0\0\0" + frames("PING"))
    *before, last = heard(connection)
    assert before == [Hello(b"AUTH good"), Line(b"PING")]
    assert isinstance(last, Broken)
    connection.receive(frames("PING"))
    assert heard(connection) == []


@given(st.lists(st.text(max_size=20), max_size=6), st.integers(1, 40))
def test_what_a_console_hears_does_not_depend_on_the_cuts(lines: list[str], size: int) -> None:
    data = frames("AUTH good", *lines)
    whole, cut = ServerConnection(), ServerConnection()
    whole.receive(data)
    found: list[ServerEvent] = []
    for start in range(0, len(data), size):
        cut.receive(data[start : start + size])
        found += heard(cut)
    assert found == heard(whole)
