from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.protocol.errors import SnapshotError
from ticket_agent.protocol.snapshot import snapshot_digest
from ticket_agent.protocol.snapshot_transfer import (
    CHUNK_CHARACTERS,
    MAX_PAYLOAD_BYTES,
    Begin,
    Chunk,
    End,
    decode_body,
    encoded_characters,
    parse_command,
    transfer_lines,
)

ZEROS = "0" * 64
MOST = 8192

COMMANDS = {
    f"begin bytes=1 sha256={ZEROS}": Begin(1, ZEROS),
    f"begin bytes=8192 sha256={ZEROS}": Begin(8192, ZEROS),
    f"begin sha256={ZEROS} bytes=2": Begin(2, ZEROS),
    f"begin  bytes=2   sha256={ZEROS} ": Begin(2, ZEROS),
    "b64:e30=": Chunk("e30="),
    "b64: ": Chunk(" "),
    "b64:!": Chunk("!"),
    "b64:é": Chunk("é"),
    "b64:b64:": Chunk("b64:"),
    "end": End(),
}


@pytest.mark.parametrize("payload", COMMANDS)
def test_commands(payload: str) -> None:
    assert parse_command(payload, max_bytes=MOST) == COMMANDS[payload]


REFUSED = [
    "",
    " ",
    "END",
    "End",
    " end",
    "end ",
    "end\n",
    "end\r\n",
    "end end",
    "abort",
    "b64:",
    "B64:e30=",
    " b64:e30=",
    "b64",
    "b64:e30=\n",
    "b64:e3\r0=",
    "begin",
    "begin ",
    "begin\t",
    f"BEGIN bytes=2 sha256={ZEROS}",
    f" begin bytes=2 sha256={ZEROS}",
    f"begin\tbytes=2 sha256={ZEROS}",
    f"begin bytes=2 sha256={ZEROS}\n",
    f"begin bytes=0 sha256={ZEROS}",
    f"begin bytes=8193 sha256={ZEROS}",
    f"begin bytes={10**400} sha256={ZEROS}",
    f"begin bytes=-2 sha256={ZEROS}",
    f"begin bytes=+2 sha256={ZEROS}",
    f"begin bytes=02 sha256={ZEROS}",
    f"begin bytes=2_0 sha256={ZEROS}",
    f"begin bytes=0x2 sha256={ZEROS}",
    f"begin bytes=2.0 sha256={ZEROS}",
    f"begin bytes=٢ sha256={ZEROS}",
    f"begin bytes= sha256={ZEROS}",
    f"begin bytes sha256={ZEROS}",
    f"begin bytes=2 bytes=2 sha256={ZEROS}",
    f"begin bytes=2 sha256={ZEROS} sha256={ZEROS}",
    f"begin bytes=2 sha256={ZEROS} ttl_ms=1",
    f"begin bytes=2 sha256={ZEROS} now",
    f"begin Bytes=2 sha256={ZEROS}",
    "begin bytes=2",
    f"begin sha256={ZEROS}",
    f"begin bytes=2 sha256={'A' * 64}",
    f"begin bytes=2 sha256={'g' * 64}",
    f"begin bytes=2 sha256={'0' * 63}",
    f"begin bytes=2 sha256={'0' * 65}",
    "begin bytes=2 sha256=",
]


@pytest.mark.parametrize("payload", REFUSED)
def test_no_commands(payload: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        parse_command(payload, max_bytes=MOST)
    assert refused.value.code == "snapshot-transfer"
    assert "\n" not in str(refused.value)


def test_the_bound_of_begin_is_that_of_the_enrolment() -> None:
    payload = f"begin bytes=100 sha256={ZEROS}"
    assert parse_command(payload, max_bytes=100) == Begin(100, ZEROS)
    with pytest.raises(SnapshotError, match=r"must be in 1\.\.=99"):
        parse_command(payload, max_bytes=99)


BROKEN = {
    "an alphabet of its own": (b"\xff\xff\xff", "____"),
    "no ASCII": (b"abc", "éééé"),
    "a lone surrogate": (b"abc", "\ud800"),
    "no padding": (b"ab", "YWI"),
    "too much padding": (b"ab", "YWI=="),
    "padding within": (b"abab", "YWI=YWI="),
    "unused bits": (b"ab", "YWJ="),
    "a blank": (b"abc", "YW Jj"),
    "a newline behind it": (b"abc", "YWJj\n"),
    "nothing": (b"abc", ""),
    "a byte less": (b"abc", "YWI="),
    "a byte more": (b"ab", "YWJj"),
    "other bytes": (b"ab", "Y2Q="),
}


@pytest.mark.parametrize(("data", "text"), BROKEN.values(), ids=BROKEN)
def test_a_text_that_is_not_what_was_announced(data: bytes, text: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        decode_body(text, Begin(len(data), snapshot_digest(data)))
    assert refused.value.code == "snapshot-transfer"


def test_the_longest_record_takes_eight_appends_that_fit() -> None:
    lines = list(transfer_lines(b"x" * 8192))
    assert len(lines) == 8
    assert CHUNK_CHARACTERS == 2040
    assert max(len(line) + 1 for line in lines) == 2045 <= MAX_PAYLOAD_BYTES
    assert encoded_characters(8192) == 10924 == sum(len(line) - 4 for line in lines[1:-1])


@given(st.binary(min_size=1, max_size=600), st.integers(1, 900))
def test_what_is_sent_arrives(data: bytes, chunk_characters: int) -> None:
    first, *chunks, last = (
        parse_command(line, max_bytes=MOST)
        for line in transfer_lines(data, chunk_characters=chunk_characters)
    )
    assert isinstance(first, Begin)
    assert isinstance(last, End)
    text = ""
    for chunk in chunks:
        assert isinstance(chunk, Chunk)
        assert 1 <= len(chunk.text) <= chunk_characters
        text += chunk.text
    assert len(text) == encoded_characters(len(data))
    assert decode_body(text, first) == data


@given(st.text(max_size=40), st.binary(min_size=1, max_size=20))
def test_no_text_but_the_one_is_taken(text: str, data: bytes) -> None:
    try:
        found = decode_body(text, Begin(len(data), snapshot_digest(data)))
    except SnapshotError:
        return
    assert (found, text) == (data, base64.b64encode(data).decode())


@given(st.text(max_size=120))
def test_no_payload_does_anything_but_be_read_or_refused(payload: str) -> None:
    try:
        command = parse_command(payload, max_bytes=MOST)
    except SnapshotError:
        return
    assert isinstance(command, Chunk | End | Begin)
    assert not set("\r\n") & set(payload)
