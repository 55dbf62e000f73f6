"""Record lines of the root: current tickets, retention, lifecycle; and the paths they stand under."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ticket_lines import tokens

from ticket_agent.protocol import (
    CurrentTicket,
    LifecycleState,
    ProtocolError,
    RecordLineError,
    Retention,
    TicketPaths,
    correlation_digest,
    current_path,
    encode_current,
    encode_retention,
    lease_by_id,
    parse_current,
    parse_lifecycle_state,
    parse_retention,
    publishing_allowed,
)
from ticket_agent.protocol.retention import LOGS

CURRENT = (
    "HOST_TICKET_CURRENT schema=host-ticket-current/v1 state=pending role=worker-gpu worker=worker-1 "
    "lifecycle=ready identity=0,4,2,3 sequence=1,0,0,0 admission=5"
)
RETENTION = (
    "HOST_TICKET_RETENTION schema=v1 path=spec base=10 next=30 retained_bytes=20 retained_wire_lines=1 "
    "dropped_lines=1 dropped_bytes=10"
)
small = st.integers(0, 9999)
u64 = st.integers(0, 2**64 - 1)


@given(
    st.builds(
        CurrentTicket,
        state=st.sampled_from(["pending", "confirmed", "rejected", "stale"]),
        role=st.sampled_from(["worker-gpu", "worker-lora"]),
        worker=tokens(32),
        lifecycle=st.sampled_from(["ready", "absent", "closing"]),
        slot=small,
        lease_epoch=small,
        supervisor_generation=small,
        cap_generation=small,
        ready_sequence=small,
        control_sequence=small,
        receipt_sequence=small,
        completion_sequence=small,
        admission=st.integers(1, 9999),
    )
)
def test_current_records_survive(record: CurrentTicket) -> None:
    assert parse_current(encode_current(record)) == record


def test_current_record_of_an_absent_worker() -> None:
    text = CURRENT.replace("lifecycle=ready", "lifecycle=absent").replace("sequence=1,", "sequence=0,")
    record = parse_current(text)
    assert (record.lifecycle, record.ready_sequence) == ("absent", 0)
    assert encode_current(record) == text


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ("", None),
        (CURRENT.replace("HOST_TICKET_CURRENT", "HOST_TICKET_RETENTION"), None),
        (CURRENT + " " * 200, None),
        (CURRENT.replace(" state", "  state"), None),
        (CURRENT.replace("/v1", "/v2"), "schema"),
        (CURRENT.replace("state=pending", "state=open"), "state"),
        (CURRENT.replace(" role=worker-gpu", ""), "role"),
        (CURRENT.replace("worker=worker-1", "worker=a/b"), "worker"),
        (CURRENT.replace("identity=0,4,2,3", "identity=0,4,2"), "identity"),
        (CURRENT.replace("identity=0,4,2,3", "identity=0,4,2,"), "identity"),
        (CURRENT.replace("identity=0,4,2,3", "identity=65536,4,2,3"), "identity"),
        (CURRENT.replace("sequence=1,0,0,0", "sequence=1,0,0,-1"), "sequence"),
        (CURRENT.replace("sequence=1,0,0,0", "sequence=1,0,0,0,0"), "sequence"),
        (CURRENT.replace("admission=5", "admission=0"), "admission"),
        (CURRENT.replace("admission=5", "admission=05"), "admission"),
        (CURRENT.replace("admission=5", "admission=18446744073709551616"), "admission"),
        (CURRENT + " admission=5", "admission"),
        (CURRENT + " more=1", "more"),
        (CURRENT + "\n" + CURRENT, None),
        (CURRENT + "\n", "admission"),
    ],
)
def test_malformed_current_records(text: str, member: str | None) -> None:
    with pytest.raises(RecordLineError) as refusal:
        parse_current(text)
    assert refusal.value.member == member


@given(tokens(), tokens(), tokens(), tokens())
def test_the_correlation_digest_separates_the_two_names(a: str, b: str, c: str, d: str) -> None:
    assert (correlation_digest(a, b) == correlation_digest(c, d)) == ((a, b) == (c, d))


def test_shifting_a_letter_between_the_names_changes_the_digest() -> None:
    assert correlation_digest("ab", "c") != correlation_digest("a", "bc")
    assert current_path("ab", "c") == f"/host/tickets/current/{correlation_digest('ab', 'c')}"


@pytest.mark.parametrize(("one", "other"), [("", "k"), ("i", ""), ("i", "é"), ("i" * 129, "k")])
def test_the_correlation_digest_takes_tokens(one: str, other: str) -> None:
    with pytest.raises(RecordLineError):
        correlation_digest(one, other)


@given(
    st.lists(
        st.builds(
            Retention,
            path=st.sampled_from(LOGS),
            base=u64,
            next=u64,
            retained_bytes=u64,
            retained_wire_lines=u64,
            dropped_lines=u64,
            dropped_bytes=u64,
        ).map(
            lambda record: replace(
                record, base=min(record.base, record.next), next=max(record.base, record.next)
            )
        ),
        unique_by=lambda record: record.path,
    )
)
def test_retention_records_survive(records: list[Retention]) -> None:
    parsed = parse_retention([encode_retention(record) for record in records] + [""])
    assert parsed == {record.path: record for record in records}


def test_retention_to_the_byte() -> None:
    record = parse_retention([RETENTION])["spec"]
    assert (record.base, record.next, record.retained_bytes, record.dropped_lines) == (10, 30, 20, 1)
    assert encode_retention(record) == RETENTION


@pytest.mark.parametrize(
    ("lines", "member"),
    [
        (["x"], None),
        ([RETENTION + " "], None),
        ([RETENTION.replace("schema=v1", "schema=v2")], "schema"),
        ([RETENTION.replace("path=spec", "path=current")], "path"),
        ([RETENTION, RETENTION], "path"),
        ([RETENTION.replace("base=10", "base=31")], "base"),
        ([RETENTION.replace("base=10", "base=x")], "base"),
        ([RETENTION.replace(" dropped_bytes=10", "")], "dropped_bytes"),
        ([RETENTION + " more=1"], "more"),
    ],
)
def test_malformed_retention(lines: list[str], member: str | None) -> None:
    with pytest.raises(RecordLineError) as refusal:
        parse_retention(lines)
    assert refusal.value.member == member


@pytest.mark.parametrize("state", list(LifecycleState))
def test_lifecycle_states(state: LifecycleState) -> None:
    assert parse_lifecycle_state(f"state={state}") is state
    assert publishing_allowed(state) == (state.value in {"ONLINE", "DEGRADED"})


@pytest.mark.parametrize(
    "text", ["", "ONLINE", "state=", "state=online", "State=ONLINE", "state=UP", "state=ONLINE x"]
)
def test_other_lifecycle_lines(text: str) -> None:
    with pytest.raises(RecordLineError):
        parse_lifecycle_state(text)


def test_ticket_paths() -> None:
    paths = TicketPaths()
    assert paths.directory == "/host/tickets"
    assert paths.spec == "/host/tickets/spec"
    assert paths.spec_snapshot == "/host/tickets/spec.snapshot"
    assert paths.stream("status") == paths.status == "/host/tickets/status"
    assert paths.stream("deadletter") == paths.deadletter == "/host/tickets/deadletter"
    assert paths.status_snapshot == "/host/tickets/status.snapshot"
    assert paths.deadletter_snapshot == "/host/tickets/deadletter.snapshot"
    assert paths.retention == "/host/tickets/retention"
    assert paths.admission(7) == "/host/tickets/admission/7"
    assert TicketPaths("/a/b/").spec == "/a/b/tickets/spec"
    assert lease_by_id("lease-1") == "/proc/lease/by-id/lease-1"


@pytest.mark.parametrize("mount", ["", "/", "//", "host", "/host//x", "/host/..", "/./host", "host/"])
def test_mounts_that_are_none(mount: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        TicketPaths(mount)
    assert refusal.value.code == "mount"
