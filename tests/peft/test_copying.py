from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from peft_support import Canary, no_descriptor_leaks, root, snapshot, until_a_change_shows

from ticket_agent.journal.fs import write_all
from ticket_agent.peft import renaming
from ticket_agent.peft.copying import Copied, copy_hashed, hash_file
from ticket_agent.peft.errors import (
    FileChangedError,
    FileRefusedError,
    NameRefusedError,
    NameTakenError,
    PeftIoError,
)
from ticket_agent.peft.limits import COPY_CHUNK_BYTES, MAX_ADAPTER_BYTES
from ticket_agent.peft.names import is_partial
from ticket_agent.peft.opened import OpenedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.peft.directory import Directory

CHUNK = COPY_CHUNK_BYTES
BOUND = 8 * CHUNK
LONG_AGO = 1_000_000_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of four chunks and a bit, last written long ago."""
    (tmp_path / "adapters").mkdir()
    path = tmp_path / "adapters" / "adapter.safetensors"
    path.write_bytes(os.urandom(4 * CHUNK + 77))
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    # Renaming and removing change the one time stamp that cannot be set.
    until_a_change_shows(path)
    return path


@pytest.fixture
def adapters(source: Path) -> Iterator[Directory]:
    with root(source.parent, label="adapter root") as directory:
        yield directory


@pytest.fixture
def into(tmp_path: Path) -> Iterator[Directory]:
    (tmp_path / "staging").mkdir()
    with no_descriptor_leaks(), root(tmp_path / "staging", label="staging") as directory:
        yield directory


def copy(adapters: Directory, into: Directory, *, max_bytes: int = BOUND) -> Copied:
    with adapters.open_file("adapter.safetensors", max_bytes=BOUND) as file:
        return copy_hashed(file, into, "copy", max_bytes=max_bytes)


@pytest.mark.parametrize(
    "size", [1, 2, CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 3 * CHUNK + 5]
)
def test_the_copy_and_its_digest(
    adapters: Directory, into: Directory, source: Path, tmp_path: Path, size: int
) -> None:
    data = os.urandom(size)
    source.write_bytes(data)
    expected = Copied(sha256=hashlib.sha256(data).hexdigest(), bytes=size)
    assert copy(adapters, into) == expected
    assert (tmp_path / "staging" / "copy").read_bytes() == data
    assert into.names() == ["copy"]
    with into.open_file("copy", max_bytes=BOUND) as file:
        assert hash_file(file) == hash_file(file) == expected


def test_the_bound_of_the_copy_holds_too(adapters: Directory, into: Directory, source: Path) -> None:
    size = source.stat().st_size
    with pytest.raises(FileRefusedError, match=f"has {size} bytes; at most {size - 1} are copied"):
        copy(adapters, into, max_bytes=size - 1)
    assert into.names() == []
    assert copy(adapters, into, max_bytes=size).bytes == size


def test_a_hole_is_copied_as_zeros(adapters: Directory, into: Directory, source: Path) -> None:
    with source.open("wb") as file:
        file.truncate(BOUND)
    assert copy(adapters, into).sha256 == hashlib.sha256(bytes(BOUND)).hexdigest()


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * (2 * CHUNK))


def _append_one(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def _truncate(path: Path) -> None:
    os.truncate(path, CHUNK + 1)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _overwrite_ahead(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(3 * CHUNK)
        file.write(b"x")


def _overwrite_behind(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"x")


def _replace(path: Path) -> None:
    (path.parent / "new").write_bytes(b"x" * path.stat().st_size)
    (path.parent / "new").replace(path)


def _remove(path: Path) -> None:
    path.unlink()


CHANGES = [
    _append,
    _append_one,
    _truncate,
    _empty,
    _overwrite_ahead,
    _overwrite_behind,
    _replace,
    _remove,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_during_the_copy(
    adapters: Directory,
    into: Directory,
    source: Path,
    change: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = source.stat().st_size
    written = 0

    def change_after_the_first(fd: int, data: memoryview) -> None:
        nonlocal written
        write_all(fd, data)
        if written == 0:
            change(source)
        written += len(data)

    monkeypatch.setattr("ticket_agent.peft.copying.write_all", change_after_the_first)
    with pytest.raises(FileChangedError) as refused:
        copy(adapters, into)
    assert str(refused.value).endswith("was changed while it was read; let its writer finish first")
    assert into.names() == []
    assert CHUNK <= written <= size + CHUNK


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_opening_is_noticed(
    adapters: Directory, source: Path, change: Callable[[Path], None]
) -> None:
    with adapters.open_file("adapter.safetensors", max_bytes=BOUND) as file:
        assert file.unchanged()
        change(source)
        assert not file.unchanged()
        with pytest.raises(FileChangedError):
            hash_file(file)


@pytest.mark.parametrize("change", [_append_one, _truncate])
def test_a_change_of_size_is_noticed_without_time_stamps(
    adapters: Directory,
    into: Directory,
    source: Path,
    change: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some network file systems keep showing old metadata for a while."""
    monkeypatch.setattr(OpenedFile, "unchanged", lambda _: True)
    with adapters.open_file("adapter.safetensors", max_bytes=BOUND) as file:
        change(source)
        with pytest.raises(FileChangedError):
            copy_hashed(file, into, "copy", max_bytes=BOUND)
    assert into.names() == []


