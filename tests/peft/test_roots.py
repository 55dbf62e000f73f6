from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from peft_support import (
    make_fifo,
    make_file,
    make_socket,
    needs_root,
    no_descriptor_leaks,
    root,
    synced_directories,
)

from ticket_agent.peft.errors import PeftError, PeftIoError, RootRefusedError
from ticket_agent.peft.roots import open_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ME = os.geteuid()
STRANGER = 65_534


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    with no_descriptor_leaks():
        yield


def refused(path: str | Path, *, create: bool = False, error: type[PeftError] = RootRefusedError) -> str:
    with pytest.raises(error) as caught:
        open_root(path, label="registry root", owner_uid=ME, create=create).close()
    line = str(caught.value)
    assert line.startswith("registry root ")
    assert line.isprintable()
    assert len(line) <= 400
    return line


def test_an_existing_root(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    with root(tmp_path / "r", create=False) as registry:
        assert registry.label == f"registry root {tmp_path}/r"
        assert os.path.samestat(os.fstat(registry.fd), (tmp_path / "r").stat())
        assert registry.names() == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "relative path"),
        ("out/model_registry", "relative path"),
        ("./out", "relative path"),
        ("../out", "relative path"),
        ("/", "whole file system"),
        ("///", "whole file system"),
        ("{}/r/../r", "'..' is not the name"),
        ("{}/./r", "'.' is not the name"),
        ("{}/r/..", "'..' is not the name"),
        ("{}/r\0", "contains a slash or a NUL"),
        ("{}/" + "x" * 256, "longer than 255"),
        ("{}" + "/x" * 65, "more than 64 components"),
        ("{}/absent", "absent does not exist"),
        ("{}/absent/r", "absent does not exist"),
    ],
)
def test_paths_that_are_no_root(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "r").mkdir()
    line = refused(path.replace("{}", str(tmp_path)))
    assert reason in line
    assert [entry.name for entry in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize("path", ["{}/r", "{}//r", "{}/r/", "/{}/r//"])
def test_repeated_slashes_are_one(tmp_path: Path, path: str) -> None:
    (tmp_path / "r").mkdir()
    open_root(path.replace("{}", str(tmp_path)), label="x", owner_uid=ME, create=False).close()


LEVELS = ["a", "a/b", "a/b/root"]


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("target", ["inside", "outside", "dangling", "loop", "proc"])
def test_a_symlink_anywhere_on_the_path(tmp_path: Path, level: str, target: str, create: bool) -> None:
    (tmp_path / "a" / "b" / "root").mkdir(parents=True)
    place = tmp_path / level
    place.rename(tmp_path / "moved")
    targets = {
        "inside": tmp_path / "moved",
        "outside": Path("/etc"),
        "dangling": tmp_path / "nowhere",
        "loop": place,
        "proc": Path("/proc/self/cwd"),
    }
    place.symlink_to(targets[target])
    line = refused(tmp_path / "a" / "b" / "root", create=create)
    assert f"{place} is a symlink; name the real path" in line
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("make", [make_file, make_fifo, make_socket])
def test_what_is_no_directory(tmp_path: Path, level: str, make: Callable[[Path], None], create: bool) -> None:
    place = tmp_path / level
    place.parent.mkdir(parents=True, exist_ok=True)
    make(place)
    assert f"{place} is not a directory" in refused(tmp_path / "a" / "b" / "root", create=create)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722, 0o775, 0o777, 0o1777, 0o2775])
def test_a_root_that_others_can_write(tmp_path: Path, mode: int) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r").chmod(mode)
    assert f"can be written by others (mode {mode:04o})" in refused(tmp_path / "r", create=True)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o711, 0o2755])
def test_a_root_that_others_can_read(tmp_path: Path, mode: int) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r").chmod(mode)
    root(tmp_path / "r", create=False).close()


@pytest.mark.parametrize("level", LEVELS[:-1])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722, 0o777])
def test_an_ancestor_that_others_can_write(tmp_path: Path, level: str, mode: int) -> None:
    (tmp_path / "a" / "b" / "root").mkdir(parents=True)
    (tmp_path / level).chmod(mode)
    line = refused(tmp_path / "a" / "b" / "root")
    assert f"{tmp_path / level} can be written by others, who could replace" in line


