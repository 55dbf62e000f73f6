"""The publisher's state directory: what is accepted, what is durable when, and that no number comes twice."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_support import FailingFs, RecordingFs
from vector_files import VECTORS

from ticket_agent.journal.fs import RealFs
from ticket_agent.protocol.tokens import U64_MAX
from ticket_agent.snapshots.cursor_text import Cursor, decode_cursor, encode_cursor
from ticket_agent.snapshots.publish_errors import (
    CursorError,
    CursorFullError,
    CursorPoisonedError,
    DamagedCursorError,
    SourceHeldError,
)
from ticket_agent.snapshots.source_place import open_state_root
from ticket_agent.snapshots.source_state import SourceState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.journal.fs import Fs

SOURCE, EPOCH = "linux-reference", 7
NAME = f"{SOURCE}-epoch-{EPOCH}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


def opened(root: Path, fs: Fs | None = None, **options: Any) -> SourceState:
    fd = open_state_root(root)
    try:
        return SourceState.open(fs or RealFs(), fd, source_id=SOURCE, epoch=EPOCH, **options)
    finally:
        os.close(fd)


def used(root: Path) -> Path:
    """A part with two reserved numbers, closed."""
    with opened(root) as state:
        state.reserve(1000)
        state.reserve(2000)
    return root / NAME


def test_numbers_go_on_where_they_were(root: Path) -> None:
    with opened(root) as state:
        assert [state.reserve(1000), state.reserve(1000), state.reserve(3000)] == [1, 2, 3]
    with opened(root) as state:
        assert state.cursor == Cursor(source_id=SOURCE, epoch=EPOCH, sequence=3, observed_unix_ms=3000)
        assert state.reserve(2000) == 4
        assert state.cursor.observed_unix_ms == 3000
    assert (root / NAME / "cursor.json").read_bytes() == (
        b'{"schema":"cohesix-snapshot-cursor/v1","source_id":"linux-reference","epoch":7,'
        b'"sequence":4,"observed_unix_ms":3000}'
    )


def test_what_is_made_is_private(root: Path) -> None:
    part = used(root)
    assert part.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in part.iterdir()} == {
        "owner.lock": 0o600,
        "cursor.json": 0o600,
    }


def test_a_number_is_durable_before_it_is_given_out(root: Path) -> None:
    fs = RecordingFs()
    with opened(root, fs) as state:
        fs.log.clear()
        state.reserve(1000)
        assert [op.name for op in fs.log] == ["create", "write", "fsync", "rename", "fsync_dir"]
        assert b'"sequence":1,' in fs.log[1].data


def test_a_new_part_is_whole_before_it_has_its_name(root: Path) -> None:
    fs = RecordingFs()
    with opened(root, fs):
        steps = [(op.name, op.folder == NAME) for op in fs.log]
    assert steps == [
        ("create", False),
        ("write", False),
        ("fsync", False),
        ("rename", False),
        ("fsync_dir", False),
        ("fsync_dir", False),
    ]
    assert fs.log[-1].folder == root.name


# -- one publisher -----------------------------------------------------------------------------------------


def test_a_source_has_one_publisher(root: Path) -> None:
    with opened(root):
        for _ in range(2):
            with pytest.raises(SourceHeldError, match="one publisher"):
                opened(root)
    opened(root).close()


def test_the_lock_is_the_kernels_and_other_tools_see_it(root: Path) -> None:
    part = used(root)
    with (part / "owner.lock").open("r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(SourceHeldError):
            opened(root)


def test_two_at_once_make_one_part(root: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from ticket_agent.journal.fs import RealFs\n"
        "from ticket_agent.snapshots.publish_errors import SourceHeldError\n"
        "from ticket_agent.snapshots.source_place import open_state_root\n"
        "from ticket_agent.snapshots.source_state import SourceState\n"
        "fd = open_state_root(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        f"try: state = SourceState.open(RealFs(), fd, source_id={SOURCE!r}, epoch={EPOCH})\n"
        "except SourceHeldError: print('held', flush=True)\n"
        "else: print('mine', state.reserve(1), flush=True)\n"
        "sys.stdin.readline()\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, os.fspath(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    told = []
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        assert child.stdout is not None
        told.append(child.stdout.readline().strip())
    for child in children:
        child.communicate("end\n")
    assert sorted(told) == ["held", "held", "mine 1"]
    assert [path.name for path in root.iterdir()] == [NAME]


# -- what is refused ---------------------------------------------------------------------------------------


def test_a_state_directory_must_be_named_absolutely(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    with pytest.raises(CursorError, match="absolute"):
        open_state_root(root.relative_to(root.parent))


def test_a_symlink_to_it_is_followed_once(root: Path) -> None:
    link = root.with_name("link")
    link.symlink_to(root)
    opened(link).close()
    assert (root / NAME).is_dir()


def _missing(root: Path) -> None:
    root.rmdir()


def _file(root: Path) -> None:
    root.rmdir()
    root.touch(mode=0o600)


def _open_to(mode: int) -> Callable[[Path], None]:
    return lambda root: root.chmod(mode)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_missing, "install -d -m 0700"),
        (_file, "cannot be opened"),
        (_open_to(0o750), "chmod go="),
        (_open_to(0o701), "chmod go="),
        (_open_to(0o720), "chmod go="),
    ],
)
def test_a_state_directory_that_is_not_private(spoil: Callable[[Path], None], words: str, root: Path) -> None:
    spoil(root)
    with pytest.raises(CursorError, match=words):
        open_state_root(root)


def _part_is_link(part: Path) -> None:
    moved = part.with_name("elsewhere")
    part.rename(moved)
    part.symlink_to(moved)


def _part_is_file(part: Path) -> None:
    part.rename(part.with_name("elsewhere"))
    part.touch(mode=0o600)


def _lock_linked(part: Path) -> None:
    os.link(part / "owner.lock", part.parent / "second-name")


def _cursor_linked(part: Path) -> None:
    os.link(part / "cursor.json", part.parent / "second-name")


def _cursor_is_link(part: Path) -> None:
    (part / "cursor.json").rename(part.parent / "cursor.json")
    (part / "cursor.json").symlink_to("../cursor.json")


def _cursor_is_fifo(part: Path) -> None:
    (part / "cursor.json").unlink()
    os.mkfifo(part / "cursor.json", 0o600)


def _without(name: str) -> Callable[[Path], None]:
    return lambda part: (part / name).unlink()


def _mode(name: str, mode: int) -> Callable[[Path], None]:
    return lambda part: (part / name).chmod(mode)


def _holds(text: bytes) -> Callable[[Path], None]:
    def write(part: Path) -> None:
        (part / "cursor.json").write_bytes(text)

    return write


GOOD = encode_cursor(Cursor(source_id=SOURCE, epoch=EPOCH, sequence=2, observed_unix_ms=5))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_part_is_link, "cannot be used"),
        (_part_is_file, "cannot be used"),
        (_mode(".", 0o755), "open to group or others"),
        (_without("owner.lock"), r"no owner\.lock.*--continue-after"),
        (_without("cursor.json"), r"no cursor\.json.*--continue-after"),
        (_mode("owner.lock", 0o640), "open to group or others"),
        (_mode("cursor.json", 0o604), "open to group or others"),
        (_lock_linked, "2 names"),
        (_cursor_linked, "2 names"),
        (_cursor_is_link, "cannot be used"),
        (_cursor_is_fifo, "not the kind of file"),
        (_holds(b""), "cursor.json"),
        (_holds(GOOD[:-1]), "cursor.json"),
        (_holds(GOOD + b"x"), "cursor.json"),
        (_holds(b"\xef\xbb\xbf" + GOOD), "byte order mark"),
        (_holds(GOOD + b" " * 1024), "cursor.json|cannot be used"),
        (_holds(GOOD.replace(b'"epoch":7', b'"epoch":8')), "its epoch is 8"),
        (_holds(GOOD.replace(b'"epoch":7', b'"epoch":true')), "its epoch is True"),
        (_holds(GOOD.replace(b"linux-reference", b"other")), "its source_id is 'other'"),
        (_holds(GOOD.replace(b"cursor/v1", b"cursor/v2")), "its schema"),
        (_holds(GOOD.replace(b'"sequence":2,', b"")), "its members"),
        (_holds(GOOD.replace(b'"sequence":2,', b'"sequence":2,"sequence":2,')), "more than once"),
        (_holds(GOOD.replace(b'"sequence":2,', b'"sequence":2,"more":1,')), "its members"),
        (_holds(GOOD.replace(b'"sequence":2', b'"sequence":-1')), "its sequence"),
        (_holds(GOOD.replace(b'"sequence":2', b'"sequence":2.0')), "its sequence"),
        (_holds(GOOD.replace(b'"sequence":2', b'"sequence":true')), "its sequence"),
        (_holds(GOOD.replace(b'"sequence":2', b'"sequence":18446744073709551616')), "integer"),
        (_holds(GOOD.replace(b'ms":5', b'ms":"5"')), "its observed_unix_ms"),
    ],
)
def test_a_part_that_cannot_be_trusted_is_refused_and_left_as_it_is(
    spoil: Callable[[Path], None], words: str, root: Path
) -> None:
    part = used(root)
    spoil(part)
    before = sorted(os.walk(root))
    with pytest.raises(CursorError, match=words):
        opened(root)
    assert sorted(os.walk(root)) == before


def test_blanks_around_a_cursor_are_read(root: Path) -> None:
    _holds(b" \n" + GOOD.replace(b",", b", ") + b"\n")(used(root))
    with opened(root) as state:
        assert state.reserve(9) == 3


def test_another_epoch_has_numbers_of_its_own(root: Path) -> None:
    used(root)
    fd = open_state_root(root)
    try:
        with SourceState.open(RealFs(), fd, source_id=SOURCE, epoch=8) as state:
            assert state.reserve(1) == 1
    finally:
        os.close(fd)


# -- an operator's word ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["cursor", "part", "nothing"])
def test_an_operator_can_say_which_numbers_are_used(lost: str, root: Path) -> None:
    part = used(root)
    if lost == "cursor":
        (part / "cursor.json").unlink()
    elif lost == "part":
        part.rename(root / "lost")
    with opened(root, continue_after=41) as state:
        assert state.cursor.sequence == 41
    with opened(root) as state:
        assert state.reserve(5000) == 42


@pytest.mark.parametrize("text", [b"", b"\0" * 113, b'{"schema":"cohesix-snapshot-cursor/v1"'])
def test_a_damaged_cursor_is_kept_aside_on_an_operators_word(text: bytes, root: Path) -> None:
    part = used(root)
    for number in range(2):
        _holds(text)(part)
        with pytest.raises(DamagedCursorError, match="--continue-after"):
            opened(root)
        with opened(root, continue_after=41 + number) as state:
            assert state.cursor.sequence == 41 + number
        assert (part / f"cursor.json.damaged-{number}").read_bytes() == text
    with opened(root) as state:
        assert state.reserve(5000) == 43


def test_another_sources_cursor_is_never_adopted(root: Path) -> None:
    _holds(GOOD.replace(b"linux-reference", b"other"))(used(root))
    with pytest.raises(CursorError, match="belongs to something else"):
        opened(root, continue_after=41)


def test_numbers_never_go_back(root: Path) -> None:
    used(root)
    with opened(root, continue_after=1) as state:
        assert state.reserve(5000) == 3


def test_the_last_number_is_the_end(root: Path) -> None:
    with opened(root, continue_after=U64_MAX - 1) as state:
        assert state.reserve(1) == U64_MAX
        with pytest.raises(CursorError, match="new epoch"):
            state.reserve(1)


# -- crashes and failures ----------------------------------------------------------------------------------


def _left_empty(root: Path) -> None:
    (root / NAME).mkdir(mode=0o700)


def _left_unfinished(*names: str) -> Callable[[Path], None]:
    def leave(root: Path) -> None:
        folder = root / f".new-{NAME}.999999.0"
        folder.mkdir(mode=0o700)
        for name in names:
            (folder / name).touch(mode=0o600)

    return leave


@pytest.mark.parametrize(
    "leave",
    [
        _left_empty,
        _left_unfinished(),
        _left_unfinished("owner.lock"),
        _left_unfinished("owner.lock", ".cursor.json.1.0.tmp"),
        _left_unfinished("owner.lock", "cursor.json"),
    ],
)
def test_a_death_while_a_part_is_made_needs_nobody(leave: Callable[[Path], None], root: Path) -> None:
    leave(root)
    with opened(root) as state:
        assert state.reserve(1) == 1
    assert [path.name for path in root.iterdir()] == [NAME]


def test_what_somebody_is_making_is_left_alone(root: Path) -> None:
    _left_unfinished("owner.lock")(root)
    made = next(root.iterdir())
    with (made / "owner.lock").open("r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        opened(root).close()
        assert (made / "owner.lock").exists()


OPEN_CALLS = 7


@pytest.mark.parametrize("at", range(OPEN_CALLS + 2))
def test_a_failure_while_a_part_is_made_needs_nobody(at: int, root: Path) -> None:
    fs = FailingFs(at=at)
    if at < OPEN_CALLS:
        with pytest.raises(CursorError):
            opened(root, fs)
        assert fs.failed is not None
    else:
        opened(root, fs).close()
    with opened(root) as state:
        assert state.reserve(1) == 1


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("at", range(7))
def test_a_failed_reservation_is_never_given_out_again(at: int, error: int, root: Path) -> None:
    used(root)
    fs = FailingFs(error=error)
    with opened(root, fs) as state:
        fs.calls.clear()
        fs.at = at
        try:
            given_out = [state.reserve(3000)]
        except CursorFullError:
            assert error != errno.EIO
            assert at < 2
            given_out = [state.reserve(3000)]
            assert given_out == [4], "the number of the failed write is skipped"
        except CursorPoisonedError:
            given_out = []
            with pytest.raises(CursorPoisonedError, match="check the disk"):
                state.reserve(3000)
    assert (fs.failed is None) == (at == 6)
    with opened(root) as state:
        assert state.reserve(4000) > max(given_out, default=2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.just(("reopen", 0)),
            st.tuples(st.just("reserve"), st.integers(0, U64_MAX)),
            st.tuples(st.just("fail"), st.integers(0, 5)),
            st.tuples(st.just("operator"), st.integers(1, 50)),
        ),
        max_size=25,
    )
)
def test_numbers_only_grow_whatever_happens(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given_out = [0]
        fs = FailingFs()
        state = opened(folder, fs)
        for what, value in steps:
            if what in {"reopen", "operator"}:
                state.close()
                state = opened(folder, fs, continue_after=value or None)
                continue
            fs.calls.clear()
            fs.at = value if what == "fail" else None
            with suppress(CursorError):
                given_out.append(state.reserve(value))
            fs.at = None
        state.close()
        assert all(before < after for before, after in itertools.pairwise(given_out))


def test_the_cursors_of_the_vectors_are_ours() -> None:
    for vector in json.loads((VECTORS / "snapshots.json").read_text("utf-8"))["cursor"]:
        data = vector["text"].encode()
        assert encode_cursor(decode_cursor(data, source_id=SOURCE, epoch=EPOCH)) == data


@given(st.integers(0, U64_MAX), st.integers(0, U64_MAX))
def test_a_cursor_is_read_as_it_was_written(sequence: int, observed: int) -> None:
    cursor = Cursor(source_id=SOURCE, epoch=EPOCH, sequence=sequence, observed_unix_ms=observed)
    assert decode_cursor(encode_cursor(cursor), source_id=SOURCE, epoch=EPOCH) == cursor
