"""Native evidence: the same release gives the same bytes, everything fits, and damage is never covered up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path  # noqa: TC003 - a fixture's type
from typing import Any

import pytest
from peft_support import root
from release_scene import BEGAN, GRAPH, RESCUE, SCENES, Scene

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.release import evidence as module
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evidence import EvidenceStore, NativeEvidence, parse_evidence, reference
from ticket_agent.peft.release.evidence_errors import EvidenceStoreError
from ticket_agent.peft.release.evidence_limits import MAX_EVIDENCE_BYTES
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.release_record import ReleaseRecord


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_evidence_comes_back_as_it_was(scene: Scene) -> None:
    evidence = scene.evidence
    data = evidence.encode()
    assert parse_evidence(data) == evidence
    assert NativeEvidence(provider_graph_sha256=GRAPH, record=scene.record).encode() == data


def test_the_document_is_what_its_readers_know() -> None:
    document = json.loads(SCENES["imported"].evidence.encode())
    assert list(document) == [
        "schema",
        "proof_class",
        "authoritative",
        "worker_proof",
        "ticket_id",
        "idempotency_key",
        "action",
        "writer_epoch",
        "provider_graph_sha256",
        "observed_unix_ms",
        "observation",
    ]
    assert document["schema"] == "cohesix-native-provider-evidence/v1"
    assert document["proof_class"] == "native_provider_operation"
    assert (document["authoritative"], document["worker_proof"]) == (False, False)
    assert document["action"] == "peft.release"
    assert document["observed_unix_ms"] == BEGAN + 1000 * list(Phase).index(Phase.PROMOTE)
    assert list(document["observation"]) == [
        "schema",
        "operation_id",
        "request_sha256",
        "ticket_id",
        "idempotency_key",
        "writer_epoch",
        "state",
        "phases",
        "comparison",
        "blocker",
    ]


def test_a_recovery_answers_its_own_ticket() -> None:
    document = json.loads(SCENES["rescued"].evidence.encode())
    assert document["ticket_id"] == RESCUE.ticket_id
    assert document["observation"]["ticket_id"] != RESCUE.ticket_id
    assert document["observation"]["recovery_authority"]["ticket_id"] == RESCUE.ticket_id


@pytest.mark.parametrize("state", [ReleaseState.RUNNING, ReleaseState.AMBIGUOUS])
def test_there_is_no_evidence_of_a_release_that_has_not_ended(state: ReleaseState) -> None:
    with pytest.raises(DocumentError, match="has ended"):
        replace(Scene(), state=state).evidence  # noqa: B018 - building it is the test


@pytest.mark.parametrize("scene", [Scene(stops_before=Phase.VALIDATE), Scene(lost=Phase.VALIDATE)])
def test_there_is_no_evidence_of_nothing(scene: Scene) -> None:
    with pytest.raises(DocumentError, match="nothing was observed"):
        replace(scene, state=ReleaseState.FAILED).evidence  # noqa: B018


CHANGES: dict[str, Any] = {
    "authoritative": True,
    "worker_proof": 0,
    "action": "peft.import",
    "ticket_id": "other",
    "observed_unix_ms": BEGAN,
    "schema": "x",
    "proof_class": "y",
    "extra": 1,
}


@pytest.mark.parametrize(("name", "value"), CHANGES.items())
def test_a_changed_member_is_refused(name: str, value: object) -> None:
    document = json.loads(SCENES["imported"].evidence.encode()) | {name: value}
    with pytest.raises(DocumentError):
        parse_evidence(json.dumps(document, separators=(",", ":")).encode())


def test_a_record_holds_only_its_own_observations() -> None:
    record = SCENES["imported"].record
    first, second, *rest = record.phases
    foreign = replace(first.result, operation_id="another") if first.result else None
    with pytest.raises(DocumentError, match="another release"):
        replace(record, phases=(replace(first, result=foreign), second, *rest))
    with pytest.raises(DocumentError, match="holds the observation of"):
        replace(record, phases=(replace(first, result=second.result), *rest))
    with pytest.raises(DocumentError, match="at most once"):
        replace(record, phases=(first, first))


def test_a_record_of_something_else_is_refused() -> None:
    record = SCENES["imported"].record.members()
    values: list[object] = [None, [], {}, {"schema": "x"}, record | {"phases": [1]}, record | {"x": 1}]
    for value in values:
        with pytest.raises(DocumentError):
            ReleaseRecord.of_members(value)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with root(tmp_path / "evidence") as directory:
        yield EvidenceStore(directory)


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
    with pytest.raises(PeftError):
        reference(name)
