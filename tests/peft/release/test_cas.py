from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft_support import (
    Canary,
    make_device,
    make_fifo,
    make_socket,
    needs_root,
    no_descriptor_leaks,
    root,
    snapshot,
)
from private_roots import opened
from release_support import base_state, sha

from ticket_agent.peft.errors import (
    AbsentError,
    FileChangedError,
    FileRefusedError,
    LockHeldError,
    PeftError,
    PeftIoError,
)
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.cas import MAX_OBJECT_BYTES, StoreLimits
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.root_errors import (
    AcceptedConflictError,
    CapacityError,
    ObjectCorruptError,
    RootBlockedError,
    RootOwnedError,
    RootPoisonedError,
    may_pass,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.peft.release.private_root import PrivateRoot

DATA = b'{"a":1}'
NAME = digest(DATA)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "private"


@pytest.fixture
def here(place: Path) -> Iterator[PrivateRoot]:
    with no_descriptor_leaks(), opened(place) as made:
        yield made


def test_what_is_stored_is_loaded(here: PrivateRoot, place: Path) -> None:
    assert NAME not in here.objects
    assert here.objects.store(DATA) == NAME
    assert here.objects.load(NAME) == DATA
    assert NAME in here.objects
    assert stat.S_IMODE((place / "objects" / NAME).stat().st_mode) == 0o600


@given(data=st.binary(min_size=1, max_size=300))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_bytes(here: PrivateRoot, data: bytes) -> None:
    assert here.objects.load(here.objects.store(data)) == data
    assert here.objects.store(data) == digest(data)


def test_storing_again_changes_nothing(here: PrivateRoot, place: Path) -> None:
    here.objects.store(DATA)
    before = snapshot(place)
    here.objects.store(DATA)
    assert snapshot(place) == before


def test_a_file_is_stored_in_pieces(here: PrivateRoot, tmp_path: Path) -> None:
    data = os.urandom(700_000)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(data)
    with root(tmp_path / "source") as source:
        for _ in range(2):
            with source.open_file("file", max_bytes=1 << 20) as file:
                assert here.objects.store_file(file) == digest(data)
        with (
            source.open_file("file", max_bytes=1 << 20) as file,
            pytest.raises(FileRefusedError, match="at most 699999 are stored"),
        ):
            here.objects.store_file(file, max_bytes=699_999)
    assert here.objects.load(digest(data), max_bytes=700_000) == data
    assert here.objects.usage().entries == 1


def test_sizes_of_objects(here: PrivateRoot) -> None:
    for bad in (b"", b"x" * (MAX_OBJECT_BYTES + 1)):
        with pytest.raises(FileRefusedError, match="an object has"):
            here.objects.store(bad)
    here.objects.store(DATA)
    assert here.objects.load(NAME, max_bytes=len(DATA)) == DATA
    with pytest.raises(FileRefusedError, match="at most 6 are accepted"):
        here.objects.load(NAME, max_bytes=len(DATA) - 1)


@pytest.mark.parametrize(
    "name", ["", "..", "../accepted.json", "x" * 64, "AB" * 32, "ab" * 32 + "\n", "ab" * 31]
)
def test_only_digests_are_names(here: PrivateRoot, name: str) -> None:
    for call in (here.objects.load, here.objects.__contains__):
        with pytest.raises(FileRefusedError, match="not the name of an object"):
            call(name)


def test_an_object_that_is_not_there(here: PrivateRoot) -> None:
    with pytest.raises(AbsentError):
        here.objects.load(sha("absent"))


# -- hostile objects --------------------------------------------------------------------------------------


def _link(path: Path) -> None:
    path.symlink_to(path.parents[2] / "outside" / "secret")


def _second_name(path: Path) -> None:
    path.write_bytes(DATA)
    os.link(path, path.with_name("other"))


HOSTILE: dict[str, Callable[[Path], object]] = {
    "other content": lambda path: path.write_bytes(b'{"a":2}'),
    "longer": lambda path: path.write_bytes(DATA + b" "),
    "shorter": lambda path: path.write_bytes(DATA[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "link": _link,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "second name": _second_name,
    "directory": lambda path: path.mkdir(),
    "fifo": make_fifo,
    "socket": make_socket,
    "device": make_device,
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=needs_root if kind == "device" else ()) for kind in HOSTILE]
)
def test_a_hostile_object_is_neither_used_nor_replaced(here: PrivateRoot, place: Path, kind: str) -> None:
    canary = Canary(place.parent / "outside")
    HOSTILE[kind](place / "objects" / NAME)
    before = snapshot(place)
    for call in (lambda: here.objects.load(NAME), lambda: here.objects.store(DATA)):
        with pytest.raises(FileRefusedError) as caught:
            call()
        assert str(caught.value).isprintable()
    assert snapshot(place) == before
    canary.check()


@pytest.mark.parametrize("bit", range(0, len(DATA) * 8, 5))
def test_every_flipped_bit_is_noticed(here: PrivateRoot, place: Path, bit: int) -> None:
    flipped = bytearray(DATA)
    flipped[bit // 8] ^= 1 << bit % 8
    (place / "objects" / NAME).write_bytes(flipped)
    with pytest.raises(ObjectCorruptError, match="move it away"):
        here.objects.load(NAME)
    with pytest.raises(ObjectCorruptError):
        here.objects.store(DATA)


# -- limits -----------------------------------------------------------------------------------------------


def test_the_default_limits() -> None:
    assert StoreLimits() == StoreLimits(entries=4096, bytes=2147483648)


def test_entries_are_counted(place: Path) -> None:
    with opened(place, limits=StoreLimits(entries=3, bytes=1000)) as here:
        (place / "objects" / "foreign").mkdir()
        here.objects.store(b"1")
        here.objects.store(b"2")
        with pytest.raises(CapacityError, match="at most 3"):
            here.objects.store(b"3")
        here.objects.store(b"2")
        assert here.objects.usage().entries == 3
        (place / "objects" / "foreign").rmdir()
        here.objects.store(b"3")


def test_bytes_are_counted(place: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(b"y" * 41)
    with opened(place, limits=StoreLimits(entries=9, bytes=100)) as here, root(tmp_path / "source") as source:
        here.objects.store(b"x" * 60)
        with pytest.raises(CapacityError, match="with 41 more it would exceed 100"):
            here.objects.store(b"y" * 41)
        with (
            source.open_file("file", max_bytes=100) as file,
            pytest.raises(CapacityError, match="would exceed"),
        ):
            here.objects.store_file(file)
        here.objects.store(b"y" * 40)
        assert here.objects.usage().bytes == 100


# -- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fsync", "rename", "open"])
def test_after_a_failed_write_nothing_is_changed(
    here: PrivateRoot, place: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(os, call)

    def failing(*args: object, **kwargs: object) -> object:
        if call == "open" and not (isinstance(args[1], int) and args[1] & os.O_CREAT):
            return real(*args, **kwargs)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(PeftIoError):
        here.objects.store(DATA)
    monkeypatch.undo()
    assert not list((place / "objects").iterdir())
    with pytest.raises(RootPoisonedError, match="restart the agent"):
        here.objects.store(DATA)
    with opened(place) as again:
        assert again.objects.store(DATA) == NAME


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_directory_sync_is_final(
    here: PrivateRoot, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.fsync

    def failing(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(PeftIoError) as caught:
        here.objects.store(DATA)
    assert caught.value.applied
    monkeypatch.undo()
    with pytest.raises(RootPoisonedError):
        here.objects.store(DATA)
    assert here.objects.load(NAME) == DATA


def test_a_full_disk_is_no_damage(here: PrivateRoot, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(PeftIoError, match="No space left"):
        here.objects.store(DATA)
    monkeypatch.undo()
    assert not list((place / "objects").iterdir())
    assert here.objects.store(DATA) == NAME


def test_an_object_is_synced_before_it_has_its_name(
    here: PrivateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def spy_fsync(fd: int) -> None:
        calls.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def spy_rename(src: str, dst: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        calls.append("rename")
        rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "rename", spy_rename)
    here.objects.store(DATA)
    assert calls == ["file", "rename", "directory"]
    calls.clear()
    here.objects.store(DATA)
    assert calls == ["directory"]


def test_what_may_pass_is_told_from_what_is_refused() -> None:
    passing: list[PeftError] = [
        LockHeldError("root", pid=1, command=None),
        FileChangedError("changed"),
        PeftIoError("reading", OSError(errno.EIO, "x")),
        RootOwnedError("another release"),
        RootPoisonedError("restart"),
    ]
    refused: list[PeftError] = [
        AbsentError("x"),
        FileRefusedError("x"),
        ObjectCorruptError("x"),
        CapacityError("x"),
        RootBlockedError("x"),
        DocumentError("x"),
        AcceptedConflictError("x", found=base_state()),
    ]
    assert [may_pass(error) for error in passing] == [True] * len(passing)
    assert [may_pass(error) for error in refused] == [False] * len(refused)
    codes = [error.code for error in (*passing, *refused)]
    assert len(set(codes)) == len(codes)
