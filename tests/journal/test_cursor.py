from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.journal.cursor import (
    MAX_CURSOR_BYTES,
    MAX_EPOCHS,
    Cursor,
    EpochMark,
    HeldGap,
    StreamMark,
    decode_cursor,
    encode_cursor,
)
from ticket_agent.journal.envelope import Kind, seal
from ticket_agent.journal.errors import RecordError

u64 = st.integers(0, 2**64 - 1)
lines = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
marks = st.builds(
    StreamMark,
    offset=st.none() | u64,
    length=u64,
    sha256=st.binary(max_size=3).map(lambda data: sha256(data).hexdigest()),
    sequence=u64,
)


@st.composite
def cursors(draw: st.DrawFn) -> Cursor:
    numbers = sorted(draw(st.sets(st.integers(1, 500), max_size=5)))
    first = draw(st.integers(1, 99))
    return Cursor(
        epoch=draw(st.integers(max(numbers, default=1), 2**64 - 1)),
        epochs=tuple(
            EpochMark(
                number=n,
                opened_unix_ms=draw(st.integers(0, 9)),
                evidence=draw(lines),
                completed_through=draw(u64),
            )
            for n in numbers
        ),
        consumed_sequence=draw(u64),
        mark=draw(st.none() | marks),
        ends=draw(st.dictionaries(lines, u64, max_size=3)),
        held=draw(
            st.none()
            | st.builds(
                HeldGap,
                epoch=st.integers(1, 9),
                first=st.just(first),
                through=st.integers(first, 200),
                reason=lines,
                since_unix_ms=st.integers(0, 9),
            )
        ),
    )


@given(cursors())
def test_a_cursor_comes_back_as_it_was(cursor: Cursor) -> None:
    data = encode_cursor(cursor)
    assert data.startswith(b"ticket-agent-cursor/v1 sha256=")
    assert decode_cursor(data) == cursor


MARK = StreamMark(offset=0, length=507, sha256="a" * 64, sequence=5)
HELD = HeldGap(epoch=2, first=6, through=9, reason="evicted before it was read", since_unix_ms=7)
FULL = Cursor(
    epoch=2,
    epochs=(
        EpochMark(number=1, opened_unix_ms=1, evidence="first contact", completed_through=5),
        EpochMark(number=2, opened_unix_ms=2, evidence="sequence restarted"),
    ),
    consumed_sequence=5,
    mark=MARK,
    ends={"spec.snapshot": 507},
    held=HELD,
)


def test_every_single_flipped_bit_is_noticed() -> None:
    data = encode_cursor(FULL)
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(RecordError):
                decode_cursor(bytes(flipped))


BODY: dict[str, Any] = json.loads(encode_cursor(FULL).split(b"\n", 1)[1])

SHAPES: dict[str, dict[str, Any]] = {
    "epoch zero": {"epoch": 0},
    "epoch below its marks": {"epoch": 1},
    "unknown member": {"extra": 1},
    "epochs is an object": {"epochs": {}},
    "epochs out of order": {"epochs": BODY["epochs"][::-1]},
    "epochs repeated": {"epochs": BODY["epochs"][:1] * 2},
    "epoch mark with an extra member": {"epochs": [BODY["epochs"][0] | {"x": 1}]},
    "epoch mark is null": {"epochs": [None]},
    "too many epochs": {"epoch": 99, "epochs": [BODY["epochs"][0] | {"number": n} for n in range(1, 67)]},
    "fence negative": {"epochs": [BODY["epochs"][0] | {"completed_through": -1}]},
    "consumed as text": {"consumed_sequence": "5"},
    "consumed too large": {"consumed_sequence": 2**64},
    "mark without digest": {"mark": {"offset": 1}},
    "mark with a short digest": {"mark": BODY["mark"] | {"sha256": "ab"}},
    "mark with an uppercase digest": {"mark": BODY["mark"] | {"sha256": "A" * 64}},
    "mark is null": {"mark": None},
    "mark with a negative offset": {"mark": BODY["mark"] | {"offset": -1}},
    "mark with an offset as text": {"mark": BODY["mark"] | {"offset": "0"}},
    "ends is a list": {"ends": []},
    "ends has text": {"ends": {"a": "1"}},
    "ends has too many": {"ends": {f"log{n}": 1 for n in range(33)}},
    "held backwards": {"held": BODY["held"] | {"first": 10}},
    "held without reason": {"held": BODY["held"] | {"reason": ""}},
}


@pytest.mark.parametrize("case", SHAPES)
def test_a_right_digest_does_not_excuse_a_wrong_body(case: str) -> None:
    with pytest.raises(RecordError):
        decode_cursor(seal(Kind.CURSOR, BODY | SHAPES[case]))


@pytest.mark.parametrize("missing", ["epoch", "epochs", "consumed_sequence"])
def test_required_members(missing: str) -> None:
    assert decode_cursor(seal(Kind.CURSOR, BODY)) == FULL
    with pytest.raises(RecordError, match="members"):
        decode_cursor(seal(Kind.CURSOR, {name: value for name, value in BODY.items() if name != missing}))


def test_a_record_is_no_cursor() -> None:
    with pytest.raises(RecordError, match="cursor"):
        decode_cursor(seal(Kind.RECORD, BODY))


def test_the_largest_cursor_can_be_read_again() -> None:
    largest = replace(
        FULL,
        epoch=2**64 - 1,
        epochs=tuple(
            EpochMark(
                number=2**64 - 1 - MAX_EPOCHS + n,
                opened_unix_ms=2**63 - 1,
                evidence='"' * 300,
                completed_through=2**64 - 1,
            )
            for n in range(MAX_EPOCHS)
        ),
        ends={f"{n:>0190}": 2**64 - 1 for n in range(32)},
        held=replace(HELD, reason='"' * 192),
    )
    assert len(encode_cursor(largest)) <= MAX_CURSOR_BYTES


def test_the_fence_of_an_epoch_that_is_not_kept_is_zero() -> None:
    assert [FULL.completed_through(epoch) for epoch in (1, 2, 3)] == [5, 0, 0]
