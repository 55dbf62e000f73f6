from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.hive.reference.errors import RefusalError
from ticket_agent.hive.reference.rings import ByteRing, LineLog
from ticket_agent.protocol.chunks import frame_count

LINES = st.lists(st.text("aé", min_size=1, max_size=400), max_size=60)


@given(LINES, st.integers(0, 5))
def test_offsets_and_budgets_stay_consistent_under_any_appends(lines: list[str], slide_every: int) -> None:
    log = LineLog(max_bytes=2000, max_frames=12)
    accepted: list[str] = []
    dropped = 0
    for number, line in enumerate(lines):
        log.append([line])
        accepted.append(line)
        if slide_every and number % slide_every == 0:
            dropped += log.slide(1)
        sizes = [len(line.encode()) + 1 for line in accepted]
        retained = log.lines()
        assert retained == accepted[len(accepted) - len(retained) :]
        assert log.next == sum(sizes)
        assert log.base == log.dropped_bytes == sum(sizes[: len(accepted) - len(retained)])
        assert log.next - log.base == log.retained_bytes <= 2000
        assert log.retained_frames == sum(frame_count(line) for line in retained) <= 12
        assert log.dropped_lines == len(accepted) - len(retained)


@given(LINES)
def test_eviction_drops_no_more_than_it_must(lines: list[str]) -> None:
    log = LineLog(max_bytes=2000, max_frames=12)
    for line in lines:
        before = log.lines()
        log.append([line])
        evicted = len(before) + 1 - len(log.lines())
        if evicted:
            kept_one_more = [*before[evicted - 1 :], line]
            size = sum(len(text.encode()) + 1 for text in kept_one_more)
            assert size > 2000 or sum(map(frame_count, kept_one_more)) > 12


def test_seven_maximal_admissions_fit_the_ring() -> None:
    log = LineLog(max_bytes=16384, max_frames=64)
    for number in range(20):
        log.append([f"{number:02}" + "x" * 1535])
    assert [line[:2] for line in log.lines()] == ["13", "14", "15", "16", "17", "18", "19"]
    assert log.retained_frames == 63


def test_an_evicting_log_refuses_only_what_could_never_fit() -> None:
    log = LineLog(max_bytes=100, max_frames=4)
    log.append(["kept"])
    for payload in (["x" * 100], ["a", "b", "c", "d", "e"]):
        with pytest.raises(RefusalError, match="buffer-full"):
            log.append(payload)
    assert log.lines() == ["kept"]
    log.append(["x" * 99])
    assert log.lines() == ["x" * 99]


@pytest.mark.parametrize(
    ("max_bytes", "max_frames", "line", "fits"),
    [(16384, 64, "x" * 393, 21), (16384, 64, "x" * 99, 64), (1000, None, "x" * 99, 10)],
    ids=["frames-of-three", "frames-of-one", "bytes"],
)
def test_a_log_without_eviction_is_full_for_ever(
    max_bytes: int, max_frames: int | None, line: str, fits: int
) -> None:
    log = LineLog(max_bytes=max_bytes, max_frames=max_frames, evicting=False)
    for _ in range(fits):
        log.append([line])
    for _ in range(2):
        with pytest.raises(RefusalError, match="buffer-full"):
            log.append([line])
    assert log.lines() == [line] * fits
    assert (log.base, log.dropped_lines) == (0, 0)


def test_several_lines_go_in_together_or_not_at_all() -> None:
    log = LineLog(max_bytes=10, evicting=False)
    with pytest.raises(RefusalError):
        log.append(["1234", "12345"])
    assert log.lines() == []


@given(st.lists(st.binary(max_size=50)), st.integers(1, 64))
def test_a_byte_ring_is_the_tail_of_everything_written(writes: list[bytes], capacity: int) -> None:
    ring = ByteRing(capacity)
    for data in writes:
        ring.write(data)
    everything = b"".join(writes)[-capacity:] if writes else b""
    lines = everything.decode(errors="replace").replace("\ufffd", "?").split("\n")
    assert ring.lines() == (lines[:-1] if lines[-1] == "" else lines)


def test_a_byte_ring_wraps_inside_a_line() -> None:
    ring = ByteRing(10)
    ring.write(b"first\n")
    ring.write(b"second\n")
    assert ring.lines() == ["st", "second"]
    ring.write(b"open")
    assert ring.lines() == ["econd", "open"]
