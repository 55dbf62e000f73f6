"""Files that are replaced as a whole, by whoever holds the lock, in the moment in which others read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from private_roots import opened
from release_support import base_state, promoted, sha
from serving_support import instance

from ticket_agent.peft.directory import Directory
from ticket_agent.peft.errors import AbsentError, FileChangedError
from ticket_agent.peft.release.markers import Blocker, Owner, RuntimeSelection
from ticket_agent.peft.release.serving_pointer import ServingPointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.peft.release.private_root import PrivateRoot

BASE = base_state()
NEXT = promoted(BASE, sha("one"))
OWNER = Owner(operation_id="release-one", request_sha256=sha("request"))
BLOCKER = Blocker(operation_id="release-one", request_sha256=sha("request"), reason="x", since_unix_ms=1)
RUNTIME = RuntimeSelection(bundle_sha256=sha("bundle"), adapter_sha256=None)
POINTER = ServingPointer.of(instance(1, port=8001))


Case: TypeAlias = "tuple[Callable[[PrivateRoot], object], str, object]"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[PrivateRoot]:
    with opened(tmp_path / "root") as root:
        root.control.initialise(BASE)
        root.control.select_runtime(RUNTIME)
        root.control.block(BLOCKER)
        root.control._root.write_file("active-release.json", OWNER.encode())
        root.pointer.move(None, POINTER)
        yield root


def accepted(root: PrivateRoot) -> object:
    return root.control.accepted()


def runtime(root: PrivateRoot) -> object:
    return root.control.runtime()


def owner(root: PrivateRoot) -> object:
    return root.control.owner()


def blocker(root: PrivateRoot) -> object:
    return root.control.blocker()


def pointer(root: PrivateRoot) -> object:
    return root.pointer.read()


READS: list[Case] = [
    (accepted, "accepted.json", BASE),
    (runtime, "runtime.json", RUNTIME),
    (owner, "active-release.json", OWNER),
    (blocker, "release-blocked.json", BLOCKER),
    (pointer, "serving.json", POINTER),
]


class Meanwhile:
    """Something that is done, so many times, right after a file of that name was opened."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, name: str, do: Callable[[], None], times: int
    ) -> None:
        self.left = times
        real = Directory._open

        def opening(directory: Directory, entry: str, *details: Any) -> int:
            fd = real(directory, entry, *details)
            if entry == name and self.left:
                self.left -= 1
                do()
            return fd

        monkeypatch.setattr(Directory, "_open", opening)


@pytest.mark.parametrize("case", READS, ids=lambda case: case[1])
@pytest.mark.parametrize("times", [1, 5])
def test_whoever_reads_what_is_replaced_gets_one_of_the_two(
    case: Case, times: int, here: PrivateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, name, value = case
    path = Path(here.location) / name

    def replaced() -> None:
        new = path.with_name("new")
        new.write_bytes(path.read_bytes())
        new.rename(path)

    meanwhile = Meanwhile(monkeypatch, name, replaced, times)
    assert read(here) == value
    assert meanwhile.left == 0


@pytest.mark.parametrize("case", READS[2:4], ids=lambda case: case[1])
def test_a_marker_that_is_taken_away_in_that_moment_is_not_there(
    case: Case, here: PrivateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, name, _ = case
    Meanwhile(monkeypatch, name, (Path(here.location) / name).unlink, 1)
    assert read(here) is None


def test_what_is_replaced_each_time_is_not_read_for_ever(
    here: PrivateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(here.location) / "accepted.json"

    def replaced() -> None:
        path.with_name("new").write_bytes(path.read_bytes())
        path.with_name("new").rename(path)

    Meanwhile(monkeypatch, "accepted.json", replaced, 1000)
    with pytest.raises(FileChangedError):
        here.control.accepted()


def test_what_was_never_there_is_absent(tmp_path: Path) -> None:
    with opened(tmp_path / "root") as root:
        for read in (root.control.accepted, root.control.runtime):
            with pytest.raises(AbsentError):
                read()
        assert (root.control.owner(), root.control.blocker(), root.pointer.read()) == (None, None, None)
