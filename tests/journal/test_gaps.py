from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import Clock, FailingFs, RecordingFs, open_store

from ticket_agent.journal.atomic import ReplaceError
from ticket_agent.journal.envelope import Kind, seal
from ticket_agent.journal.errors import GapError, RecordError
from ticket_agent.journal.gaps import (
    Acknowledgement,
    acknowledge_gap,
    covers,
    decode_acknowledgement,
    read_acknowledgements,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.fs import RealFs


def acknowledge(
    path: Path, first: int, through: int, *, epoch: int = 1, fs: RealFs | None = None
) -> Acknowledgement:
    return acknowledge_gap(
        path, epoch=epoch, first=first, through=through, reason="given up", by="ops", clock=Clock(9), fs=fs
    )


def test_it_is_written_beside_a_running_owner_with_two_fsyncs(tmp_path: Path) -> None:
    fs = RecordingFs()
    with open_store(tmp_path):
        written = acknowledge(tmp_path, 3, 7, fs=fs)
        assert read_acknowledgements(tmp_path) == (written,)
    assert written == Acknowledgement(epoch=1, first=3, through=7, reason="given up", by="ops", unix_ms=9)
    file = tmp_path / "gaps" / "1-3-7.ack"
    assert file.stat().st_mode & 0o777 == 0o600
    assert decode_acknowledgement(file.read_bytes(), name=file.name) == written
    assert [op.name for op in fs.log if op.folder == "gaps"] == [
        "create",
        "write",
        "fsync",
        "link",
        "unlink",
        "fsync_dir",
    ]


def test_it_is_never_overwritten(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    acknowledge(tmp_path, 3, 7)
    before = (tmp_path / "gaps" / "1-3-7.ack").read_bytes()
    with pytest.raises(GapError, match=r"1-3-7\.ack exists already"):
        acknowledge_gap(tmp_path, epoch=1, first=3, through=7, reason="again", by="me", clock=Clock())
    assert [path.name for path in (tmp_path / "gaps").iterdir()] == ["1-3-7.ack"]
    assert (tmp_path / "gaps" / "1-3-7.ack").read_bytes() == before


@pytest.mark.parametrize("target", ["victim", "nowhere"])
def test_a_symlink_in_its_place_is_not_followed(tmp_path: Path, target: str) -> None:
    state = tmp_path / "s"
    open_store(state).close()
    (tmp_path / "victim").write_bytes(b"precious")
    (state / "gaps" / "1-3-7.ack").symlink_to(tmp_path / target)
    with pytest.raises(GapError):
        acknowledge(state, 3, 7)
    assert read_acknowledgements(state) == ()
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert not (tmp_path / "nowhere").exists()


def test_a_failing_write_leaves_nothing(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    with pytest.raises(ReplaceError, match="fsync"):
        acknowledge(tmp_path, 3, 7, fs=FailingFs(at=0, names=["fsync"]))
    assert list((tmp_path / "gaps").iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": 0},
        {"first": 0},
        {"first": 8},
        {"through": 2**64},
        {"reason": ""},
        {"reason": "a\nb"},
        {"by": "x" * 193},
    ],
    ids=lambda wrong: str(wrong)[:30],
)
def test_values_are_bounded(tmp_path: Path, wrong: dict[str, Any]) -> None:
    open_store(tmp_path).close()
    good: dict[str, Any] = {"epoch": 1, "first": 3, "through": 7, "reason": "x", "by": "y"}
    with pytest.raises(RecordError):
        acknowledge_gap(tmp_path, clock=Clock(), **(good | wrong))
    assert list((tmp_path / "gaps").iterdir()) == []


def test_what_cannot_be_read_counts_for_nothing(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    good = acknowledge(tmp_path, 1, 2)
    gaps = tmp_path / "gaps"
    body = json.loads((gaps / good.name).read_bytes().split(b"\n", 1)[1])
    (gaps / "1-5-6.ack").write_bytes(b"")
    (gaps / "1-7-8.ack").write_bytes(seal(Kind.GAP, body))
    (gaps / "1-9-9.ack").write_bytes(seal(Kind.GAP, body | {"first": 9, "through": 9, "extra": 1}))
    (gaps / "notes").write_bytes(b"hello")
    assert read_acknowledgements(tmp_path) == (good,)
    assert read_acknowledgements(tmp_path / "nowhere") == ()


ranges = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(sorted)


@given(st.lists(st.tuples(st.integers(1, 2), ranges), max_size=6), ranges)
def test_a_range_is_covered_if_every_sequence_in_it_is(
    given_up: list[tuple[int, list[int]]], wanted: list[int]
) -> None:
    acks = [
        Acknowledgement(epoch=epoch, first=first, through=through, reason="x", by="y", unix_ms=0)
        for epoch, (first, through) in given_up
    ]
    numbers = {number for ack in acks if ack.epoch == 1 for number in range(ack.first, ack.through + 1)}
    expected = all(number in numbers for number in range(wanted[0], wanted[1] + 1))
    assert covers(acks, 1, *wanted) is expected
