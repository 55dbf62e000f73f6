"""What a phase says about itself: one spelling, its own release, nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from release_scene import Scene

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.observation import PhaseObservation, parse_observation
from ticket_agent.peft.release.phases import Phase, forward_phases
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.release.spelled import spell

OBSERVATION = Scene().observation(Phase.SCAN)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def test_the_orders_of_phases() -> None:
    after = ("evaluate", "scan", "stage", "load", "canary", "promote")
    assert forward_phases(Entry.IMPORT) == ("validate", *after)
    assert forward_phases(Entry.TRAIN) == ("validate", "train", *after)


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_an_observation_comes_back_as_it_was(detail: dict[str, Any]) -> None:
    observation = replace(OBSERVATION, detail=detail)
    assert parse_observation(observation.encode()) == observation
    assert PhaseObservation.of_members(observation.members()) == observation


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_our_error(data: bytes) -> None:
    with pytest.raises(PeftError):
        parse_observation(data)


CHANGES: dict[str, Any] = {
    "operation_id": "a/b",
    "request_sha256": "AA" * 32,
    "phase": "deploy",
    "native_identity": "",
    "completed_unix_ms": 0,
    "succeeded": 1,
    "detail": [],
    "extra": None,
}


@pytest.mark.parametrize(("name", "value"), CHANGES.items())
def test_other_members_are_refused(name: str, value: object) -> None:
    document = json.loads(OBSERVATION.encode()) | {name: value}
    with pytest.raises(DocumentError, match=f"observation: .*{name}"):
        parse_observation(spell(document))


@pytest.mark.parametrize("name", OBSERVATION.members())
def test_each_member_must_be_there(name: str) -> None:
    document = json.loads(OBSERVATION.encode())
    del document[name]
    with pytest.raises(DocumentError, match=f"has no member observation.{name}"):
        parse_observation(spell(document))


@pytest.mark.parametrize(
    "data",
    [
        OBSERVATION.encode() + b"\n",
        json.dumps(OBSERVATION.members()).encode(),
        OBSERVATION.encode().replace(b"1111", b"\\u00311111"[:10], 1),
    ],
)
def test_another_spelling_is_refused(data: bytes) -> None:
    with pytest.raises(DocumentError):
        parse_observation(data)


@pytest.mark.parametrize("identity", ["x" * 257, "a\nb", "a\x1b[0m"])
def test_identities_are_short_and_printable(identity: str) -> None:
    with pytest.raises(DocumentError, match="native_identity"):
        replace(OBSERVATION, native_identity=identity)


@pytest.mark.parametrize(
    "other",
    [{"operation_id": "release-two"}, {"request_sha256": "ee" * 32}, {"phase": Phase.LOAD}],
    ids=["operation", "request", "phase"],
)
def test_the_observation_of_something_else_is_refused(other: dict[str, Any]) -> None:
    own: dict[str, Any] = {
        "operation_id": OBSERVATION.operation_id,
        "request_sha256": OBSERVATION.request_sha256,
        "phase": OBSERVATION.phase,
    }
    OBSERVATION.require(**own)
    with pytest.raises(DocumentError, match="of another release"):
        OBSERVATION.require(**(own | other))


def test_the_detail_cannot_be_changed_afterwards() -> None:
    detail = {"adapter_sha256": "11" * 32}
    observation = replace(OBSERVATION, detail=detail)
    detail["adapter_sha256"] = "ee" * 32
    assert observation.detail["adapter_sha256"] == "11" * 32
