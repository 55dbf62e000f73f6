"""The directory of native evidence: storing twice changes nothing, and damage is never covered up."""

from __future__ import annotations

import os
import stat
from pathlib import Path  # noqa: TC003 - a fixture's type
from typing import Any

import pytest
from release_scene import SCENES

from ticket_agent.peft.errors import AbsentError, PeftError, RootRefusedError
from ticket_agent.peft.release import evidence_store as module
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.evidence import reference
from ticket_agent.peft.release.evidence_errors import EvidenceStoreError
from ticket_agent.peft.release.evidence_limits import MAX_EVIDENCE_BYTES
from ticket_agent.peft.release.evidence_store import EvidenceStore


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with EvidenceStore.open(tmp_path / "evidence", owner_uid=os.geteuid(), create=True) as opened:
        yield opened


def test_storing_twice_changes_nothing(store: EvidenceStore, tmp_path: Path) -> None:
    data = SCENES["imported"].evidence.encode()
    sha256 = store.store(data)
    assert sha256 == digest(data)
    file = tmp_path / "evidence" / f"{sha256}.json"
    before = file.stat()
    assert store.store(data) == sha256
    after = file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert store.load(sha256) == data
    assert store.digests() == [sha256]
    assert reference(sha256) == f"native_observation=sha256:{sha256}"


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "longer", "link", "directory"])
def test_damage_is_reported_and_kept(store: EvidenceStore, tmp_path: Path, damage: str) -> None:
    data = SCENES["imported"].evidence.encode()
    file = tmp_path / "evidence" / f"{store.store(data)}.json"
    if damage in ("link", "directory"):
        file.rename(tmp_path / "moved")
        file.symlink_to(tmp_path / "moved") if damage == "link" else file.mkdir()
    else:
        changed = {"flip": b"[" + data[1:], "cut": data[:-1], "empty": b"", "longer": data + b"\n"}[damage]
        file.write_bytes(changed)
    for use in (lambda: store.store(data), lambda: store.load(file.stem)):
        with pytest.raises(EvidenceStoreError, match="left as it is"):
            use()
    if damage not in ("link", "directory"):
        assert file.read_bytes() == changed


@pytest.mark.parametrize("size", [0, MAX_EVIDENCE_BYTES + 1])
def test_the_size_is_bounded(store: EvidenceStore, size: int, tmp_path: Path) -> None:
    with pytest.raises(EvidenceStoreError, match=f"has {size}"):
        store.store(b"x" * size)
    assert not list((tmp_path / "evidence").iterdir())
    store.store(b"x" * MAX_EVIDENCE_BYTES)


def test_a_full_directory_takes_only_what_it_has(
    store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.store(b"first")
    monkeypatch.setattr(module, "MAX_EVIDENCE_OBJECTS", 1)
    assert store.store(b"first") == first
    with pytest.raises(EvidenceStoreError, match="holds 1 documents, which is the limit"):
        store.store(b"second")


def test_what_an_interrupted_write_left_counts_for_nothing(store: EvidenceStore, tmp_path: Path) -> None:
    sha256 = digest(b"document")
    (tmp_path / "evidence" / f".{sha256}.json.1.1.partial").write_bytes(b"doc")
    (tmp_path / "evidence" / "notes.txt").write_bytes(b"x")
    assert store.digests() == []
    assert store.foreign() == ["notes.txt"]
    with pytest.raises(AbsentError):
        store.load(sha256)
    assert store.store(b"document") == sha256
    assert store.load(sha256) == b"document"


@pytest.mark.parametrize("name", ["", "x", "../" + "a" * 61, "A" * 64, "a" * 63])
def test_only_digests_are_names(store: EvidenceStore, name: str) -> None:
    with pytest.raises(PeftError):
        store.load(name)


def test_nobody_else_can_look_into_it(store: EvidenceStore, tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    file = folder / f"{store.store(b'document')}.json"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, file)] == [0o700, 0o600]


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o710, 0o770])
def test_a_directory_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence").chmod(mode)
    with pytest.raises(RootRefusedError, match="evidence root"):
        EvidenceStore.open(tmp_path / "evidence", owner_uid=os.geteuid(), create=False)
