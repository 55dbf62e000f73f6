from __future__ import annotations

import errno
import itertools
import os
import stat
from typing import TYPE_CHECKING

import pytest
from peft_support import (
    Canary,
    make_device,
    make_fifo,
    make_file,
    make_socket,
    needs_root,
    no_descriptor_leaks,
    root,
    snapshot,
    synced_directories,
)

from ticket_agent.peft import renaming
from ticket_agent.peft.directory import Directory, Identity, Kind
from ticket_agent.peft.errors import (
    AbsentError,
    FileRefusedError,
    NameRefusedError,
    NameTakenError,
    PeftError,
    PeftIoError,
)
from ticket_agent.peft.limits import MAX_ADAPTER_BYTES, MAX_DIRECTORY_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BOUND = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path / "outside")


@pytest.fixture
def here(folder: Path, canary: Canary) -> Iterator[Directory]:
    """The root, and at the end: nothing outside was touched, no temporary and no descriptor is left."""
    with no_descriptor_leaks():
        with root(folder) as directory:
            yield directory
        canary.check()
        assert not [path for path in folder.rglob("*") if path.name.endswith(".partial")]


def refusal(call: Callable[[], object], error: type[PeftError] = FileRefusedError) -> str:
    with pytest.raises(error) as caught:
        call()
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) <= 400
    return line


# -- the hostile table ------------------------------------------------------------------------------------


def _link_to_secret(path: Path) -> None:
    path.symlink_to(path.parents[1] / "outside" / "secret")


def _link_to_outside(path: Path) -> None:
    path.symlink_to("../outside", target_is_directory=True)


def _link_inside(path: Path) -> None:
    (path.parent / "target").write_bytes(b"x")
    path.symlink_to("target")


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _proc_link(path: Path) -> None:
    path.symlink_to("/proc/self/fd/0")


def _directory(path: Path) -> None:
    path.mkdir()


def _hard_link(path: Path) -> None:
    (path.parent / "first").write_bytes(b"x")
    path.hardlink_to(path.parent / "first")


def _hard_link_outside(path: Path) -> None:
    outside = path.parents[1] / "outside-too"
    outside.write_bytes(b"x")
    path.hardlink_to(outside)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _one_too_many(path: Path) -> None:
    path.write_bytes(b"x" * (BOUND + 1))


def _sparse_giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 43)


HOSTILE_FILES = [
    (_link_to_secret, "is a symlink, not a regular file"),
    (_link_to_outside, "is a symlink, not a regular file"),
    (_link_inside, "is a symlink, not a regular file"),
    (_dangling, "is a symlink, not a regular file"),
    (_loop, "is a symlink, not a regular file"),
    (_proc_link, "is a symlink, not a regular file"),
    (_directory, "is a directory, not a regular file"),
    (make_fifo, "is a device, FIFO or socket, not a regular file"),
    (make_socket, "is a device, FIFO or socket, not a regular file"),
    pytest.param(make_device, "is a device, FIFO or socket, not a regular file", marks=needs_root),
    (_hard_link, r"has 2 names (hard links)"),
    (_hard_link_outside, r"has 2 names (hard links)"),
    (_empty, "is empty"),
    (_one_too_many, f"has {BOUND + 1} bytes; at most {BOUND} are accepted"),
    (_sparse_giant, f"has {1 << 43} bytes; at most {BOUND} are accepted"),
]


@pytest.mark.parametrize(("make", "reason"), HOSTILE_FILES)
def test_what_is_not_opened_as_a_file(
    here: Directory, folder: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(folder / "adapter.safetensors")
    before = snapshot(folder)
    for call in (here.open_file, here.read_file):
        line = refusal(lambda call=call: call("adapter.safetensors", max_bytes=BOUND))  # type: ignore[misc]
        assert line.startswith(f"registry root {folder}/adapter.safetensors {reason}")
    assert snapshot(folder) == before


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        make_file,
        _link_to_outside,
        _link_inside,
        _dangling,
        _loop,
        _proc_link,
        make_fifo,
        make_socket,
        pytest.param(make_device, marks=needs_root),
    ],
)
def test_what_is_not_opened_as_a_directory(
    here: Directory, folder: Path, make: Callable[[Path], None], create: bool
) -> None:
    make(folder / "available")
    before = snapshot(folder)
    assert "not a directory" in refusal(lambda: here.open_dir("available", create=create))
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    "make",
    [
        _link_to_secret,
        _link_to_outside,
        _dangling,
        _directory,
        make_fifo,
        make_socket,
        pytest.param(make_device, marks=needs_root),
    ],
)
def test_what_is_not_replaced_by_a_file(here: Directory, folder: Path, make: Callable[[Path], None]) -> None:
    make(folder / "active")
    before = snapshot(folder)
    assert "it is not replaced" in refusal(lambda: here.write_file("active", b"m1\n"))
    assert snapshot(folder) == before