def test_a_writer_without_end_is_left_behind(
    adapters: Directory, into: Directory, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv
    reads = 0

    def append_before_each(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal reads
        reads += 1
        _append(source)
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", append_before_each)
    with pytest.raises(FileChangedError):
        copy(adapters, into)
    assert reads == 5
    assert into.names() == []


@pytest.mark.parametrize("kind", ["file", "directory", "link", "dangling"])
def test_an_existing_name_is_left_alone(
    adapters: Directory, into: Directory, tmp_path: Path, kind: str
) -> None:
    canary = Canary(tmp_path / "outside")
    place = tmp_path / "staging" / "copy"
    if kind == "file":
        place.write_bytes(b"old")
    elif kind == "directory":
        place.mkdir()
    else:
        place.symlink_to("../outside/secret" if kind == "link" else "../outside/new")
    before = snapshot(place.parent)
    with pytest.raises(NameTakenError, match="copy exists already"):
        copy(adapters, into)
    after = snapshot(place.parent)
    assert {path: after[path] for path in after if path != str(place.parent)} == {
        path: before[path] for path in before if path != str(place.parent)
    }
    canary.check()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "/x", "a\0"])
def test_the_copy_is_one_entry(adapters: Directory, into: Directory, name: str) -> None:
    with (
        adapters.open_file("adapter.safetensors", max_bytes=BOUND) as file,
        pytest.raises(NameRefusedError),
    ):
        copy_hashed(file, into, name, max_bytes=BOUND)
    assert into.names() == []


def test_a_full_disk_leaves_nothing(adapters: Directory, into: Directory) -> None:
    """A real refusal of the kernel in the middle of the copy: the process may not write longer files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * CHUNK + 1, hard))
    try:
        with pytest.raises(PeftIoError, match=r"writing staging .*/copy failed: File too large") as refused:
            copy(adapters, into)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (refused.value.errno, refused.value.applied) == (errno.EFBIG, False)
    assert into.names() == []


@pytest.mark.parametrize("function", ["open", "preadv", "fsync", "rename"])
def test_failures_of_the_system_leave_nothing(
    adapters: Directory, into: Directory, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel's own rename cannot be made to fail here; the one that stands in for it can.
    monkeypatch.setattr(renaming, "_kernel_rename", lambda: _unsupported)

    def fail(*args: object, **more: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with adapters.open_file("adapter.safetensors", max_bytes=BOUND) as file, monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(PeftIoError, match="Input/output error") as refused:
            copy_hashed(file, into, "copy", max_bytes=BOUND)
    assert (refused.value.errno, refused.value.applied) == (errno.EIO, False)
    assert into.names() == []


def _unsupported(*args: object) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def test_a_copy_that_is_only_not_durable_stays_and_says_so(
    adapters: Directory, into: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    calls = 0

    def fail_second(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fsync", fail_second)
    with pytest.raises(PeftIoError) as refused:
        copy(adapters, into)
    assert refused.value.applied
    assert into.names() == ["copy"]


def test_the_file_is_synced_before_it_has_its_name(
    adapters: Directory, into: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real = os.fsync

    def spy(fd: int) -> None:
        names = sorted(path.name for path in (tmp_path / "staging").iterdir())
        steps.append("partial" if all(is_partial(name) for name in names) else " ".join(names))
        real(fd)

    monkeypatch.setattr(os, "fsync", spy)
    copy(adapters, into)
    assert steps == ["partial", "copy"]


_KILLED = """
import os, signal, sys
from ticket_agent.peft import copying
from ticket_agent.peft.roots import open_root

real = copying.write_all
def once(fd, data):
    real(fd, data)
    os.kill(os.getpid(), signal.SIGKILL)
copying.write_all = once
me = os.geteuid()
with (
    open_root(sys.argv[1], label="a", owner_uid=me, create=False) as source,
    open_root(sys.argv[2], label="b", owner_uid=me, create=False) as into,
    source.open_file("adapter.safetensors", max_bytes=1 << 30) as file,
):
    copying.copy_hashed(file, into, "copy", max_bytes=1 << 30)
"""


def test_a_killed_copy_leaves_only_what_is_known_as_partial(
    adapters: Directory, into: Directory, source: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _KILLED, str(source.parent), str(tmp_path / "staging")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = into.names()
    assert is_partial(left)
    copy(adapters, into)
    assert sorted(into.names()) == [left, "copy"]


def test_memory_does_not_grow_with_the_file(adapters: Directory, into: Directory, source: Path) -> None:
    with source.open("wb") as file:
        file.truncate(MAX_ADAPTER_BYTES)
    with adapters.open_file("adapter.safetensors", max_bytes=MAX_ADAPTER_BYTES) as opened:
        tracemalloc.start()
        copy_hashed(opened, into, "copy", max_bytes=MAX_ADAPTER_BYTES)
        hash_file(opened)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= 2 * 1024 * 1024
