"""Every file of a registry against its manifest: nothing damaged passes, nothing whole fails."""

from __future__ import annotations

import hashlib
import os
import shutil
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from peft_support import (
    Canary,
    make_device,
    make_fifo,
    make_socket,
    needs_root,
    no_descriptor_leaks,
    root,
    snapshot,
    until_a_change_shows,
)
from registry_support import add_base, add_model, artifact, manifest_of, set_control

from ticket_agent.peft.directory import Directory
from ticket_agent.peft.errors import (
    ArtifactRefusedError,
    FileChangedError,
    FileRefusedError,
    NameRefusedError,
    PeftIoError,
    RegistryError,
)
from ticket_agent.peft.manifest import BaseManifest, Manifest, render
from ticket_agent.peft.registry import Registry
from ticket_agent.peft.verify import Intact, Verdict, require_intact, verify, verify_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def verdicts(folder: Path) -> list[Verdict]:
    with no_descriptor_leaks(), root(folder) as opened, Registry.open(opened) as registry:
        return list(verify(registry))


def failures(folder: Path) -> dict[str, str]:
    return {verdict.file: verdict.reason for verdict in verdicts(folder) if not verdict.ok}


def notes(folder: Path) -> dict[str, str]:
    return {verdict.file: verdict.reason for verdict in verdicts(folder) if verdict.ok and verdict.reason}


