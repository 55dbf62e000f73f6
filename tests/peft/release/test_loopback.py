from __future__ import annotations

import select
import socket
import struct
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from serving_support import TOKEN, TRANSFORMERS, double, free_port, instance

from ticket_agent.peft.release.loopback import MAX_ANSWER_BYTES, LoopbackClient
from ticket_agent.peft.release.readiness import check_ready, port_is_free, wait_ready
from ticket_agent.peft.release.serving_errors import (
    AnswerRefusedError,
    InstanceRefusedError,
    ServerRefusedError,
    ServerTimeoutError,
    ServerUnreachableError,
    ServingError,
    WrongModelError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_S = 60.0
OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


def _request(connection: socket.socket) -> bytes:
    """Head and body of one request, in however many pieces they come."""
    data = b""
    while not _is_whole(data) and (piece := connection.recv(1 << 16)):
        data += piece
    return data


def _is_whole(data: bytes) -> bool:
    head, blank, body = data.partition(b"\r\n\r\n")
    fields = [line.lower().partition(b":") for line in head.split(b"\r\n")]
    length = next((int(value) for name, _, value in fields if name == b"content-length"), 0)
    return bool(blank) and len(body) >= length


class Raw:
    """A server of bytes: it answers every request with the same ones, slowly if it should."""

    def __init__(
        self, answer: bytes, *, step: int = 1 << 20, pause_s: float = 0.0, hold: bool = False
    ) -> None:
        self.answer, self.step, self.pause_s, self.hold = answer, step, pause_s, hold
        self.requests: list[bytes] = []
        self.over = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self.requests.append(_request(connection))
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        try:
            for start in range(0, len(self.answer), self.step):
                connection.sendall(self.answer[start : start + self.step])
                if self.over.wait(self.pause_s):
                    return
            if self.hold:
                self.over.wait()
        except OSError:
            return

    def close(self) -> None:
        self.over.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


@contextmanager
def raw(answer: bytes, *, step: int = 1 << 20, pause_s: float = 0.0, hold: bool = False) -> Iterator[Raw]:
    made = Raw(answer, step=step, pause_s=pause_s, hold=hold)
    try:
        yield made
    finally:
        made.close()


def client(port: int) -> LoopbackClient:
    return LoopbackClient(port=port, token=TOKEN)


def test_every_request_carries_the_token_and_no_other_host() -> None:
    with raw(OK + b'{"a":1}') as server:
        assert client(server.port).get("/x", deadline_s=WAIT_S) == {"a": 1}
        client(server.port).get("/z", deadline_s=WAIT_S, authorised=False)
    first, second = server.requests
    assert first.startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1")
    assert f"Authorization: Bearer {TOKEN}".encode() in first
    assert b"Authorization" not in second
    assert TOKEN not in repr(client(server.port))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 503 Busy\r\n\r\nlater", ServerRefusedError),
        (b"HTTP/1.1 302 Found\r\nLocation: http://example.com/\r\n\r\n", ServerRefusedError),
        (b"HTTP/1.1 204 No Content\r\n\r\n", ServerRefusedError),
        (b"SSH-2.0-OpenSSH\r\n", AnswerRefusedError),
        (b"", ServerUnreachableError),
        (OK + b"[1]", AnswerRefusedError),
        (OK + b"{", AnswerRefusedError),
        (OK + b'{"a":NaN}', AnswerRefusedError),
        (OK + b'{"a":"' + b"x" * MAX_ANSWER_BYTES + b'"}', AnswerRefusedError),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", AnswerRefusedError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", AnswerRefusedError),
    ],
)
def test_what_is_no_answer_is_refused(answer: bytes, error: type[ServingError]) -> None:
    with raw(answer) as server, pytest.raises(ServingError) as refused:
        client(server.port).get("/x", deadline_s=WAIT_S)
    assert type(refused.value) is error or isinstance(refused.value, error)
    assert str(refused.value).isprintable()


@contextmanager
def refusing(answer: bytes, *, abrupt: bool) -> Iterator[int]:
    """A server that answers as soon as it has heard anything, and leaves the rest of the question unread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(16)
                connection.sendall(answer)
                if abrupt:
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


@pytest.mark.parametrize("abrupt", [False, True])
@pytest.mark.parametrize("pause_s", [0.0, 0.2])
@pytest.mark.parametrize("length", [b"Content-Length: 2\r\n", b""])
def test_a_server_that_does_not_hear_the_question_out_has_refused_it(
    abrupt: bool, pause_s: float, length: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection breaks while the question is sent, or right after; what it said before that counts."""
    sends, sendall = [0], socket.socket.sendall

    def sending(connection: socket.socket, data: bytes, *flags: int) -> None:
        if data.startswith(b'{"q"'):
            # The answer is there before the rest of the question goes out; the end of it all may be, too.
            sends[0] += 1
            select.select([connection], [], [], WAIT_S)
            time.sleep(pause_s)
        sendall(connection, data, *flags)

    monkeypatch.setattr(socket.socket, "sendall", sending)
    answer = b"HTTP/1.1 401 No\r\n" + length + b"\r\nno"
    with refusing(answer, abrupt=abrupt) as port, pytest.raises(ServerRefusedError) as refused:
        list(client(port).post_streamed("/x", {"q": 1}, deadline_s=WAIT_S))
    assert (refused.value.status, sends) == (401, [1])


