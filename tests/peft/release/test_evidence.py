"""Native evidence: the same release gives the same bytes, everything fits, and damage is never covered up."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from release_scene import BEGAN, GRAPH, RESCUE, SCENES, Scene

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evidence import NativeEvidence, parse_evidence, reference
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


RECORD: dict[str, tuple[object, ...]] = {
    "schema": ("cohesix-peft-recipe-journal/v2", None),
    "state": ("done", None, 1),
    "writer_epoch": (0, 2**64 - 1.0, True, "7"),
    "ticket_id": ("", "a b", None, "-x"),
    "idempotency_key": ("x" * 129, 1),
    "operation_id": ("a/b", "x" * 65),
    "request_sha256": ("ee", None),
    "phases": (None, {}, [None], [{"phase": "deploy", "result": None}], [{"phase": "load"}]),
    "comparison": ({}, []),
    "blocker": ("", "x" * 257, "a\nb", 1),
    "recovery_authority": (None, {}, {"ticket_id": "x"}),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in RECORD.items() for value in values]
)
def test_each_member_of_a_record_is_held_to_its_rule(name: str, value: object) -> None:
    with pytest.raises(DocumentError, match="release record: "):
        ReleaseRecord.of_members(SCENES["rescued"].record.members() | {name: value})


@pytest.mark.parametrize("name", ["", "x", "../" + "a" * 61, "A" * 64, "a" * 63])
def test_only_digests_are_referred_to(name: str) -> None:
    with pytest.raises(PeftError):
        reference(name)
