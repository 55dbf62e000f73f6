"""The snapshot vectors through the reader: what a receiver may not accept, a reader does not believe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from snapshot_shelf import PROVIDER, SOURCE, Shelf
from snapshot_vectors import ENROLMENT, NEGATIVE, POSITIVE, STATUSES

from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment, SnapshotPublisher
from ticket_agent.snapshots import MalformedRecordError, SnapshotReader, SnapshotReadError


def _enrolment(publishers: list[dict[str, Any]] | None) -> SnapshotEnrolment:
    if publishers is None:
        return ENROLMENT
    return replace(
        ENROLMENT,
        publishers=tuple(
            SnapshotPublisher(source_id=one["source_id"], providers=tuple(one["providers"]))
            for one in publishers
        ),
    )


@pytest.mark.parametrize("name", POSITIVE)
def test_a_canonical_record_is_read(name: str) -> None:
    case = POSITIVE[name]
    members = case["record"]
    shelf = Shelf(_enrolment(case.get("publishers")))
    pair = {"provider": members["provider"], "source": members["source_id"]}
    shelf.put_raw(bytes.fromhex(case["canonical_hex"]), case["status_line"], **pair)
    seen = SnapshotReader(shelf, shelf.enrolment).read(members["provider"], members["source_id"])
    for member in ("provider", "source_id", "epoch", "sequence", "observed_unix_ms", "ttl_ms", "reason"):
        assert getattr(seen, member) == members[member]
    assert seen.available_at_read is members["available"]
    assert [{"path": entry.path, "value": entry.value} for entry in seen.entries] == members["entries"]
    assert (seen.sha256, seen.size) == (case["sha256"], case["bytes"])


@pytest.mark.parametrize("name", NEGATIVE)
def test_a_record_that_its_status_vouches_for_must_still_be_one(name: str) -> None:
    case = NEGATIVE[name]
    shelf = Shelf(ENROLMENT)
    shelf.put_raw(bytes.fromhex(case["hex"]), case["status_line"])
    reader = SnapshotReader(shelf, shelf.enrolment)
    if case["expected_receiver"] == "accept":
        assert reader.read(PROVIDER, SOURCE).sha256 == case["sha256"]
        return
    with pytest.raises(SnapshotReadError) as caught:
        reader.read(PROVIDER, SOURCE)
    if case["hex"]:
        assert type(caught.value) is MalformedRecordError


@pytest.mark.parametrize("name", STATUSES)
def test_a_record_is_only_as_good_as_its_status(name: str) -> None:
    case = STATUSES[name]
    shelf = Shelf(ENROLMENT)
    shelf.put_raw(bytes.fromhex(POSITIVE[case["snapshot"]]["canonical_hex"]), case["status_line"])
    reader = SnapshotReader(shelf, shelf.enrolment)
    if case["pypi_reader"]["accepted"]:
        assert reader.read(PROVIDER, SOURCE).sequence == 1
        return
    with pytest.raises(SnapshotReadError):
        reader.read(PROVIDER, SOURCE)


def test_all_cases_are_there() -> None:
    assert (len(POSITIVE), len(NEGATIVE), len(STATUSES)) == (13, 59, 9)