BAD_NAMES = ["", ".", "..", "a/b", "../outside/secret", "/etc/passwd", "a\0b", "x" * 256, "\ud800"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_every_method_takes_one_entry_only(here: Directory, folder: Path, name: str) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "b").write_bytes(b"x")
    (folder / "free").write_bytes(b"x")
    before = snapshot(folder)
    calls: list[Callable[[], object]] = [
        lambda: here.kind(name),
        lambda: here.open_dir(name),
        lambda: here.open_dir(name, create=True),
        lambda: here.open_file(name, max_bytes=BOUND),
        lambda: here.read_file(name, max_bytes=BOUND),
        lambda: here.write_file(name, b"x"),
        lambda: here.make_dir(name),
        lambda: here.rename(name, here, "new", replace=True),
        lambda: here.rename(name, here, "new", replace=False),
        lambda: here.rename("free", here, name, replace=True),
        lambda: here.rename("free", here, name, replace=False),
        lambda: here.unlink(name),
        lambda: here.remove_tree(name),
    ]
    for call in calls:
        refusal(call, NameRefusedError)
    assert snapshot(folder) == before


@pytest.mark.parametrize("name", ["absent", "Model", "MODEL", "model "])
def test_names_are_taken_exactly(here: Directory, folder: Path, name: str) -> None:
    (folder / "model").mkdir()
    assert here.kind(name) is None
    calls: list[Callable[[], object]] = [
        lambda: here.open_dir(name),
        lambda: here.open_file(name, max_bytes=BOUND),
        lambda: here.unlink(name),
        lambda: here.remove_tree(name),
        lambda: here.rename(name, here, "new", replace=True),
        lambda: here.rename(name, here, "new", replace=False),
    ]
    for call in calls:
        assert refusal(call, AbsentError).endswith("does not exist")
    assert here.names() == ["model"]


# -- looking ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (make_file, Kind.FILE),
        (_directory, Kind.DIR),
        (_link_to_secret, Kind.LINK),
        (_dangling, Kind.LINK),
        (make_fifo, Kind.OTHER),
        (make_socket, Kind.OTHER),
        pytest.param(make_device, Kind.OTHER, marks=needs_root),
    ],
)
def test_kinds(here: Directory, folder: Path, make: Callable[[Path], None], kind: Kind) -> None:
    make(folder / "x")
    assert here.kind("x") is kind


STRANGE = [b"\xff\xfe", b"new\nline", b"esc\x1b[31m", b"-rf", b" ", b"x" * 255, "\u202e".encode()]


def test_strange_names_are_listed_opened_and_removed(here: Directory, folder: Path) -> None:
    for raw in STRANGE:
        (folder / os.fsdecode(raw)).write_bytes(raw)
    names = here.names()
    assert sorted(map(os.fsencode, names)) == sorted(STRANGE)
    for name in names:
        assert here.read_file(name, max_bytes=BOUND) == os.fsencode(name)
        assert refusal(lambda name=name: here.open_dir(name))  # type: ignore[misc]
        here.unlink(name)
    assert here.names() == []


