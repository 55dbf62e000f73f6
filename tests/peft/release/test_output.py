"""Kept output: the beginning and the end, bounded, whatever is written and whatever the disk says."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft_support import no_file_larger_than

from ticket_agent.peft.release.output_ring import OutputBounds, OutputRing, output_name
from ticket_agent.peft.release.phase_log import PhaseLog, Piece, read_log

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = OutputBounds(head_bytes=5, piece_bytes=7)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(1, 20), st.integers(1, 20))
def test_beginning_and_end_are_kept(chunks: list[bytes], head: int, piece: int) -> None:
    bounds = OutputBounds(head_bytes=head, piece_bytes=piece)
    with tempfile.TemporaryDirectory() as name, opened(Path(name)) as fd:
        ring = OutputRing(fd, bounds)
        for chunk in chunks:
            ring.write(chunk)
            assert sum(path.stat().st_size for path in Path(name).iterdir()) <= bounds.total_bytes
        ring.close()
        log = read_log(fd)
    whole = b"".join(chunks)
    assert (ring.total, ring.lost) == (len(whole), 0)
    kept = b"".join(found.data for found in log.pieces)
    assert all(whole[found.offset : found.end] == found.data for found in log.pieces)
    assert log.left_out == len(whole) - len(kept)
    assert kept.startswith(whole[:head])
    assert kept.endswith(whole[-piece:] if len(whole) > head else whole)


def test_a_failing_disk_costs_bytes_and_is_tried_again_later(tmp_path: Path) -> None:
    now = 0.0
    with opened(tmp_path) as fd:
        ring = OutputRing(fd, OutputBounds(head_bytes=100, piece_bytes=100), clock=lambda: now)
        with no_file_larger_than(4):
            ring.write(b"0123456789")
        assert (ring.total, ring.lost) == (10, 6)
        ring.write(b"lost")  # within the second
        assert (ring.total, ring.lost) == (14, 10)
        now = 1.0
        ring.write(b"there")
        ring.close()
        assert read_log(fd).pieces == (Piece(offset=0, data=b"0123"), Piece(offset=14, data=b"there"))
        assert read_log(fd).lines() == ["0123", "... 10 bytes left out ...", "there"]


def test_a_directory_that_is_gone_is_no_reason_to_stop(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with opened(folder) as fd:
        folder.rmdir()
        ring = OutputRing(fd, SMALL)
        ring.write(b"x" * 100)
        ring.close()
    assert (ring.total, ring.lost) == (100, 100)


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / output_name(0)).symlink_to(tmp_path / "victim")
    with opened(tmp_path) as fd:
        ring = OutputRing(fd, SMALL)
        ring.write(b"x" * 3)
        ring.close()
    assert ring.lost == 3
    assert (tmp_path / "victim").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([], []),
        ([(0, b"one\ntwo\n")], ["one", "two"]),
        ([(0, b"one\n\ntwo")], ["one", "", "two"]),
        ([(0, b"10%\r20%\r\nend")], ["10%", "20%", "end"]),
        ([(0, b"\x1b[31mred\x07")], ["\\x1b[31mred\\x07"]),
        ([(0, b"a\0b\xff\xc3")], ["a\\x00b\\xff\\xc3"]),
        ([(0, "\u202e\u200bé".encode())], ["\\u202e\\u200bé"]),
        ([(0, "\x85\u2028".encode())], ["\\x85\\u2028"]),
        ([(0, b"a\tb")], ["a       b"]),
        ([(3, b"x")], ["... 3 bytes left out ...", "x"]),
        ([(0, b"ab\n"), (9, b"c\n")], ["ab", "... 6 bytes left out ...", "c"]),
    ],
)
def test_how_output_is_shown(pieces: list[tuple[int, bytes]], lines: list[str]) -> None:
    log = PhaseLog(pieces=tuple(Piece(offset=offset, data=data) for offset, data in pieces))
    assert log.lines() == lines


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=5))
def test_shown_output_only_shows(datas: list[bytes]) -> None:
    log = PhaseLog(pieces=tuple(Piece(offset=100 * n, data=data) for n, data in enumerate(datas)))
    assert all(line.isprintable() for line in log.lines())


def test_a_character_across_two_files_stays_one(tmp_path: Path) -> None:
    with opened(tmp_path) as fd:
        ring = OutputRing(fd, SMALL)
        ring.write("abcdé".encode())
        ring.close()
        assert read_log(fd).lines() == ["abcdé"]


def test_other_files_are_no_output(tmp_path: Path) -> None:
    (tmp_path / "output-1").write_bytes(b"no")
    (tmp_path / "exit.json").write_bytes(b"no")
    with opened(tmp_path) as fd:
        assert read_log(fd).pieces == ()


@pytest.mark.parametrize("bounds", [{"head_bytes": 0}, {"piece_bytes": 0}])
def test_bounds_are_positive(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        OutputBounds(**bounds)
