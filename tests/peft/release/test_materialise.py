from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from peft_support import Canary, make_fifo, no_descriptor_leaks, snapshot
from private_roots import opened, store_bundle
from release_support import sha

from ticket_agent.peft.errors import AbsentError, FileRefusedError
from ticket_agent.peft.release.bundle import BundleManifest, encode_bundle
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.root_errors import ObjectCorruptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.peft.release.private_root import PrivateRoot

FILES = {"config.json": b'{"a":1}', "model.safetensors": b"w" * 600_000, "README.md": b"# x\n"}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[PrivateRoot]:
    canary = Canary(tmp_path / "outside")
    with no_descriptor_leaks(), opened(tmp_path / "private") as made:
        yield made
    canary.check()


def built(here: PrivateRoot) -> tuple[str, Path]:
    sha256 = store_bundle(here, FILES)
    here.materialise(sha256)
    return sha256, Path(here.bundle_path(sha256))


def test_a_bundle_becomes_a_directory(here: PrivateRoot) -> None:
    sha256 = store_bundle(here, FILES)
    manifest = here.materialise(sha256)
    path = Path(here.bundle_path(sha256))
    assert digest(encode_bundle(manifest)) == sha256
    assert {entry.name: entry.read_bytes() for entry in path.iterdir()} == FILES
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(entry.stat().st_mode) == 0o600 for entry in path.iterdir())
    before = snapshot(path)
    here.materialise(sha256)
    assert snapshot(path) == before


def _swap_for_link(path: Path) -> None:
    (path / "config.json").unlink()
    (path / "config.json").symlink_to(path.parents[2] / "outside" / "secret")


def _second_name(path: Path) -> None:
    os.link(path / "config.json", path.parent / "second")


def _fifo(path: Path) -> None:
    (path / "config.json").unlink()
    make_fifo(path / "config.json")


HOSTILE: dict[str, Callable[[Path], object]] = {
    "changed": lambda path: (path / "config.json").write_bytes(b'{"a":2}'),
    "grown": lambda path: (path / "config.json").write_bytes(b'{"a":1} '),
    "emptied": lambda path: (path / "config.json").write_bytes(b""),
    "missing": lambda path: (path / "config.json").unlink(),
    "extra": lambda path: (path / "sitecustomize.py").write_bytes(b"x"),
    "hidden extra": lambda path: (path / ".x").mkdir(),
    "link": _swap_for_link,
    "second name": _second_name,
    "fifo": _fifo,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_directory_that_was_tampered_with_is_refused(here: PrivateRoot, kind: str) -> None:
    sha256, path = built(here)
    HOSTILE[kind](path)
    before = snapshot(path.parent)
    with pytest.raises(FileRefusedError) as caught:
        here.materialise(sha256)
    assert str(caught.value).isprintable()
    assert snapshot(path.parent) == before


def test_a_link_in_place_of_the_directory(here: PrivateRoot) -> None:
    sha256, path = built(here)
    shutil.rmtree(path)
    path.symlink_to(path.parents[1] / "outside", target_is_directory=True)
    with pytest.raises(FileRefusedError, match="a symlink"):
        here.materialise(sha256)


def test_a_removed_directory_is_built_again(here: PrivateRoot) -> None:
    sha256, path = built(here)
    shutil.rmtree(path)
    here.materialise(sha256)
    assert (path / "config.json").read_bytes() == FILES["config.json"]


def test_a_corrupt_object_builds_nothing(here: PrivateRoot) -> None:
    sha256 = store_bundle(here, FILES)
    objects = Path(here.location) / "objects"
    (objects / digest(FILES["model.safetensors"])).write_bytes(b"v" * 600_000)
    with pytest.raises(ObjectCorruptError):
        here.materialise(sha256)
    assert not list((Path(here.location) / "bundles").iterdir())


def test_a_missing_object_builds_nothing(here: PrivateRoot) -> None:
    sha256 = store_bundle(here, FILES)
    (Path(here.location) / "objects" / digest(FILES["config.json"])).unlink()
    with pytest.raises(AbsentError, match=r"config\.json of a bundle"):
        here.materialise(sha256)
    assert not list((Path(here.location) / "bundles").iterdir())


def test_what_is_no_manifest(here: PrivateRoot) -> None:
    with pytest.raises(AbsentError):
        here.materialise(sha("absent"))
    with pytest.raises(DocumentError, match="bundle manifest"):
        here.materialise(here.objects.store(b'{"files":{}}'))


def test_files_keep_the_bound_of_their_kind(here: PrivateRoot) -> None:
    sha256 = sha("large")
    with (Path(here.location) / "objects" / sha256).open("wb") as file:
        file.truncate((32 << 20) + 1)
    manifest = BundleManifest(
        files=(("adapter_model.safetensors", sha256),), source="s", revision="r", license_ref="l"
    )
    with pytest.raises(FileRefusedError, match="at most 33554432"):
        here.materialise(here.objects.store(encode_bundle(manifest)))
