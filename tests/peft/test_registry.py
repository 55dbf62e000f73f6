"""What a registry is found to hold, whoever made it and whatever somebody put into it."""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING, Any

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
)
from registry_support import add_base, add_model, set_control

from ticket_agent.peft.directory import Directory
from ticket_agent.peft.errors import (
    FileRefusedError,
    NameRefusedError,
    PeftIoError,
    RegistryError,
    RootRefusedError,
)
from ticket_agent.peft.manifest import BaseManifest, Manifest
from ticket_agent.peft.registry import Registry
from ticket_agent.peft.roots import open_to_read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.peft.registry import Contents, Model


def contents(folder: Path) -> Contents:
    with no_descriptor_leaks(), root(folder) as opened, Registry.open(opened) as registry:
        return registry.contents()


def model(folder: Path, name: str) -> Model:
    with no_descriptor_leaks(), root(folder) as opened, Registry.open(opened) as registry:
        return registry.model(name)


def test_an_empty_root_is_an_empty_registry(tmp_path: Path) -> None:
    found = contents(tmp_path / "r")
    assert (found.models, found.foreign, found.twins) == ((), (), ())
    with root(tmp_path / "r") as opened, Registry.open(opened) as registry:
        assert registry.available is None
        with pytest.raises(RegistryError, match="model m1 is not available"):
            registry.model("m1")
    assert list((tmp_path / "r").iterdir()) == []


def test_models_as_they_are(tmp_path: Path) -> None:
    folder = add_model(tmp_path / "r", "m1", metrics=True)
    add_base(tmp_path / "r", "base-v1")
    os.utime(folder / "manifest.toml", ns=(0, 1_700_000_000_123_456_789))
    base, found = contents(tmp_path / "r").models
    assert isinstance(base.manifest, BaseManifest)
    assert (base.id, base.rank, base.problem) == ("base-v1", None, None)
    assert isinstance(found.manifest, Manifest)
    assert (found.id, found.manifest.base, found.manifest.job) == ("m1", "base-v1", "job-1")
    assert (found.rank, found.problem, found.unfinished) == (8, None, False)
    assert found.bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert found.changed_unix_ms == 1_700_000_000_123
    data = (folder / "manifest.toml").read_bytes()
    assert found.manifest_sha256 == hashlib.sha256(data).hexdigest()
    assert model(tmp_path / "r", "m1") == found


