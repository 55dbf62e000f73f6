from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshot_vectors import encoded, record

from ticket_agent.protocol.errors import SnapshotError
from ticket_agent.protocol.snapshot import UnavailableReason, snapshot_digest
from ticket_agent.protocol.snapshot_status import (
    MAX_STATUS_BYTES,
    SnapshotStatus,
    Withdrawn,
    encode_status,
    parse_status,
    status_of,
)
from ticket_agent.protocol.tokens import U64_MAX

SHA = "a" * 64
HEAD = "schema=host-snapshot-status/v1 state=available source=linux-reference provider=systemd"
VISIBLE = f"{HEAD} epoch=7 sequence=3 observed_unix_ms=1000 ttl_ms=30000 sha256={SHA}"
GONE = (
    "schema=host-snapshot-status/v1 state=unavailable source=linux-reference provider=systemd sequence=3"
    " reason=expired"
)


def test_the_status_of_a_record() -> None:
    for snapshot in (record(), record(reason=UnavailableReason.NOT_SUPPORTED)):
        status = status_of(snapshot, snapshot_digest(encoded(snapshot)))
        assert (status.visible, status.available) == (True, snapshot.available)
        assert parse_status(encode_status(status)) == status
        assert "reason" not in encode_status(status)


@pytest.mark.parametrize("reason", Withdrawn)
def test_the_status_without_a_record(reason: Withdrawn) -> None:
    status = SnapshotStatus(source_id="linux-reference", provider="systemd", sequence=3, reason=reason)
    assert encode_status(status) == GONE.replace("expired", reason)
    assert parse_status(encode_status(status)) == status
    assert not status.visible


def test_fields_in_any_order_and_fields_of_a_newer_receiver() -> None:
    known = parse_status(VISIBLE)
    assert parse_status(" ".join(sorted(VISIBLE.split(" ")))) == known
    assert parse_status(f"{VISIBLE} extra=1 more=a=b") == known


def test_the_longest_status_of_a_receiver_is_read() -> None:
    longest = SnapshotStatus(
        source_id="s" * 32,
        provider="p" * 64,
        sequence=U64_MAX,
        available=True,
        epoch=U64_MAX,
        observed_unix_ms=U64_MAX,
        ttl_ms=30_000,
        sha256=SHA,
    )
    assert 256 < len(encode_status(longest)) < MAX_STATUS_BYTES
    assert parse_status(encode_status(longest)) == longest


REFUSED = {
    "nothing": "",
    "a word": f"{VISIBLE} junk",
    "two blanks": VISIBLE.replace(" ", "  ", 1),
    "a blank behind it": f"{VISIBLE} ",
    "a newline": f"{VISIBLE}\n",
    "a tab": VISIBLE.replace(" ", "\t"),
    "no key": f"{VISIBLE} =1",
    "no value": f"{VISIBLE} more=",
    "no ASCII": f"{VISIBLE} more=é",
    "too long": f"{VISIBLE} more={'x' * MAX_STATUS_BYTES}",
    "a key twice": f"{VISIBLE} epoch=7",
    "an unknown key twice": f"{VISIBLE} more=1 more=1",
    "another schema": VISIBLE.replace("/v1", "/v2"),
    "no schema": VISIBLE.replace("schema=host-snapshot-status/v1 ", ""),
    "no state": VISIBLE.replace("state=available ", ""),
    "another state": VISIBLE.replace("state=available", "state=stale"),
    "no source": VISIBLE.replace("source=linux-reference ", ""),
    "no provider": VISIBLE.replace("provider=systemd ", ""),
    "no sequence": VISIBLE.replace("sequence=3 ", ""),
    "a sequence that is no number": VISIBLE.replace("sequence=3", "sequence=x"),
    "a signed sequence": VISIBLE.replace("sequence=3", "sequence=+3"),
    "a sequence with a leading zero": VISIBLE.replace("sequence=3", "sequence=03"),
    "a sequence over u64": VISIBLE.replace("sequence=3", f"sequence={U64_MAX + 1}"),
    "a sequence without end": VISIBLE.replace("sequence=3", "sequence=" + "9" * 500),
    "no epoch": VISIBLE.replace("epoch=7 ", ""),
    "epoch 0": VISIBLE.replace("epoch=7", "epoch=0"),
    "observed at 0": VISIBLE.replace("observed_unix_ms=1000", "observed_unix_ms=0"),
    "not observed": VISIBLE.replace("observed_unix_ms=1000 ", ""),
    "no time to live": VISIBLE.replace("ttl_ms=30000", "ttl_ms=0"),
    "too long a time to live": VISIBLE.replace("ttl_ms=30000", "ttl_ms=30001"),
    "no digest": VISIBLE.replace(f" sha256={SHA}", ""),
    "an upper-case digest": VISIBLE.replace(SHA, SHA.upper()),
    "a short digest": VISIBLE.replace(SHA, SHA[1:]),
    "an unknown reason": GONE.replace("expired", "asleep"),
    "available, and a reason": GONE.replace("state=unavailable", "state=available"),
    "a reason and nothing visible, without its sequence": GONE.replace(" sequence=3", ""),
}


@pytest.mark.parametrize("line", REFUSED.values(), ids=REFUSED)
def test_refusals(line: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        parse_status(line)
    assert "\n" not in str(refused.value)
    assert refused.value.code.startswith("record-") or refused.value.member == "sha256"


@given(st.text(max_size=200) | st.lists(st.sampled_from(VISIBLE.split(" ") + GONE.split(" "))).map(" ".join))
def test_no_line_does_anything_but_be_read_or_refused(line: str) -> None:
    try:
        status = parse_status(line)
    except SnapshotError:
        return
    assert parse_status(encode_status(status)) == status


def test_a_status_tells_of_one_record_only() -> None:
    status = parse_status(VISIBLE)
    for other in (
        replace(status, sequence=4),
        replace(status, sha256="b" * 64),
        replace(status, available=False),
        replace(status, epoch=8),
    ):
        assert other != status
        assert parse_status(encode_status(other)) == other
