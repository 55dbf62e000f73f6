from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ticket_lines import outcome

from ticket_agent.protocol import ChunkError, ProtocolError, decode_lines, encode_line, frame_count
from ticket_agent.protocol.chunks import MAX_FRAMES, MAX_RECORD_BYTES

text = st.text(st.characters(exclude_categories=["Cs"]))
long_text = st.builds(str.__mul__, st.text("a:é€🙂\n", min_size=1, max_size=40), st.integers(1, 60))


def frames_of(record: str, fill: int = 176) -> list[str]:
    """Frames of an ASCII record with a fill of one's own choice."""
    parts = [record[start : start + fill] for start in range(0, len(record), fill)]
    digest = hashlib.sha256(record.encode()).hexdigest()
    return [f"C1:{number:04x}:{len(parts):04x}:{digest}:{part}" for number, part in enumerate(parts)]


@given(st.lists(text | long_text, max_size=4))
def test_lines_survive_framing(lines: list[str]) -> None:
    wire = [frame for line in lines for frame in encode_line(line)]
    assert decode_lines(wire, max_record_bytes=16384) == lines
    assert all(len(frame.encode()) <= 256 for frame in wire)
    assert len(wire) == sum(frame_count(line) for line in lines)


@given(st.text("aé€🙂", min_size=257, max_size=800))
def test_every_frame_is_filled_up_to_a_character_boundary(line: str) -> None:
    payloads = [frame.split(":", 4)[4].encode() for frame in encode_line(line)]
    assert all(173 <= len(payload) <= 176 for payload in payloads[:-1])
    assert b"".join(payloads).decode() == line


@given(st.integers(1, 178), st.integers(1, 60))
def test_any_fill_is_accepted(fill: int, size: int) -> None:
    record = "abcdefghij" * size
    frames = frames_of(record, fill)
    if len(frames) <= MAX_FRAMES:
        assert decode_lines(["before", *frames, "after"]) == ["before", record, "after"]


@given(st.data())
def test_any_change_of_a_byte_is_refused(data: st.DataObject) -> None:
    frames = encode_line("0123456789" * 40)
    index = data.draw(st.integers(0, len(frames) - 1))
    place = data.draw(st.integers(0, len(frames[index]) - 1))
    char = data.draw(st.characters(min_codepoint=0x20, max_codepoint=0x7E))
    changed = frames[index][:place] + char + frames[index][place + 1 :]
    if changed == frames[index]:
        return
    frames[index] = changed
    if index == 0 and not changed.startswith("C1:"):
        # The group has lost its head, so the second frame cannot start one.
        assert place < 3
    with pytest.raises(ChunkError):
        decode_lines(frames)


@given(st.lists(st.text(max_size=300) | st.builds("C1:{}".format, st.text(max_size=200)), max_size=5))
def test_arbitrary_lines_are_decoded_or_refused(lines: list[str]) -> None:
    decoded = outcome(lambda: decode_lines(lines))
    if isinstance(decoded, ProtocolError):
        assert isinstance(decoded, ChunkError)
        assert str(decoded).isprintable()
    else:
        assert decoded == lines
        assert not any(line.startswith("C1:") for line in lines)


def test_short_lines_are_not_framed() -> None:
    for line in ("", "x", "é" * 128, "x" * 256):
        assert encode_line(line) == [line]
        assert frame_count(line) == 1
    assert len(encode_line("x" * 257)) == frame_count("x" * 257) == 2


@pytest.mark.parametrize(
    ("size", "wire"),
    [(394, [254, 254, 120]), (506, [254, 254, 232]), (1422, 9), (1467, 9), (1537, 9), (2048, 12)],
)
def test_frames_of_known_sizes(size: int, wire: Any) -> None:
    lengths = [len(frame) for frame in encode_line("x" * size)]
    assert lengths == wire if isinstance(wire, list) else len(lengths) == wire
    assert frame_count("x" * size) == len(lengths)


def test_a_short_line_that_looks_like_a_frame_is_framed() -> None:
    assert decode_lines(encode_line("C1:")) == ["C1:"]
    assert encode_line("C1:") != ["C1:"]


def test_more_than_64_frames_are_refused() -> None:
    assert len(encode_line("x" * 176 * 64)) == 64
    with pytest.raises(ChunkError) as refusal:
        encode_line("x" * (176 * 64 + 1))
    assert refusal.value.code == "chunk-too-many"
    assert frame_count("x" * (176 * 64 + 1)) == 65


def test_both_record_bounds() -> None:
    for bound in (2048, MAX_RECORD_BYTES):
        assert decode_lines(encode_line("x" * bound), max_record_bytes=bound) == ["x" * bound]
        with pytest.raises(ChunkError) as refusal:
            decode_lines(encode_line("x" * (bound + 1)), max_record_bytes=bound)
        assert refusal.value.code == "chunk-too-long"