def intact(folder: Path, model: str) -> Intact:
    with no_descriptor_leaks(), root(folder) as opened, Registry.open(opened) as registry:
        return require_intact(registry, model)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A registry with two models, of which one was active before the other."""
    registry = tmp_path / "r"
    add_model(registry, "m1")
    add_model(registry, "m2", metrics=True)
    set_control(registry, "m2", "m2", "m1")
    return registry


def test_a_whole_registry(folder: Path) -> None:
    before = snapshot(folder)
    assert [(verdict.file, verdict.ok, verdict.reason) for verdict in verdicts(folder)] == [
        ("active", True, ""),
        ("active_state.toml", True, ""),
        ("available/m1/manifest.toml", True, ""),
        ("available/m1/adapter.safetensors", True, ""),
        ("available/m1/lora.json", True, ""),
        ("available/m2/manifest.toml", True, ""),
        ("available/m2/adapter.safetensors", True, ""),
        ("available/m2/lora.json", True, ""),
        ("available/m2/metrics.json", True, ""),
    ]
    assert snapshot(folder) == before


def test_an_intact_model_comes_with_its_manifest(folder: Path) -> None:
    found = intact(folder, "m2")
    assert isinstance(found.manifest, Manifest)
    assert found.manifest.model == "m2"
    data = (folder / "available" / "m2" / "manifest.toml").read_bytes()
    assert found.manifest_sha256 == hashlib.sha256(data).hexdigest()


def test_one_model_alone(folder: Path) -> None:
    (folder / "available" / "m1" / "lora.json").unlink()
    with root(folder) as opened, Registry.open(opened) as registry:
        assert all(verdict.ok for verdict in verify_model(registry, "m2"))
        failed = [verdict.file for verdict in verify_model(registry, "m1") if not verdict.ok]
        assert failed == ["available/m1/lora.json"]
        with pytest.raises(RegistryError, match="model m3 is not available"):
            list(verify_model(registry, "m3"))


@pytest.mark.parametrize("name", ["adapter.safetensors", "lora.json", "metrics.json"])
def test_no_flipped_bit_passes(folder: Path, name: str) -> None:
    path = folder / "available" / "m2" / name
    whole = path.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(_flipped(whole, position))
        assert set(failures(folder)) == {f"available/m2/{name}"}, position


def test_no_flipped_bit_of_a_manifest_passes_where_it_tells_about_the_model(folder: Path) -> None:
    path = folder / "available" / "m2" / "manifest.toml"
    whole = path.read_bytes()
    told, silent = whole.partition(b"policy_sha256")[0], (b"base", b"job_id", b"approval")
    for position in range(0, len(told), 5):
        line = whole[whole.rfind(b"\n", 0, position) + 1 :]
        if not line.startswith(silent):
            path.write_bytes(_flipped(whole, position))
            assert failures(folder), position


def _flipped(whole: bytes, position: int) -> bytes:
    data = bytearray(whole)
    data[position] ^= 1 << position % 8
    return bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def change(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def remove(path: Path) -> None:
    path.unlink()


def replaced_by(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def link_to_same(path: Path) -> None:
    """The very bytes, but through a link."""
    other = path.with_name("elsewhere")
    path.rename(other)
    path.symlink_to(other)


def link_outside(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parents[3] / "canary" / "secret")


def hard_link(path: Path) -> None:
    os.link(path, path.parents[2] / "second-name")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 41)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut off": (cut, "bytes; its manifest says"),
    "longer": (grow, "bytes; its manifest says"),
    "another byte": (change, "has SHA-256 "),
    "missing": (remove, "is missing; the manifest names it"),
    "empty": (replaced_by(lambda path: path.touch()), "is empty"),
    "a directory": (replaced_by(os.mkdir), "is a directory, not a regular file"),
    "a FIFO": (replaced_by(make_fifo), "is a device, FIFO or socket"),
    "a socket": (replaced_by(make_socket), "is a device, FIFO or socket"),
    "a link to its bytes": (link_to_same, "is a symlink"),
    "a link to the outside": (link_outside, "is a symlink"),
    "a second name": (hard_link, "has 2 names (hard links)"),
    "a sparse giant": (sparse, "are accepted"),
}


@pytest.mark.parametrize("name", ["adapter.safetensors", "lora.json", "metrics.json"])
@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named_and_keeps_a_model_from_being_used(
    folder: Path, tmp_path: Path, damage: Callable[[Path], Any], words: str, name: str
) -> None:
    canary = Canary(tmp_path / "canary")
    damage(folder / "available" / "m2" / name)
    before = snapshot(folder)
    failed = failures(folder)
    assert words in failed[f"available/m2/{name}"]
    assert set(failed) <= {f"available/m2/{name}", "available/m2/elsewhere"}
    with pytest.raises(ArtifactRefusedError, match="model m2 is damaged: ") as refused:
        intact(folder, "m2")
    assert name in str(refused.value)
    assert words in str(refused.value)
    assert str(refused.value).isprintable()
    intact(folder, "m1")
    assert snapshot(folder) == before
    canary.check()


@needs_root
def test_a_device_is_not_opened(folder: Path) -> None:
    path = folder / "available" / "m1" / "lora.json"
    path.unlink()
    make_device(path)
    assert "is a device" in failures(folder)["available/m1/lora.json"]


@pytest.mark.parametrize("text", ["[model\n", '[model]\nid = "m2"\n', "x = 1\n"])
def test_a_damaged_manifest_fails_and_so_does_what_it_named(folder: Path, text: str) -> None:
    (folder / "available" / "m1" / "manifest.toml").write_text(text)
    failed = failures(folder)
    assert set(failed) == {
        "active_state.toml",
        "available/m1/manifest.toml",
        "available/m1/adapter.safetensors",
        "available/m1/lora.json",
    }
    assert failed["active_state.toml"] == "names m1, which is not an available model: no way back"
    with pytest.raises(ArtifactRefusedError, match=r"model m1 is damaged: manifest\.toml: "):
        intact(folder, "m1")


def test_an_unfinished_import_is_no_model(folder: Path) -> None:
    (folder / "available" / "m3").mkdir()
    (folder / "available" / "m3" / "adapter.safetensors").write_bytes(b"x")
    assert failures(folder) == {}
    assert notes(folder) == {"available/m3": "an import that was not finished; not a model"}
    with pytest.raises(RegistryError, match="model m3 is not available: its import was not finished"):
        intact(folder, "m3")


def test_a_model_that_is_not_there(folder: Path) -> None:
    with pytest.raises(RegistryError, match="model m9 is not available"):
        intact(folder, "m9")
    with pytest.raises(NameRefusedError):
        intact(folder, "../m1")


def test_a_base_model_is_intact_when_it_has_no_files(folder: Path) -> None:
    base = add_base(folder, "base-v1")
    assert isinstance(intact(folder, "base-v1").manifest, BaseManifest)
    assert failures(folder) == {}
    (base / "adapter.safetensors").write_bytes(b"x")
    assert failures(folder) == {
        "available/base-v1/adapter.safetensors": "foreign: the manifest does not name it"
    }
    with pytest.raises(ArtifactRefusedError, match=r"its manifest is silent about adapter\.safetensors"):
        intact(folder, "base-v1")


def test_metrics_that_the_manifest_does_not_name_are_foreign(folder: Path) -> None:
    (folder / "available" / "m1" / "metrics.json").write_text("{}")
    assert failures(folder) == {"available/m1/metrics.json": "foreign: the manifest does not name it"}


@pytest.mark.parametrize("name", ["adapter_model.bin", "notes", "a\nb", "m\udcff", ".hidden"])
def test_foreign_files_of_a_model_are_named(folder: Path, name: str) -> None:
    (folder / "available" / "m1" / name).write_text("x")
    assert failures(folder) == {f"available/m1/{name}": "foreign: the manifest does not name it"}


def test_foreign_entries_beside_the_models_are_named(folder: Path) -> None:
    (folder / "available" / "readme").write_text("x")
    (folder / "available" / "m3").symlink_to("m1")
    assert failures(folder) == {
        "available/readme": "is a regular file, not a model's directory",
        "available/m3": "is a symlink, not a model's directory",
    }


def test_names_that_differ_only_in_case_are_named(folder: Path) -> None:
    add_model(folder, "M1")
    assert failures(folder) == {"available/m1": "differs from M1 only in upper and lower case"}


LEFTOVERS = (".adapter.safetensors.12.3.partial", "adapter.safetensors.partial", "manifest.partial")


def test_leftovers_do_no_harm(folder: Path) -> None:
    for name in LEFTOVERS:
        (folder / "available" / "m1" / name).write_text("x")
    for name in (".active.1.2.partial", "active.partial"):
        (folder / name).write_text("x")
    (folder / ".cohesix-import-0123456789abcdef").mkdir()
    (folder / ".cohesix-registry.lock").touch()
    (folder / "readme").write_text("x")
    assert failures(folder) == {}
    assert set(notes(folder)) == {
        *(f"available/m1/{name}" for name in LEFTOVERS),
        ".active.1.2.partial",
        "active.partial",
        ".cohesix-import-0123456789abcdef",
        "readme",
    }


CONTROL = {
    ("m3", "m3", None): {"active": "names m3, which is not an available model"},
    ("m1", "m2", "m1"): {
        "active_state.toml": "does not agree with active, which counts (active=m1 current=m2 previous=m1)"
    },
    ("m1", "m1", "m3"): {"active_state.toml": "names m3, which is not an available model: no way back"},
    ("m1", None, None): {},
    ("m1", "m1", ""): {},
    (None, None, None): {},
    (None, "m1", None): {
        "active_state.toml": "does not agree with active, which counts (active=none current=m1 previous=none)"
    },
}


@pytest.mark.parametrize(("control", "expected"), CONTROL.items(), ids=str)
def test_the_control_files_are_checked_against_the_models(
    folder: Path, control: tuple[str | None, ...], expected: dict[str, str]
) -> None:
    pointer, current, previous = control
    set_control(folder, pointer, current, previous)
    assert failures(folder) == expected


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("active", b"../m1\n", "must be 1..=128"),
        ("active", b"\xff", "is not UTF-8 text"),
        ("active", b"m" * 200, "at most 129 are accepted"),
        ("active_state.toml", b"current = m2", "is not valid TOML"),
        ("active_state.toml", b"c" * 5000, "at most 4096 are accepted"),
    ],
)
def test_damaged_control_files(folder: Path, name: str, data: bytes, words: str) -> None:
    (folder / name).write_bytes(data)
    failed = failures(folder)
    assert set(failed) == {name}
    assert words in failed[name]


def test_a_file_that_changes_while_it_is_hashed_is_not_right(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "available" / "m1" / "adapter.safetensors"
    until_a_change_shows(path)
    real = os.preadv

    def reading(fd: int, buffers: Any, offset: int) -> int:
        count = real(fd, buffers, offset)
        if count and os.path.samestat(os.fstat(fd), path.stat()):
            os.utime(path, ns=(1, 1))
        return count

    monkeypatch.setattr(os, "preadv", reading)
    assert "was changed while it was read" in failures(folder)["available/m1/adapter.safetensors"]
    until_a_change_shows(path)
    with pytest.raises(FileChangedError, match="let its writer finish first"):
        intact(folder, "m1")


def test_a_failing_disk_is_told_as_such_and_not_as_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(PeftIoError, match="Input/output error"):
        intact(folder, "m1")
    assert "Input/output error" in failures(folder)["active"]


def test_a_model_that_is_removed_meanwhile_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Registry.contents

    def contents(registry: Registry) -> Any:
        found = real(registry)
        shutil.rmtree(folder / "available" / "m1")
        return found

    monkeypatch.setattr(Registry, "contents", contents)
    assert "model m1 is not available" in failures(folder)["available/m1"]


def test_hashing_takes_little_memory(tmp_path: Path) -> None:
    data = os.urandom(8 << 20)
    model = add_model(tmp_path / "r", "m1")
    (model / "adapter.safetensors").write_bytes(data)
    files = {"adapter.safetensors": data, "lora.json": (model / "lora.json").read_bytes()}
    (model / "manifest.toml").write_bytes(render(manifest_of("m1", files)))
    del files, data
    tracemalloc.start()
    try:
        assert failures(tmp_path / "r") == {}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


def test_a_manifest_swapped_for_that_of_another_model_is_refused(folder: Path) -> None:
    data = (folder / "available" / "m2" / "manifest.toml").read_bytes()
    (folder / "available" / "m1" / "manifest.toml").write_bytes(data)
    with pytest.raises(ArtifactRefusedError, match="is that of model m2, not of m1"):
        intact(folder, "m1")


def test_a_directory_swapped_for_a_link_is_not_followed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = Canary(tmp_path / "canary")
    add_model(tmp_path / "outside", "m1")
    real = Directory.kind

    def kind(directory: Directory, name: str) -> Any:
        found = real(directory, name)
        path = folder / "available" / "m1"
        if name == "m1" and not path.is_symlink():
            path.rename(tmp_path / "taken")
            path.symlink_to(tmp_path / "outside" / "available" / "m1")
        return found

    monkeypatch.setattr(Directory, "kind", kind)
    with root(folder) as opened, Registry.open(opened) as registry, pytest.raises(FileRefusedError):
        require_intact(registry, "m1")
    canary.check()


def test_the_digest_of_the_support_is_the_real_one() -> None:
    assert artifact(b"").sha256 == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
