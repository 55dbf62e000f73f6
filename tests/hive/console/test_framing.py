from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.hive.console.framing import (
    MAX_FRAME_LEN,
    FrameDecoder,
    FrameError,
    OverlongFrame,
    encode_frame,
)

BOUND = 40


def test_a_frame_counts_its_own_header() -> None:
    assert encode_frame("PING") == bytes.fromhex("0800000050494e47")


def test_an_empty_line_is_a_bare_header() -> None:
    assert encode_frame("") == b"\x04\0\0\0"
    assert FrameDecoder().feed(b"\x04\0\0\0") == [b""]


def test_the_longest_frame_is_8192_bytes() -> None:
    longest = encode_frame("x" * (MAX_FRAME_LEN - 4))
    assert FrameDecoder().feed(longest) == [b"x" * 8188]
    with pytest.raises(FrameError, match="8193"):
        encode_frame("x" * (MAX_FRAME_LEN - 3))


def test_a_lone_surrogate_is_refused_without_a_unicode_error() -> None:
    with pytest.raises(FrameError, match="surrogate"):
        encode_frame("\ud800")


@pytest.mark.parametrize("total", [0, 1, 3])
def test_a_total_below_the_header_is_an_error_for_good(total: int) -> None:
    decoder = FrameDecoder(drain_overlong=True)
    decoder.receive(encode_frame("LS /") + total.to_bytes(4, "little") + encode_frame("PING"))
    assert decoder.next_frame() == b"LS /"
    for _ in range(2):
        with pytest.raises(FrameError, match=f"declares {total} bytes"):
            decoder.next_frame()


def test_an_over_long_frame_is_an_error_for_a_client() -> None:
    with pytest.raises(FrameError, match="8193"):
        FrameDecoder().feed((MAX_FRAME_LEN + 1).to_bytes(4, "little"))
    assert FrameDecoder().feed(MAX_FRAME_LEN.to_bytes(4, "little")) == []


def test_feed_has_no_use_for_a_drained_frame() -> None:
    with pytest.raises(FrameError, match="44 bytes"):
        FrameDecoder(BOUND, drain_overlong=True).feed((44).to_bytes(4, "little"))


def test_a_server_reports_an_over_long_frame_at_once_and_drains_exactly_it() -> None:
    decoder = FrameDecoder(BOUND, drain_overlong=True)
    decoder.receive((100).to_bytes(4, "little"))
    assert decoder.next_frame() == OverlongFrame(100)
    assert decoder.mid_frame
    decoder.receive(b"y" * 95)
    assert decoder.next_frame() is None
    assert decoder.mid_frame
    decoder.receive(b"y" + encode_frame("PING"))
    assert decoder.next_frame() == b"PING"
    assert not decoder.mid_frame


def test_mid_frame_tells_whether_bytes_are_missing() -> None:
    decoder = FrameDecoder()
    seen = []
    for piece in (b"", b"\x05", b"\0\0\0", b"x"):
        decoder.feed(piece)
        seen.append(decoder.mid_frame)
    assert seen == [False, True, True, False]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes | OverlongFrame], list[bytes]]:
    """Frames legal and over-long, and their bytes cut anywhere."""
    frames: list[bytes | OverlongFrame] = []
    wire = b""
    for size in draw(st.lists(st.integers(0, 2 * BOUND), max_size=8)):
        payload = draw(st.binary(min_size=size, max_size=size))
        total = size + 4
        wire += total.to_bytes(4, "little") + payload
        frames.append(payload if total <= BOUND else OverlongFrame(total))
    cuts = sorted(draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    pieces = [wire[start:end] for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    return frames, pieces


@given(streams())
def test_frames_do_not_depend_on_how_the_bytes_were_cut(
    stream: tuple[list[bytes | OverlongFrame], list[bytes]],
) -> None:
    frames, pieces = stream
    decoder = FrameDecoder(BOUND, drain_overlong=True)
    got: list[bytes | OverlongFrame] = []
    for piece in pieces:
        decoder.receive(piece)
        while (frame := decoder.next_frame()) is not None:
            got.append(frame)
    assert got == frames
    assert not decoder.mid_frame


@given(st.lists(st.text(max_size=50), max_size=10), st.integers(1, 7))
def test_what_is_encoded_is_decoded(lines: list[str], step: int) -> None:
    lines = [line.encode(errors="ignore").decode() for line in lines]
    wire = b"".join(encode_frame(line) for line in lines)
    decoder = FrameDecoder()
    got = [payload for at in range(0, len(wire), step) for payload in decoder.feed(wire[at : at + step])]
    assert got == [line.encode() for line in lines]
