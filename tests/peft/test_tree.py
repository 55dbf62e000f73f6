from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from peft_support import (
    Canary,
    in_own_mounts,
    make_device,
    make_fifo,
    make_file,
    make_socket,
    needs_mounts,
    no_descriptor_leaks,
    root,
    snapshot,
)

from ticket_agent.peft.errors import AbsentError, FileRefusedError, PeftIoError
from ticket_agent.peft.limits import MAX_TREE_DEPTH, MAX_TREE_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.peft.directory import Directory


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path / "outside")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A staging directory in a root."""
    path = tmp_path / "root" / ".cohesix-import-0123456789abcdef"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def here(tree: Path, canary: Canary) -> Iterator[Directory]:
    with no_descriptor_leaks():
        with root(tree.parent) as directory:
            yield directory
        canary.check()


def test_a_tree_is_removed_and_its_neighbours_stay(here: Directory, tree: Path) -> None:
    (tree / "adapter.safetensors").write_bytes(b"x")
    (tree / "sub" / "sub").mkdir(parents=True)
    (tree / "sub" / "sub" / "f").write_bytes(b"x")
    (tree.parent / "neighbour").mkdir()
    here.remove_tree(tree.name)
    assert here.names() == ["neighbour"]


def test_what_points_outside_is_removed_and_not_followed(here: Directory, tree: Path, canary: Canary) -> None:
    for place in (tree, tree / "sub"):
        place.mkdir(exist_ok=True)
        (place / "dir-link").symlink_to(canary.folder, target_is_directory=True)
        (place / "file-link").symlink_to(canary.secret)
        (place / "relative").symlink_to("../../outside")
        (place / "parent").symlink_to("..")
        (place / "dangling").symlink_to("nowhere")
        (place / "loop").symlink_to("loop")
        make_fifo(place / "fifo")
        make_socket(place / "socket")
        if os.geteuid() == 0:
            make_device(place / "device")
    here.remove_tree(tree.name)
    assert here.names() == []


def test_a_hard_link_goes_and_the_file_stays(here: Directory, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    (tree / "link").hardlink_to(tmp_path / "kept")
    here.remove_tree(tree.name)
    assert (tmp_path / "kept").read_bytes() == b"kept"


def test_any_name_can_be_removed(here: Directory, tree: Path) -> None:
    for raw in (b"\xff\xfe", b"new\nline", b"-rf", b"...", b"x" * 255, b" "):
        (tree / os.fsdecode(raw)).mkdir()
        (tree / os.fsdecode(raw) / os.fsdecode(raw)).write_bytes(b"x")
    here.remove_tree(tree.name)
    assert here.names() == []


def _deep(start: Path, levels: int) -> None:
    """Built from descriptors, because the path would be too long."""
    fd = os.open(start, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def _remove_deep(start: Path) -> None:
    subprocess.run(["rm", "-rf", str(start)], check=True)


def test_depth_is_bounded(here: Directory, tree: Path) -> None:
    _deep(tree, MAX_TREE_DEPTH - 1)
    here.remove_tree(tree.name)
    assert here.names() == []


@pytest.mark.parametrize("levels", [MAX_TREE_DEPTH, 300])
def test_a_deeper_tree_is_refused_whole(here: Directory, tree: Path, levels: int) -> None:
    (tree / "a").write_bytes(b"x")
    _deep(tree, levels)
    try:
        with pytest.raises(FileRefusedError, match=r"deeper than 16 levels; look at it") as refused:
            here.remove_tree(tree.name)
        assert tree.name in str(refused.value)
        assert (tree / "a").exists()
        assert (tree / "d").exists()
    finally:
        _remove_deep(tree)


def test_the_number_of_entries_is_bounded(
    here: Directory, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_TREE_ENTRIES == 10_000
    monkeypatch.setattr("ticket_agent.peft.tree.MAX_TREE_ENTRIES", 6)
    for name in ("a/b", "a/c", "d", "e"):
        (tree / name).mkdir(parents=True)
    make_file(tree / "f")
    here_is_room = snapshot(tree)
    make_file(tree / "g")
    with pytest.raises(FileRefusedError, match="has more than 6 entries"):
        here.remove_tree(tree.name)
    (tree / "g").unlink()
    assert snapshot(tree).keys() == here_is_room.keys()
    here.remove_tree(tree.name)
    assert here.names() == []


@pytest.mark.parametrize("kind", ["file", "link", "fifo"])
def test_only_a_directory_is_a_tree(here: Directory, tree: Path, canary: Canary, kind: str) -> None:
    place = tree.parent / "x"
    if kind == "file":
        make_file(place)
    elif kind == "link":
        place.symlink_to(canary.folder, target_is_directory=True)
    else:
        make_fifo(place)
    with pytest.raises(FileRefusedError, match="not a directory"):
        here.remove_tree("x")
    assert here.kind("x") is not None


def test_an_absent_tree_is_said_to_be_absent(here: Directory) -> None:
    with pytest.raises(AbsentError, match="does not exist"):
        here.remove_tree("absent")


@pytest.mark.parametrize("walk", [1, 2])
def test_a_directory_swapped_for_a_link_is_not_entered(
    here: Directory, tree: Path, canary: Canary, walk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "sub").mkdir()
    real = os.open
    seen = 0

    def swap(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        nonlocal seen
        if path == "sub":
            seen += 1
            if seen == walk:
                (tree / "sub").rmdir()
                (tree / "sub").symlink_to(canary.folder, target_is_directory=True)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(PeftIoError, match=r"removing .* failed: Not a directory"):
        here.remove_tree(tree.name)
    assert (tree / "sub").is_symlink()


_REMOVE = """
import os, sys
from ticket_agent.peft.errors import FileRefusedError
from ticket_agent.peft.roots import open_root
with open_root(sys.argv[1], label="root", owner_uid=os.geteuid(), create=False) as root:
    try:
        root.remove_tree("tree")
    except FileRefusedError as error:
        print(error)
"""


@needs_mounts
@pytest.mark.parametrize("mount", ["mount --bind {outside} {place}", "mount -t tmpfs tmpfs {place}"])
def test_what_is_mounted_in_a_tree_is_not_emptied(tmp_path: Path, mount: str) -> None:
    outside = tmp_path / "outside"
    place = tmp_path / "root" / "tree" / "sub" / "mounted"
    for path in (outside, place):
        path.mkdir(parents=True)
    (outside / "kept").write_bytes(b"kept")
    done = in_own_mounts(
        f"{mount.format(outside=outside, place=place)} && {sys.executable} -c '{_REMOVE}' {tmp_path / 'root'}"
    )
    assert "has a mount point in it; unmount it first" in done
    assert (outside / "kept").read_bytes() == b"kept"
    assert place.is_dir()