@needs_root
@pytest.mark.parametrize(("owner", "accepted"), [(0, True), (STRANGER, False), (1234, False)])
def test_a_sticky_ancestor_must_be_roots(tmp_path: Path, owner: int, accepted: bool) -> None:
    (tmp_path / "a" / "root").mkdir(parents=True)
    (tmp_path / "a").chmod(0o1777)
    os.chown(tmp_path / "a", owner, owner)
    os.chown(tmp_path / "a" / "root", 1234, 1234)
    if accepted:
        open_root(tmp_path / "a" / "root", label="x", owner_uid=1234, create=False).close()
        return
    with pytest.raises(RootRefusedError):
        open_root(tmp_path / "a" / "root", label="x", owner_uid=1234, create=False)


@needs_root
def test_a_root_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    os.chown(tmp_path / "r", STRANGER, STRANGER)
    assert f"belongs to user {STRANGER}, not to {ME}" in refused(tmp_path / "r", create=True)
    # Even root's own directory is not the service account's.
    os.chown(tmp_path / "r", 0, 0)
    with pytest.raises(RootRefusedError, match="belongs to user 0, not to 1234"):
        open_root(tmp_path / "r", label="x", owner_uid=1234, create=False)


@needs_root
@pytest.mark.parametrize("level", LEVELS[:-1])
def test_an_ancestor_of_somebody_else(tmp_path: Path, level: str) -> None:
    (tmp_path / "a" / "b" / "root").mkdir(parents=True)
    os.chown(tmp_path / level, STRANGER, STRANGER)
    line = refused(tmp_path / "a" / "b" / "root")
    assert f"{tmp_path / level} belongs to user {STRANGER}, who could replace" in line


def test_a_missing_root_is_created_with_its_parents(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        root(tmp_path / "a" / "b" / "root").close()
    finally:
        os.umask(old)
    for level in LEVELS:
        assert stat.S_IMODE((tmp_path / level).stat().st_mode) == 0o755
    root(tmp_path / "a" / "b" / "root").close()


def test_the_umask_makes_a_created_root_private(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        root(tmp_path / "a" / "root").close()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a" / "root").stat().st_mode) == 0o700


def test_every_created_level_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = synced_directories(monkeypatch)
    root(tmp_path / "a" / "b" / "root").close()
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    synced.clear()
    root(tmp_path / "a" / "b" / "root").close()
    assert synced == []


@needs_root
def test_nothing_is_created_for_another_account(tmp_path: Path) -> None:
    with pytest.raises(RootRefusedError, match=f"user {ME} cannot create it for user {ME + 1}"):
        open_root(tmp_path / "a" / "root", label="x", owner_uid=ME + 1, create=True)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_created_below_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o777)
    refused(tmp_path / "a" / "b" / "root", create=True)
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_directory_swapped_for_a_link_in_the_last_moment(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b" / "root").mkdir(parents=True)
    place = tmp_path / level
    real = os.open

    def swap(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == place.name and not place.is_symlink():
            place.rename(tmp_path / "moved")
            place.symlink_to(tmp_path / "moved")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap)
    assert f"{place} was replaced while it was opened" in refused(tmp_path / "a" / "b" / "root")


def test_the_root_stays_the_directory_that_was_opened(tmp_path: Path) -> None:
    with root(tmp_path / "r") as registry:
        registry.write_file("active", b"m1\n")
        (tmp_path / "r").rename(tmp_path / "old")
        (tmp_path / "r").mkdir()
        assert registry.read_file("active", max_bytes=10) == b"m1\n"
        registry.write_file("active", b"m2\n")
    assert list((tmp_path / "r").iterdir()) == []
    assert (tmp_path / "old" / "active").read_bytes() == b"m2\n"


def test_a_long_path_does_not_hide_the_reason(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 200) / ("y" * 200)
    deep.mkdir(parents=True)
    (deep / "r").symlink_to(tmp_path)
    assert refused(deep / "r").endswith("is a symlink; name the real path")


@pytest.mark.parametrize("name", ["new\nline", "esc\x1b[31m", "\udcff", "tab\t"])
def test_a_strange_path_is_shown_on_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path)
    assert "is a symlink" in refused(tmp_path / name)


def test_failures_of_the_system_are_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "mkdir", fail)
    line = refused(tmp_path / "r", create=True, error=PeftIoError)
    assert f"creating {tmp_path}/r failed: No space left on device" in line
