"""Swaps between looking and using: first placed exactly, then by a second process as fast as it can."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from peft_support import (
    Canary,
    make_device,
    make_fifo,
    make_socket,
    needs_root,
    no_descriptor_leaks,
    root,
)

from ticket_agent.peft.directory import Directory, Kind
from ticket_agent.peft.errors import FileRefusedError, PeftError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path / "outside")


@pytest.fixture
def here(folder: Path, canary: Canary) -> Iterator[Directory]:
    with no_descriptor_leaks():
        with root(folder) as directory:
            yield directory
        canary.check()


def swap_after_the_look(
    monkeypatch: pytest.MonkeyPatch, place: Path, make: Callable[[Path], None] | None
) -> None:
    """Let the next look at ``place`` be followed at once by somebody who puts something else there."""
    real = Directory.kind

    def kind(self: Directory, name: str) -> Kind | None:
        found = real(self, name)
        if name == place.name:
            place.rename(place.parent / "moved-away")
            if make is not None:
                make(place)
        return found

    monkeypatch.setattr(Directory, "kind", kind)


def _link_to_secret(path: Path) -> None:
    path.symlink_to("../outside/secret")


def _link_to_fifo(path: Path) -> None:
    path.symlink_to("../outside/fifo")


def _link_to_outside(path: Path) -> None:
    path.symlink_to("../outside", target_is_directory=True)


def _hard_link(path: Path) -> None:
    path.hardlink_to(path.parent / "moved-away")


def _directory(path: Path) -> None:
    path.mkdir()


def _file(path: Path) -> None:
    path.write_bytes(b"x")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_link_to_secret, "was replaced while it was opened"),
        (_link_to_fifo, "was replaced while it was opened"),
        (_hard_link, "has 2 names"),
        (_directory, "is a directory"),
        (make_fifo, "is a device, FIFO or socket"),
        (make_socket, "was replaced while it was opened"),
        pytest.param(make_device, "is a device, FIFO or socket", marks=needs_root),
        (None, "was removed while it was opened"),
    ],
)
def test_a_file_swapped_between_look_and_opening(
    here: Directory,
    folder: Path,
    make: Callable[[Path], None] | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "lora.json").write_bytes(b"good")
    swap_after_the_look(monkeypatch, folder / "lora.json", make)
    with pytest.raises(FileRefusedError, match=f"^registry root {folder}/lora.json {reason}"):
        here.open_file("lora.json", max_bytes=100)


@pytest.mark.parametrize(
    "make",
    [_link_to_outside, _file, make_fifo, make_socket, pytest.param(make_device, marks=needs_root), None],
)
def test_a_directory_swapped_between_look_and_opening(
    here: Directory, folder: Path, make: Callable[[Path], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "available").mkdir()
    swap_after_the_look(monkeypatch, folder / "available", make)
    with pytest.raises(FileRefusedError, match=f"^registry root {folder}/available was"):
        here.open_dir("available")


def test_a_link_that_comes_before_a_write_is_replaced_and_not_written_through(
    here: Directory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "active").write_bytes(b"m1\n")
    swap_after_the_look(monkeypatch, folder / "active", _link_to_secret)
    here.write_file("active", b"m2\n")
    assert not (folder / "active").is_symlink()
    assert (folder / "active").read_bytes() == b"m2\n"


_FLIP = """
import os, sys
name, good, bad = sys.argv[1:4]
os.symlink(bad, "bad")
print("ready", flush=True)
# Both change places in one step each time, so that there is always something under the name.
import ctypes
exchange = ctypes.CDLL(None).renameat2
while True:
    for _ in range(1000):
        if exchange(-100, name.encode(), -100, b"bad", 2):
            sys.exit("no exchange here")
    if os.getppid() == 1:
        break
"""


@contextmanager
def flipping(folder: Path, name: str, bad: str) -> Iterator[subprocess.Popen[str]]:
    """A second process that swaps an entry for a link and back, without a pause, for the body."""
    process = subprocess.Popen(
        [sys.executable, "-c", _FLIP, name, "", bad], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def _race(process: subprocess.Popen[str], look: Callable[[], bytes]) -> tuple[int, dict[str, int]]:
    """Look until both outcomes were seen often; counts of the good ones, and of the refusals by their end."""
    good = 0
    refusals: dict[str, int] = {}
    for _ in range(200_000):
        try:
            assert look() == b"good"
            good += 1
        except PeftError as error:
            end = str(error).rsplit(" ", 4)[-1]
            refusals[end] = refusals.get(end, 0) + 1
        if good >= 300 and sum(refusals.values()) >= 300:
            break
    assert process.poll() is None, "the other process gave up"
    return good, refusals


def test_a_file_that_somebody_swaps_all_the_time(here: Directory, folder: Path) -> None:
    (folder / "lora.json").write_bytes(b"good")
    with flipping(folder, "lora.json", "../outside/secret") as process:
        good, refusals = _race(process, lambda: here.read_file("lora.json", max_bytes=100))
    assert good >= 300
    assert sum(refusals.values()) >= 300


def test_a_directory_that_somebody_swaps_all_the_time(here: Directory, folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "secret").write_bytes(b"good")

    def look() -> bytes:
        with here.open_dir("model") as model:
            return model.read_file("secret", max_bytes=100)

    with flipping(folder, "model", "../outside") as process:
        good, refusals = _race(process, look)
    assert good >= 300
    assert sum(refusals.values()) >= 300


def test_a_tree_that_somebody_swaps_all_the_time(here: Directory, folder: Path) -> None:
    """Whatever the removals meet, what the link points to stays."""
    for number in range(5):
        tree = folder / f"tree-{number}"
        (tree / "sub").mkdir(parents=True)
        (tree / "sub" / "secret").write_bytes(b"good")
        with flipping(tree, "sub", "../../outside"), suppress(PeftError):
            here.remove_tree(tree.name)