@pytest.mark.parametrize("step", [1, 1 << 20], ids=["a byte now and then", "nothing more"])
def test_the_deadline_is_for_the_whole_answer(step: int) -> None:
    # Byte by byte the answer would take minutes, and its end never comes.
    body = b'{"a":' + b" " * 20_000
    with raw(OK + body, step=step, pause_s=0.01 if step == 1 else 0.0, hold=True) as server:
        start = time.monotonic()
        with pytest.raises(ServerTimeoutError):
            client(server.port).get("/x", deadline_s=0.3)
        assert 0.25 < time.monotonic() - start < WAIT_S


@pytest.mark.parametrize("deadline_s", [0.0, -1.0])
def test_a_deadline_that_is_over_asks_nothing(deadline_s: float) -> None:
    with raw(OK + b"{}") as server:
        with pytest.raises(ServerTimeoutError):
            client(server.port).get("/x", deadline_s=deadline_s)
        assert server.requests == []


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"a\nb\n", None),
        (b"a\r\nb\r\n", None),
        (b"a\nb", AnswerRefusedError),
        (b"x" * 20_000 + b"\n", AnswerRefusedError),
        (b"x\n" * 40_000, AnswerRefusedError),
    ],
)
def test_streamed_lines_are_bounded(body: bytes, error: type[ServingError] | None) -> None:
    with raw(OK + body) as server:
        lines = client(server.port).post_streamed("/x", {"q": 1}, deadline_s=WAIT_S)
        if error is None:
            assert list(lines) == [b"a", b"b"]
        else:
            with pytest.raises(error):
                list(lines)
    assert server.requests[0].endswith(b'{"q":1}')


def test_a_question_is_bounded_too() -> None:
    with pytest.raises(AnswerRefusedError, match="request"):
        list(client(free_port()).post_streamed("/x", {"q": "x" * 20_000}, deadline_s=WAIT_S))


@pytest.mark.parametrize(
    ("port", "token"), [(0, TOKEN), (80, TOKEN), (8000, "x"), (8000, "x" * 40 + "\r\nA: b")]
)
def test_no_client_is_made_for_what_is_no_server(port: int, token: str) -> None:
    with pytest.raises(InstanceRefusedError):
        LoopbackClient(port=port, token=token)


# -- readiness ---------------------------------------------------------------------------------------


def test_a_free_port_is_told_from_a_silent_server() -> None:
    assert port_is_free(client(free_port()))
    for answer in (OK + b"{}", b"HTTP/1.1 500 Oh\r\n\r\n", b"nonsense\r\n", b""):
        with raw(answer) as server:
            assert not port_is_free(client(server.port))


def test_a_server_that_starts_is_waited_for(tmp_path: Path) -> None:
    with double(tmp_path, start_s=0.2) as running:
        models = wait_ready(
            running.client, TRANSFORMERS, running.instance, alive=running.alive, deadline_s=WAIT_S
        )
    assert [model.name for model in models] == [running.instance.name]


def test_waiting_ends_with_the_process_or_the_time() -> None:
    made = instance(port=free_port())
    now = iter(range(100))
    with pytest.raises(ServerUnreachableError, match="ended before"):
        wait_ready(client(made.port), TRANSFORMERS, made, alive=lambda: False, deadline_s=WAIT_S)
    slept: list[float] = []
    with pytest.raises(ServerTimeoutError, match="not ready after 5 s"):
        wait_ready(
            client(made.port),
            TRANSFORMERS,
            made,
            alive=lambda: True,
            deadline_s=5,
            clock=lambda: next(now),
            sleep=slept.append,
        )
    assert len(slept) == 4


@pytest.mark.parametrize(
    ("fault", "error"),
    [("open", AnswerRefusedError), ("other-list", WrongModelError), ("more-names", WrongModelError)],
)
def test_a_wrong_server_is_not_waited_for(fault: str, error: type[ServingError], tmp_path: Path) -> None:
    with double(tmp_path, fault=fault) as running, pytest.raises(error):
        check_ready(running.client, TRANSFORMERS, running.instance)
