"""Who owned a state directory: every start, and which of them ended in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import BOOT_ID, VERSION, Clock, open_store

from ticket_agent.cli.assembly import start_name
from ticket_agent.journal.fence import read_starts
from ticket_agent.journal.starts import MAX_CONTENT, Start, encode_starts, has_start_id, parse_starts

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
KILLED = """
import os, signal, sys
from pathlib import Path
from ticket_agent.journal.store import JournalStore
JournalStore.open(Path(sys.argv[1]), clock=lambda: 42, boot_id="b", agent_version="1")
os.kill(os.getpid(), signal.SIGKILL)
"""

STARTS = st.builds(
    Start,
    pid=st.integers(0, 9_999_999_999),
    boot_id=st.text("abc-0", min_size=1, max_size=64),
    started_unix_ms=st.integers(0, 2**63 - 1),
    agent=st.none() | st.text("0.+ ab", min_size=1, max_size=64),
    stopped_unix_ms=st.none() | st.integers(0, 2**63 - 1),
)


def starts_of(path: Path) -> tuple[Start, ...]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return read_starts(fd)
    finally:
        os.close(fd)


@given(st.lists(STARTS, min_size=1, max_size=40))
def test_the_newest_starts_come_back(starts: list[Start]) -> None:
    content = encode_starts(tuple(starts))
    found = parse_starts(content)
    assert found == tuple(starts[-len(found) :])
    assert len(content) <= MAX_CONTENT
    assert len(encode_starts(tuple(starts[-len(found) - 1 :]))) == len(content)


@given(st.binary(max_size=300))
def test_whatever_the_file_holds_is_passed_over(noise: bytes) -> None:
    good = Start(pid=1, boot_id="b", started_unix_ms=2, agent="0.1.0+00000000")
    assert parse_starts(noise + b"\n" + encode_starts((good,)))[-1] == good


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_line_that_is_cut_short_is_no_line(cut: int) -> None:
    one = encode_starts((Start(pid=12, boot_id="b", started_unix_ms=1_700_000_000_000),))
    assert parse_starts(one + one[: min(cut, len(one) - 1)]) == parse_starts(one)


def test_an_orderly_end_is_told_from_a_kill(tmp_path: Path) -> None:
    clock = Clock(1_000)
    store = open_store(tmp_path, clock=clock)
    clock.now = 1_500
    store.close()
    # A process that is killed writes nothing more.
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=ENVIRONMENT, check=False)
    clock.now = 3_000
    with open_store(tmp_path, clock=clock):
        first, killed, present = starts_of(tmp_path)
    assert (first.started_unix_ms, first.stopped_unix_ms, first.agent) == (1_000, 1_500, VERSION)
    assert (killed.started_unix_ms, killed.stopped_unix_ms) == (42, None)
    assert (present.pid, present.boot_id, present.stopped_unix_ms) == (os.getpid(), BOOT_ID, None)
    assert starts_of(tmp_path)[-1].stopped_unix_ms == 3_000


def test_a_file_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    (tmp_path / "agent.lock").write_text("pid=7 boot_id=b started_unix_ms=9\n")
    open_store(tmp_path).close()
    assert starts_of(tmp_path)[0] == Start(pid=7, boot_id="b", started_unix_ms=9)
    assert len(starts_of(tmp_path)) == 2


def test_nothing_of_a_longer_content_stays_behind(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    (tmp_path / "agent.lock").write_bytes(b"noise\n" * 300)
    open_store(tmp_path).close()
    assert len(starts_of(tmp_path)) == 1
    assert (tmp_path / "agent.lock").read_bytes() == encode_starts(starts_of(tmp_path))


def test_the_file_stays_within_one_block(tmp_path: Path) -> None:
    for _ in range(60):
        open_store(tmp_path).close()
    assert (tmp_path / "agent.lock").stat().st_size <= MAX_CONTENT
    assert 20 < len(starts_of(tmp_path)) < 60


def test_each_process_draws_its_own_start_id() -> None:
    assert start_name(lambda count: b"\x0a\x0b\x0c\x0d"[:count]).endswith("+0a0b0c0d")
    names = {start_name() for _ in range(10)}
    assert len(names) == 10
    assert all(has_start_id(name) and len(name) <= 64 for name in names)


@pytest.mark.parametrize("agent", ["0.1.0", "test", "+00000000", "1+0000000", "1+0000000g", "1+000000000"])
def test_a_version_alone_is_no_start_id(agent: str) -> None:
    assert not has_start_id(agent)
