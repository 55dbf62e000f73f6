"""Every entry of the vectors of host snapshots, and where an independent reader judges otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from snapshot_vectors import DOCUMENT, ENROLMENT, NEGATIVE, POSITIVE, STATUSES, TRANSFERS, domain_of, record

from ticket_agent.protocol.errors import SnapshotError, SnapshotLimitError
from ticket_agent.protocol.snapshot import HostSnapshot, decode_snapshot, encode_snapshot, snapshot_digest
from ticket_agent.protocol.snapshot_status import encode_status, parse_status, status_of
from ticket_agent.protocol.snapshot_transfer import (
    CHUNK_CHARACTERS,
    Begin,
    Chunk,
    End,
    decode_body,
    parse_command,
    transfer_lines,
)

BOUNDS = ENROLMENT.bounds

CANONICAL = "it does not ask for the one canonical encoding"
LEADING = "it wants a letter or a digit first; a receiver takes a leading _ or . as well"
DIFFERENCES = {
    "ascii_escaped_unicode": CANONICAL,
    "bom_prefix": CANONICAL,
    "entry_field_order": CANONICAL,
    "escaped_solidus": CANONICAL,
    "field_order_swapped": CANONICAL,
    "space_separators": CANONICAL,
    "trailing_newline": CANONICAL,
    "trailing_space": CANONICAL,
    "upper_hex_escape": CANONICAL,
    "path_leading_dot": LEADING,
    "path_leading_underscore": LEADING,
}
"""Where the independent reader's verdict is not a receiver's, and why."""

LIMITS = {"empty", "bytes_over_8192", "entries_65"}
"""Refused because of their size."""


def accepted(entry: dict[str, Any]) -> bool:
    try:
        decode_snapshot(bytes.fromhex(entry["hex"]), domain=domain_of(entry), bounds=BOUNDS)
    except SnapshotError:
        return False
    return True


def test_every_section_is_here() -> None:
    assert set(DOCUMENT) == {
        "source",
        "manifest",
        "chunk_chars",
        "positive",
        "negative",
        "transfer",
        "status",
        "cursor",
    }
    assert (len(POSITIVE), len(NEGATIVE), len(STATUSES), len(TRANSFERS)) == (13, 59, 9, 8)
    sections = [DOCUMENT[name] for name in ("positive", "negative", "transfer", "status", "cursor")]
    assert all(entry["source"] for section in sections for entry in section)
    assert DOCUMENT["chunk_chars"] == CHUNK_CHARACTERS


@pytest.mark.parametrize("name", POSITIVE)
def test_records_are_read_and_written_to_the_byte(name: str) -> None:
    entry = POSITIVE[name]
    data = bytes.fromhex(entry["canonical_hex"])
    assert data == entry["canonical_utf8"].encode()
    snapshot = decode_snapshot(data, domain=domain_of(entry), bounds=BOUNDS)
    assert (len(data), snapshot_digest(data)) == (entry["bytes"], entry["sha256"])
    assert encode_snapshot(snapshot, domain=domain_of(entry), bounds=BOUNDS) == data
    told = entry["record"]
    assert (snapshot.sequence, snapshot.observed_unix_ms) == (told["sequence"], told["observed_unix_ms"])
    assert (snapshot.ttl_ms, snapshot.available, snapshot.reason) == (
        told["ttl_ms"],
        told["available"],
        told["reason"],
    )
    assert [{"path": one.path, "value": one.value} for one in snapshot.entries] == told["entries"]


@pytest.mark.parametrize("name", POSITIVE)
def test_transfers_and_statuses_are_written_to_the_byte(name: str) -> None:
    entry = POSITIVE[name]
    data = entry["canonical_utf8"].encode()
    lines = list(transfer_lines(data))
    assert lines == entry["transfer_lines"]
    first, *chunks, last = (parse_command(line, max_bytes=BOUNDS.max_bytes) for line in lines)
    assert isinstance(first, Begin)
    assert last == End()
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, Chunk))
    assert decode_body(text, first) == data
    snapshot = decode_snapshot(data, domain=domain_of(entry), bounds=BOUNDS)
    status = status_of(snapshot, snapshot_digest(data))
    assert encode_status(status) == entry["status_line"]
    assert parse_status(entry["status_line"]) == status


@pytest.mark.parametrize("name", NEGATIVE)
def test_records_are_judged_as_a_receiver_does(name: str) -> None:
    entry = NEGATIVE[name]
    data = bytes.fromhex(entry["hex"])
    assert (len(data), snapshot_digest(data)) == (entry["bytes"], entry["sha256"])
    assert accepted(entry) == (entry["expected_receiver"] == "accept")


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_sizes_are_limits(name: str) -> None:
    entry = NEGATIVE[name]
    with pytest.raises(SnapshotLimitError):
        decode_snapshot(bytes.fromhex(entry["hex"]), domain=domain_of(entry), bounds=BOUNDS)


def test_every_other_refusal_is_no_limit() -> None:
    for name, entry in NEGATIVE.items():
        if name in LIMITS or entry["expected_receiver"] == "accept":
            continue
        with pytest.raises(SnapshotError) as refused:
            decode_snapshot(bytes.fromhex(entry["hex"]), domain=domain_of(entry), bounds=BOUNDS)
        assert not isinstance(refused.value, SnapshotLimitError), name
        assert "\n" not in str(refused.value)


def test_an_independent_reader_judges_otherwise_in_these_cases_alone() -> None:
    different = {
        name for name, entry in NEGATIVE.items() if accepted(entry) != entry["pypi_reader"]["accepted"]
    }
    assert different == set(DIFFERENCES)
    assert all(
        NEGATIVE[name]["pypi_reader"]["accepted"] == (why == CANONICAL) for name, why in DIFFERENCES.items()
    )
    assert all(entry["pypi_reader"]["accepted"] for entry in POSITIVE.values())


@pytest.mark.parametrize("name", [name for name, why in DIFFERENCES.items() if why == LEADING])
def test_what_the_strictest_reader_refuses_is_not_published(name: str) -> None:
    entry = NEGATIVE[name]
    snapshot = decode_snapshot(bytes.fromhex(entry["hex"]), domain=domain_of(entry), bounds=BOUNDS)
    with pytest.raises(SnapshotError) as refused:
        encode_snapshot(snapshot, domain=domain_of(entry), bounds=BOUNDS)
    assert refused.value.code == "snapshot-path"


def test_nothing_but_the_encoding_is_wrong_where_the_independent_reader_does_not_ask_for_it() -> None:
    encodings = {name for name in NEGATIVE if _code(name) in {"snapshot-canonical", "json-bom"}}
    assert encodings == {name for name, why in DIFFERENCES.items() if why == CANONICAL}


def _code(name: str) -> str:
    try:
        decode_snapshot(bytes.fromhex(NEGATIVE[name]["hex"]), domain=domain_of(NEGATIVE[name]), bounds=BOUNDS)
    except SnapshotError as error:
        return error.code
    return ""


UNREADABLE = {"status_duplicate_key", "status_without_equals"}
AGREEING = {"status_extra_key"}


@pytest.mark.parametrize("name", STATUSES)
def test_statuses_agree_with_their_record_or_not(name: str) -> None:
    entry = STATUSES[name]
    data = POSITIVE[entry["snapshot"]]["canonical_utf8"].encode()
    snapshot = decode_snapshot(data, domain=domain_of(POSITIVE[entry["snapshot"]]), bounds=BOUNDS)
    if name in UNREADABLE:
        with pytest.raises(SnapshotError):
            parse_status(entry["status_line"])
        return
    agrees = parse_status(entry["status_line"]) == status_of(snapshot, snapshot_digest(data))
    assert agrees == (name in AGREEING) == entry["pypi_reader"]["accepted"]


def test_the_small_records_of_other_tests_are_ones_that_are_accepted() -> None:
    small: HostSnapshot = record()
    data = encode_snapshot(small, domain=ENROLMENT.domain(small.source_id), bounds=BOUNDS)
    assert decode_snapshot(data, domain=small.source, bounds=BOUNDS) == small