def test_a_group_of_one_frame_is_bounded_too() -> None:
    with pytest.raises(ChunkError) as refusal:
        decode_lines(frames_of("x" * 100), max_record_bytes=99)
    assert refusal.value.code == "chunk-too-long"


def test_the_payload_may_hold_colons() -> None:
    record = "C1:0000:" * 40
    assert decode_lines(frames_of(record)) == [record]


GROUP = frames_of("x" * 500)
HEAD = "C1:0000:0003:"
DIGEST = GROUP[0][13:77]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        pytest.param([GROUP[1], *GROUP], "chunk-order", id="first seq not 0"),
        pytest.param(GROUP[:-1], "chunk-short", id="last frame missing"),
        pytest.param(GROUP[:1], "chunk-short", id="first frame alone"),
        pytest.param([GROUP[0], GROUP[2]], "chunk-order", id="gap"),
        pytest.param([GROUP[0], GROUP[2], GROUP[1]], "chunk-order", id="reordered"),
        pytest.param([GROUP[0], GROUP[0], GROUP[1], GROUP[2]], "chunk-order", id="first frame replayed"),
        pytest.param([GROUP[0], GROUP[1], GROUP[1], GROUP[2]], "chunk-order", id="frame replayed"),
        pytest.param([*GROUP, GROUP[2]], "chunk-order", id="frame after the end"),
        pytest.param([GROUP[0], "plain", *GROUP[1:]], "chunk-header", id="plain line inside"),
        pytest.param([GROUP[0], "", *GROUP[1:]], "chunk-header", id="empty line inside"),
        pytest.param(
            [GROUP[0], GROUP[1].replace(":0003:", ":0004:"), GROUP[2]], "chunk-count", id="mixed count"
        ),
        pytest.param(
            [GROUP[0], GROUP[1].replace(DIGEST, "0" * 64), GROUP[2]], "chunk-digest", id="mixed digest"
        ),
        pytest.param([f.replace(DIGEST, "0" * 64) for f in GROUP], "chunk-digest", id="wrong digest"),
        pytest.param([*GROUP[:2], GROUP[2][:-1]], "chunk-digest", id="payload cut"),
        pytest.param([*GROUP[:2], GROUP[2][:-1] + "y"], "chunk-digest", id="payload altered"),
        pytest.param([GROUP[0].replace("C1:0000", "C1:000A")], "chunk-header", id="upper case seq"),
        pytest.param([GROUP[0].replace(":0003:", ":000A:")], "chunk-header", id="upper case count"),
        pytest.param([GROUP[0].replace(DIGEST, DIGEST.upper())], "chunk-header", id="upper case digest"),
        pytest.param([GROUP[0].replace("C1:0000", "C1:000")], "chunk-header", id="three digits"),
        pytest.param([GROUP[0].replace("C1:0000", "C1:00000")], "chunk-header", id="five digits"),
        pytest.param([GROUP[0].replace("C1:0000", "C1:+000")], "chunk-header", id="signed seq"),
        pytest.param([f"C1:000\u0660:0001:{DIGEST}:x"], "chunk-header", id="digit outside ASCII"),
        pytest.param([GROUP[0].replace(DIGEST, DIGEST[:-1])], "chunk-header", id="short digest"),
        pytest.param([GROUP[0].replace(DIGEST, DIGEST + "0")], "chunk-header", id="long digest"),
        pytest.param(["C1:"], "chunk-header", id="prefix alone"),
        pytest.param(["C1:0000:0001"], "chunk-header", id="too few fields"),
        pytest.param([f"C1:0000:0001:{DIGEST}:"], "chunk-header", id="empty payload"),
        pytest.param([f"C1:0000:0001:{DIGEST}"], "chunk-header", id="no payload"),
        pytest.param([f"C1:0000:0000:{DIGEST}:x"], "chunk-count", id="count 0"),
        pytest.param([f"C1:0000:0041:{DIGEST}:x"], "chunk-count", id="count 65"),
        pytest.param([f"C1:0000:ffff:{DIGEST}:x"], "chunk-count", id="count 65535"),
        pytest.param([f"C1:0003:0003:{DIGEST}:x"], "chunk-count", id="seq equals count"),
        pytest.param([f"{HEAD}{DIGEST}:{'x' * 179}"], "chunk-wire", id="wire of 257 bytes"),
        pytest.param([f"{HEAD}{DIGEST}:{'é' * 90}"], "chunk-wire", id="wire counted in bytes"),
        pytest.param([f"{HEAD}{DIGEST}:\ud800"], "chunk-utf8", id="lone surrogate"),
    ],
)
def test_broken_groups_are_refused(lines: list[str], code: str) -> None:
    with pytest.raises(ChunkError) as refusal:
        decode_lines(lines)
    assert refusal.value.code == code


def test_lone_surrogates_cannot_be_sent() -> None:
    for function in (encode_line, frame_count):
        with pytest.raises(ChunkError):
            function("\ud800")