@pytest.mark.parametrize(
    ("lora", "rank"),
    [
        (b'{"rank":16,"alpha":32}', 16),
        (b"{}", None),
        (b'{"rank":0}', None),
        (b'{"rank":true}', None),
        (b'{"rank":"8"}', None),
        (b'{"rank":8,"rank":9}', None),
        (b"[" * 60_000, None),
        (b"\xff", None),
        (b'{"rank":8}' + b" " * 70_000, None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_rank_is_told_only_when_it_is_sure(tmp_path: Path, lora: bytes, rank: int | None) -> None:
    folder = add_model(tmp_path / "r", "m1")
    (folder / "lora.json").write_bytes(lora)
    assert model(tmp_path / "r", "m1").rank == rank


def test_an_import_without_a_manifest_is_unfinished(tmp_path: Path) -> None:
    folder = add_model(tmp_path / "r", "m1")
    (folder / "manifest.toml").unlink()
    os.utime(folder, ns=(0, 5_000_000_000))
    found = model(tmp_path / "r", "m1")
    assert (found.manifest, found.unfinished, found.changed_unix_ms) == (None, True, 5000)
    assert found.problem == "has no manifest: its import was not finished"


def make_link(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


def make_twin(path: Path) -> None:
    path.write_text("[model]\n")
    os.link(path, path.with_name("second-name"))


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def make_unreadable(path: Path) -> None:
    path.write_text("[model\n")


def make_foreign_manifest(path: Path) -> None:
    path.write_text('[model]\nid = "m2"\n')


BAD_MANIFESTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a link": (make_link, "is a symlink, not a regular file"),
    "a directory": (os.mkdir, "is a directory, not a regular file"),
    "a FIFO": (make_fifo, "is a device, FIFO or socket, not a regular file"),
    "a socket": (make_socket, "is a device, FIFO or socket, not a regular file"),
    "hard linked": (make_twin, "has 2 names"),
    "a giant": (make_sparse, "at most 8192 are accepted"),
    "empty": (lambda path: path.touch(), "is empty"),
    "no TOML": (make_unreadable, "is not valid TOML"),
    "another model's": (make_foreign_manifest, "is that of model m2, not of m1"),
}


@pytest.mark.parametrize(("make", "words"), BAD_MANIFESTS.values(), ids=BAD_MANIFESTS)
def test_a_manifest_that_cannot_be_used_hides_no_other_model(
    tmp_path: Path, make: Callable[[Path], Any], words: str
) -> None:
    folder = add_model(tmp_path / "r", "m1")
    (folder / "manifest.toml").unlink()
    make(folder / "manifest.toml")
    add_model(tmp_path / "r", "m2")
    damaged, whole = contents(tmp_path / "r").models
    assert (damaged.id, damaged.manifest, damaged.unfinished) == ("m1", None, False)
    assert damaged.problem is not None
    assert words in damaged.problem
    assert "manifest.toml" not in damaged.problem, "the reader sees the name anyway"
    assert whole.problem is None


FOREIGN: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "a file": ("notes", make_file, "is a regular file, not a model's directory"),
    "a link to a model": ("m2", lambda path: path.symlink_to("m1"), "is a symlink"),
    "a link to the outside": ("m2", lambda path: path.symlink_to("../../canary"), "is a symlink"),
    "a FIFO": ("m2", make_fifo, "is a device, FIFO or socket"),
    "a socket": ("m2", make_socket, "is a device, FIFO or socket"),
    "blanks": ("a b", os.mkdir, "is no model: its name must be 1..=128 ASCII letters"),
    "not ASCII": ("modèle", os.mkdir, "is no model: its name must be"),
    "a leading dash": ("-rf", os.mkdir, "is no model: its name must be"),
    "too long": ("m" * 129, os.mkdir, "is no model: its name must be"),
    "not UTF-8": ("m\udcff", os.mkdir, "is no model: its name must be"),
    "a line break": ("m\nFAIL", os.mkdir, "is no model: its name must be"),
}


@pytest.mark.parametrize(("name", "make", "words"), FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_model_is_named(
    tmp_path: Path, name: str, make: Callable[[Path], Any], words: str
) -> None:
    canary = Canary(tmp_path / "canary")
    add_model(tmp_path / "r", "m1")
    make(tmp_path / "r" / "available" / name)
    found = contents(tmp_path / "r")
    assert [entry.id for entry in found.models] == ["m1"]
    (foreign,) = found.foreign
    assert foreign.name == name
    assert words in foreign.reason
    assert foreign.reason.isprintable()
    canary.check()


@needs_root
def test_a_device_is_foreign_and_not_opened(tmp_path: Path) -> None:
    add_model(tmp_path / "r", "m1")
    make_device(tmp_path / "r" / "available" / "m2")
    (foreign,) = contents(tmp_path / "r").foreign
    assert "is a device" in foreign.reason


def test_reserved_names_are_passed_over(tmp_path: Path) -> None:
    add_model(tmp_path / "r", "m1")
    for name in (".cohesix-import-0123456789abcdef", ".cohesix-x", ".COHESIX-y"):
        (tmp_path / "r" / "available" / name).mkdir()
    found = contents(tmp_path / "r")
    assert ([entry.id for entry in found.models], found.foreign) == (["m1"], ())


def test_ids_that_differ_only_in_case_are_named(tmp_path: Path) -> None:
    for name in ("m1", "M1", "m2"):
        add_model(tmp_path / "r", name)
    found = contents(tmp_path / "r")
    assert [entry.id for entry in found.models] == ["M1", "m1", "m2"]
    assert found.twins == (("M1", "m1"),)


@pytest.mark.parametrize("make", [make_link, make_file, make_fifo, lambda path: path.symlink_to("../canary")])
def test_models_are_in_a_directory_or_nowhere(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    canary = Canary(tmp_path / "canary")
    with root(tmp_path / "r") as opened:
        make(tmp_path / "r" / "available")
        with pytest.raises(FileRefusedError, match=r"available is .*, not a directory"):
            Registry.open(opened)
    canary.check()


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../available/m1", "m\0", "-m", "m" * 129])
def test_no_name_leads_out_of_the_models(tmp_path: Path, name: str) -> None:
    add_model(tmp_path / "r", "m1")
    with root(tmp_path / "r") as opened, Registry.open(opened) as registry, pytest.raises(NameRefusedError):
        registry.model(name)


def test_a_directory_that_cannot_be_listed_is_shown_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(tmp_path / "r", "m1")
    (tmp_path / "r" / "available" / "m0").mkdir()
    real = os.open

    def denied(path: Any, *arguments: Any, **options: Any) -> int:
        if path == "m0":
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", denied)
    found = contents(tmp_path / "r")
    assert [entry.id for entry in found.models] == ["m1"]
    assert [entry.name for entry in found.foreign] == ["m0"]
    assert "Permission denied" in found.foreign[0].reason


def test_looking_changes_nothing(tmp_path: Path) -> None:
    add_model(tmp_path / "r", "m1")
    set_control(tmp_path / "r", "m1", "m1", None)
    (tmp_path / "r").chmod(0o755)
    before = snapshot(tmp_path / "r")
    contents(tmp_path / "r")
    assert snapshot(tmp_path / "r") == before


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o700])
def test_a_reader_need_not_trust_the_root(tmp_path: Path, mode: int) -> None:
    add_model(tmp_path / "shared" / "r", "m1")
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / "shared" / "r").chmod(mode)
    if os.geteuid() == 0:
        os.chown(tmp_path / "shared" / "r", 4321, 4321)
        os.chown(tmp_path / "shared", 4321, 4321)
    with (
        no_descriptor_leaks(),
        open_to_read(tmp_path / "shared" / "r", label="registry root") as opened,
        Registry.open(opened) as registry,
    ):
        assert [entry.id for entry in registry.contents().models] == ["m1"]


@pytest.mark.parametrize("level", ["shared", "shared/r"])
def test_a_reader_follows_no_link_either(tmp_path: Path, level: str) -> None:
    add_model(tmp_path / "shared" / "r", "m1")
    path = tmp_path / level
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with no_descriptor_leaks(), pytest.raises(RootRefusedError, match="is a symlink; name the real path"):
        open_to_read(tmp_path / "shared" / "r", label="registry root")


@pytest.mark.parametrize("path", ["relative/r", "/", "/a/../b", "/a/./b"])
def test_a_reader_needs_a_plain_path(path: str) -> None:
    with pytest.raises(RootRefusedError):
        open_to_read(path, label="registry root")


def test_a_reader_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(RootRefusedError, match="does not exist"):
        open_to_read(tmp_path / "r", label="registry root")
    assert list(tmp_path.iterdir()) == []


def test_a_model_removed_under_the_eyes_of_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(tmp_path / "r", "m1")
    add_model(tmp_path / "r", "m2")
    real = Directory.names

    def names(directory: Directory) -> list[str]:
        found = real(directory)
        if "m1" in found:
            shutil.rmtree(tmp_path / "r" / "available" / "m1")
        return found

    monkeypatch.setattr(Directory, "names", names)
    assert [entry.id for entry in contents(tmp_path / "r").models] == ["m2"]


def test_a_failing_disk_is_not_an_empty_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_model(tmp_path / "r", "m1")

    def broken(fd: int) -> Any:
        raise OSError(5, "Input/output error")

    with root(tmp_path / "r") as opened, Registry.open(opened) as registry, monkeypatch.context() as patch:
        patch.setattr(os, "scandir", broken)
        with pytest.raises(PeftIoError, match=r"listing .*available failed: Input/output error"):
            registry.contents()
