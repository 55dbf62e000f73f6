"""Hostile answers: the client takes them apart without a crash, a hang or memory without bound.

A sample by default; ``TICKET_AGENT_FUZZ=all`` runs 100,000 inputs.
"""

from __future__ import annotations

import os
import random
import re
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rest_support import LINE, PATH, TOKEN, ScriptedGateway, echoed, gives, http, rest, said, state

from ticket_agent.hive.rest.answers import Judge, Throttled, Verb
from ticket_agent.hive.rest.sessions import read_evidence
from ticket_agent.protocol.http_exchange import MAX_BODY, Exchange, Reply, WireError
from ticket_agent.protocol.namespace import Acked, HiveError, Refused, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

INPUTS = 100_000 if os.environ.get("TICKET_AGENT_FUZZ") == "all" else 3_000

CHUNKED = (
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\n{"a"\r\n3\r\n:1}\r\n0\r\nT: u\r\n\r\n'
)
CORPUS = (
    http(200, echoed()),
    http(200, said("CAT", PATH, ['{"schema":"host-ticket/v2"}', "é", "C1:0000"])),
    http(200, said("TAIL", PATH, [])),
    http(200, state()),
    http(200, {"status": "ERR", "verb": "ECHO", "path": PATH, "error": "ERR ECHO reason=busy detail=busy"}),
    http(401, {"status": "ERR", "error": TOKEN}),
    http(422, b"Failed to deserialize the JSON body into the target type"),
    http(429, b"gateway backpressure", Retry_After="3"),
    http(503, b"", Retry_After="Mon, 30 Nov 2026 00:00:05 GMT", Date="Mon, 30 Nov 2026 00:00:00 GMT"),
    b"HTTP/1.1 100 Continue\r\n\r\n" + http(200, echoed()),
    b"HTTP/1.0 200 OK\r\n\r\n{}",
    CHUNKED,
)
TOKENS = (
    b"\r\n", b"\n", b"\0", b"\xff\xfe", b"Content-Length: 5\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Connection: close\r\n", b"[" * 200,
    b'"status":"OK",', b"1e999", b"-0", b"\\ud800", b"HTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 101 X\r\n\r\n", b"{", b"}",
)  # fmt: skip


def _mutants(count: int, seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    for _ in range(count):
        data = bytearray(chance.choice(CORPUS))
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(data) + 1)
            match chance.randrange(6):
                case 0:
                    data[at : at + 1] = bytes([chance.randrange(256)])
                case 1:
                    del data[at : at + chance.randrange(1, 9)]
                case 2:
                    data[at:at] = chance.choice(TOKENS)
                case 3:
                    data = data[:at] + chance.choice(CORPUS)[chance.randrange(40) :]
                case 4:
                    data = data[:at]
                case _:
                    start = chance.randrange(len(data) + 1)
                    data[at:at] = data[start : start + 30]
        yield bytes(data)


def _replies(data: bytes, chance: random.Random) -> Iterator[Reply | None]:
    """What the connection makes of bytes in pieces, and of the end behind them."""
    exchange = Exchange(max_body=4096)
    exchange.request("GET", "/v1/meta/status", [("Host", "h")])
    at = 0
    while at <= len(data):
        size = chance.choice((1, 7, 4096)) if at < len(data) else 0
        try:
            reply = exchange.receive(data[at : at + size])
        except WireError:
            return
        if reply is not None:
            assert len(reply.body) <= 4096
            yield reply
            return
        assert size, "the end leaves nothing open"
        at += size


def _judged(reply: Reply) -> None:
    judge = Judge("gateway h", lambda text: text.replace(TOKEN, "[redacted]"))
    for ask in (
        lambda: judge.append(reply, path=PATH, line=LINE),
        lambda: judge.read(reply, verb=Verb.CAT, path=PATH),
        lambda: judge.document(reply, "/v1/meta/status"),
    ):
        text = ""
        try:
            answer: Any = ask()
        except HiveError as error:
            text = str(error)
        else:
            match answer:
                case Acked():
                    assert reply.status == 200
                    assert re.search(rb'"status"\s*:\s*"(OK|[^"]*\\)', reply.body)
                case Refused(refusal) | Throttled(refusal, _):
                    text = refusal.text
                case Unknown(why):
                    text = why
                case dict():
                    read_evidence(answer, link=1)
                case list():
                    assert all(isinstance(line, str) for line in answer)
        assert len(text) < 1500
        assert TOKEN not in text
        assert "\n" not in text


@pytest.mark.timeout(600)
def test_mutants_of_true_answers() -> None:
    chance = random.Random(4711)
    complete = 0
    for data in _mutants(INPUTS, seed=20261130):
        for reply in _replies(data, chance):
            assert reply is not None
            complete += 1
            _judged(reply)
    assert complete > INPUTS // 10, "most mutants must not fail at the first byte"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([200, 400, 401, 403, 429, 500, 504]), st.integers(0, 9))
def test_any_bytes_in_any_place(data: bytes, status: int, seed: int) -> None:
    chance = random.Random(seed)
    for stream in (data, http(status, data), http(status) + data, http(status)[:-2] + data):
        for reply in _replies(stream, chance):
            assert reply is not None
            _judged(reply)


@pytest.mark.parametrize(
    "flood",
    [
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 65536,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 65536 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 65536,
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 65536,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 3_000,
    ],
)
def test_an_answer_without_end_takes_little_memory(flood: bytes) -> None:
    exchange = Exchange()
    exchange.request("GET", "/", [("Host", "h")])
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            _feed(exchange, flood)
        assert tracemalloc.get_traced_memory()[1] < 6 * MAX_BODY
    finally:
        tracemalloc.stop()


def _feed(exchange: Exchange, flood: bytes) -> None:
    for _ in range(1000):
        assert exchange.receive(flood) is None
        flood = flood[-65536:]


def test_some_of_it_over_real_sockets() -> None:
    with ScriptedGateway(http(200)) as gateway, rest(gateway.port, data_s=5.0, metadata_s=5.0) as namespace:
        for data in _mutants(150, seed=7):
            gateway._script[:] = [gives(data)]
            try:
                answer = namespace.append(PATH, LINE)
            except HiveError:
                continue
            assert isinstance(answer, Acked | Refused | Unknown)