def test_a_listing_is_bounded(here: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_DIRECTORY_NAMES == 10_000
    monkeypatch.setattr("ticket_agent.peft.directory.MAX_DIRECTORY_NAMES", 3)
    for name in "cab":
        here.make_dir(name)
    assert here.names() == ["a", "b", "c"]
    here.make_dir("d")
    assert "has more than 3 entries" in refusal(here.names)


def test_a_second_listing_starts_from_the_beginning(here: Directory, folder: Path) -> None:
    make_file(folder / "x")
    assert here.names() == here.names() == ["x"]


@pytest.mark.parametrize(
    ("mode", "reason"), [(0o755, None), (0o775, "written by others"), (0o757, "written by others")]
)
def test_a_directory_below_a_root_can_be_held_to_the_same_rule(
    here: Directory, folder: Path, mode: int, reason: str | None
) -> None:
    (folder / "available").mkdir()
    (folder / "available").chmod(mode)
    with here.open_dir("available") as available:
        if reason is None:
            available.require_owned(os.geteuid())
            assert "belongs to user" in refusal(lambda: available.require_owned(os.geteuid() + 1))
        else:
            assert reason in refusal(lambda: available.require_owned(os.geteuid()))


# -- opening ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, BOUND - 1, BOUND])
def test_files_within_the_bound(here: Directory, folder: Path, size: int) -> None:
    (folder / "x").write_bytes(b"y" * size)
    assert here.read_file("x", max_bytes=BOUND) == b"y" * size
    with here.open_file("x", max_bytes=BOUND) as file:
        assert file.size == size
        status = (folder / "x").stat()
        assert file.identity == Identity(
            device=status.st_dev,
            inode=status.st_ino,
            size=size,
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
        )
        assert file.unchanged()
        assert os.get_blocking(file.fd) is False
        assert os.get_inheritable(file.fd) is False


def test_open_dir_creates_only_when_asked(here: Directory, folder: Path) -> None:
    refusal(lambda: here.open_dir("available"), AbsentError)
    with here.open_dir("available", create=True) as first:
        assert first.label == f"registry root {folder}/available"
        with here.open_dir("available", create=True) as second:
            assert os.path.samestat(os.fstat(first.fd), os.fstat(second.fd))
        assert os.get_inheritable(first.fd) is False


def test_a_created_directory_is_durable(
    here: Directory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = synced_directories(monkeypatch)
    here.open_dir("available", create=True).close()
    assert synced == [str(folder)]
    here.open_dir("available", create=True).close()
    assert synced == [str(folder)]


def test_an_unreadable_file_is_a_failure_of_the_system(
    here: Directory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_file(folder / "x")
    real = os.open

    def deny(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "x":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", deny)
    line = refusal(lambda: here.open_file("x", max_bytes=BOUND), PeftIoError)
    assert line == f"opening registry root {folder}/x failed: Permission denied"


# -- changing ---------------------------------------------------------------------------------------------


def test_write_file_replaces_a_file_whole(here: Directory, folder: Path) -> None:
    here.write_file("active", b"m1\n")
    first = (folder / "active").stat()
    here.write_file("active", b"m2\n")
    assert (folder / "active").read_bytes() == b"m2\n"
    assert (folder / "active").stat().st_ino != first.st_ino
    assert here.names() == ["active"]


def test_write_file_leaves_another_name_of_the_old_file_alone(here: Directory, folder: Path) -> None:
    _hard_link(folder / "active")
    here.write_file("active", b"m2\n")
    assert (folder / "first").read_bytes() == b"x"


@pytest.mark.parametrize(("umask", "mode"), [(0, 0o644), (0o022, 0o644), (0o077, 0o600), (0o002, 0o644)])
def test_others_may_read_what_the_umask_allows_and_never_write(
    here: Directory, folder: Path, umask: int, mode: int
) -> None:
    old = os.umask(umask)
    try:
        here.write_file("f", b"x")
        here.make_dir("d")
    finally:
        os.umask(old)
    assert stat.S_IMODE((folder / "f").stat().st_mode) == mode
    assert stat.S_IMODE((folder / "d").stat().st_mode) == (0o755 & ~umask)


def test_a_leftover_with_the_temporarys_name_is_in_nobodys_way(
    here: Directory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ticket_agent.journal.atomic._counter", itertools.count())
    for number in range(9):
        (folder / f".active.{os.getpid()}.{number}.partial").symlink_to("../outside/secret")
    here.write_file("active", b"m1\n")
    assert (folder / "active").read_bytes() == b"m1\n"
    leftovers = list(folder.glob(".active.*"))
    assert len(leftovers) == 9
    for path in leftovers:
        path.unlink()


@pytest.mark.parametrize(
    ("function", "step", "applied"),
    [("write", "write", False), ("fsync", "fsync", False), ("rename", "rename", False)],
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    here: Directory,
    folder: Path,
    *,
    function: str,
    step: str,
    applied: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here.write_file("active", b"m1\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, function, _failing(errno.ENOSPC))
        with pytest.raises(PeftIoError) as caught:
            here.write_file("active", b"m2\n")
    assert str(caught.value) == (
        f"writing registry root {folder}/active ({step}) failed: No space left on device"
    )
    assert (caught.value.errno, caught.value.applied) == (errno.ENOSPC, applied)
    assert here.names() == ["active"]
    assert here.read_file("active", max_bytes=BOUND) == b"m1\n"


def test_a_write_that_cannot_be_made_durable_says_that_it_is_visible(
    here: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fail_for_directories(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_for_directories)
        with pytest.raises(PeftIoError) as written:
            here.write_file("active", b"m1\n")
        with pytest.raises(PeftIoError) as moved:
            here.rename("active", here, "moved", replace=False)
        with pytest.raises(PeftIoError):
            here.sync()
    assert written.value.applied
    assert moved.value.applied
    assert here.names() == ["moved"]


def _failing(code: int) -> Callable[..., object]:
    def fail(*args: object, **more: object) -> object:
        raise OSError(code, os.strerror(code))

    return fail


# -- moving and removing ----------------------------------------------------------------------------------


def _full(path: Path) -> None:
    path.mkdir()
    (path / "manifest.toml").write_bytes(b"old")


TAKEN = [
    make_file,
    _directory,
    _full,
    _link_to_outside,
    _dangling,
    make_fifo,
]


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("source", [make_file, _full])
@pytest.mark.parametrize("make", TAKEN)
def test_a_new_name_must_be_free(
    here: Directory,
    folder: Path,
    *,
    make: Callable[[Path], None],
    source: Callable[[Path], None],
    kernel: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not kernel:
        monkeypatch.setattr(renaming, "_kernel_rename", lambda: _failing(errno.EINVAL))
    source(folder / "staging")
    make(folder / "model")
    before = snapshot(folder)
    line = refusal(lambda: here.rename("staging", here, "model", replace=False), NameTakenError)
    assert line == f"registry root {folder}/model exists already"
    assert snapshot(folder) == before


@pytest.mark.parametrize("kernel", [True, False])
def test_a_tree_is_published_whole(
    here: Directory, folder: Path, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel:
        monkeypatch.setattr(renaming, "_kernel_rename", lambda: _failing(errno.ENOSYS))
    _full(folder / "staging")
    with here.open_dir("available", create=True) as available:
        here.rename("staging", available, "model", replace=False)
    assert (folder / "available" / "model" / "manifest.toml").read_bytes() == b"old"
    assert here.names() == ["available"]


def test_the_kernel_does_the_whole_decision_here(here: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renaming, "_rename_if_free", _failing(errno.EPERM))
    here.make_dir("a")
    here.rename("a", here, "b", replace=False)
    assert here.names() == ["b"]


@pytest.mark.parametrize("kind", ["same", "two"])
def test_a_move_is_durable_when_it_returns(
    here: Directory, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with here.open_dir("available", create=True) as available:
        here.make_dir("staging")
        synced = synced_directories(monkeypatch)
        here.rename("staging", here if kind == "same" else available, "m", replace=False)
    expected = [str(folder)] if kind == "same" else [str(folder / "available"), str(folder)]
    assert synced == expected


def test_a_move_may_replace_when_asked(here: Directory, folder: Path) -> None:
    make_file(folder / "a")
    _link_to_secret(folder / "b")
    here.rename("a", here, "b", replace=True)
    assert here.read_file("b", max_bytes=BOUND) == b"x"
    _full(folder / "d")
    refusal(lambda: here.rename("b", here, "d", replace=True), NameTakenError)
    refusal(lambda: here.rename("d", here, "b", replace=True), NameTakenError)


def test_a_move_into_itself_is_refused_by_the_system(here: Directory, folder: Path) -> None:
    _full(folder / "d")
    with here.open_dir("d") as inner:
        for replace in (True, False):
            refusal(lambda replace=replace: here.rename("d", inner, "x", replace=replace), PeftIoError)  # type: ignore[misc]


@pytest.mark.parametrize("make", [make_file, _link_to_secret, _link_to_outside, _dangling, make_fifo])
def test_unlink_takes_the_name_and_nothing_behind_it(
    here: Directory, folder: Path, make: Callable[[Path], None]
) -> None:
    make(folder / "x")
    here.unlink("x")
    assert here.kind("x") is None


def test_unlink_takes_no_directory(here: Directory) -> None:
    here.make_dir("d")
    assert refusal(lambda: here.unlink("d")).endswith("d is a directory, not a file")
    assert here.names() == ["d"]


def test_make_dir_takes_a_free_name(here: Directory, folder: Path) -> None:
    _dangling(folder / "d")
    assert refusal(lambda: here.make_dir("d"), NameTakenError).endswith("d exists already")
    assert not (folder / "nowhere").exists()


# -- the measures of these tests --------------------------------------------------------------------------


def test_the_canary_notices_a_reading(canary: Canary) -> None:
    if os.statvfs(canary.folder).f_flag & os.ST_NOATIME:
        pytest.skip("this file system keeps no access times")
    canary.check()
    (canary.folder / "secret").read_bytes()
    with pytest.raises(AssertionError, match="was read"):
        canary.check()


def test_the_canary_notices_a_change(canary: Canary) -> None:
    (canary.folder / "new").symlink_to("x")
    with pytest.raises(AssertionError, match="changed"):
        canary.check()


def test_the_descriptor_count_notices(folder: Path) -> None:
    with pytest.raises(AssertionError), no_descriptor_leaks():
        leaked = os.open(folder, os.O_RDONLY)
    os.close(leaked)


def test_the_bound_of_an_adapter_is_tested_before_reading(here: Directory, folder: Path) -> None:
    with (folder / "adapter.safetensors").open("wb") as file:
        file.truncate(MAX_ADAPTER_BYTES + 1)
    refusal(lambda: here.open_file("adapter.safetensors", max_bytes=MAX_ADAPTER_BYTES))
    with (folder / "adapter.safetensors").open("r+b") as file:
        file.truncate(MAX_ADAPTER_BYTES)
    here.open_file("adapter.safetensors", max_bytes=MAX_ADAPTER_BYTES).close()
