from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from snapshot_vectors import ENROLMENT, LINUX, encoded, record

from ticket_agent.hive.reference.snapshot_slot import SnapshotSlot, SnapshotVerdict
from ticket_agent.protocol.errors import SnapshotError, SnapshotLimitError
from ticket_agent.protocol.snapshot import HostSnapshot, UnavailableReason
from ticket_agent.protocol.snapshot_status import Withdrawn, encode_status
from ticket_agent.protocol.tokens import U64_MAX

DOMAIN = ENROLMENT.domain(LINUX)
APPLIED, DUPLICATE = SnapshotVerdict.APPLIED, SnapshotVerdict.DUPLICATE


def new_slot() -> SnapshotSlot:
    return SnapshotSlot(provider="systemd", bounds=ENROLMENT.bounds)


def apply(
    slot: SnapshotSlot, snapshot: HostSnapshot, received: int, now: int, **more: Any
) -> SnapshotVerdict:
    return slot.apply(encoded(snapshot), received_ms=received, now=now, **{"domain": DOMAIN, **more})


def shown(slot: SnapshotSlot, now: int) -> int | None:
    """The sequence that is visible."""
    current = slot.visible(now)
    return None if current is None else current.snapshot.sequence


def test_the_time_to_live_counts_from_the_beginning_of_the_transfer() -> None:
    slot = new_slot()
    with pytest.raises(SnapshotError) as late:
        apply(slot, record(), 10, 110)
    assert (late.value.code, slot.sequence) == ("slot-late", 0)
    assert apply(slot, record(), 10, 50) is APPLIED
    assert (shown(slot, 109), shown(slot, 110)) == (1, None)


def test_an_exact_retry_changes_nothing_and_ends_nothing_later() -> None:
    slot = new_slot()
    assert apply(slot, record(), 10, 10) is APPLIED
    assert apply(slot, record(), 50, 50) is DUPLICATE
    assert (shown(slot, 109), shown(slot, 110)) == (1, None)
    assert apply(slot, record(), 110, 110) is DUPLICATE
    assert (shown(slot, 110), slot.sequence) == (None, 1)
    assert apply(slot, record(2), 111, 111) is APPLIED
    with pytest.raises(SnapshotError, match="observed before"):
        apply(slot, record(), 112, 112)


def test_a_withdrawal_stays_until_something_newer_comes() -> None:
    slot = new_slot()
    apply(slot, record(3, reason=UnavailableReason.SOURCE_FAILED), 10, 10)
    current = slot.visible(10**12)
    assert current is not None
    assert (current.snapshot.available, current.snapshot.entries, slot.poll(10**12)) == (False, (), None)
    assert apply(slot, record(5), 10**12, 10**12) is APPLIED
    assert shown(slot, 10**12) == 5


def test_a_clock_that_runs_backwards_shows_and_takes_nothing() -> None:
    slot = new_slot()
    apply(slot, record(3), 100, 100)
    assert slot.poll(120) is None
    assert shown(slot, 119) is None
    with pytest.raises(SnapshotError, match="clock ran backwards"):
        apply(slot, record(4), 119, 119)
    assert shown(slot, 120) == 3
    assert slot.poll(119) is Withdrawn.CLOCK_REGRESSED
    assert (shown(slot, 120), slot.sequence) == (None, 3)
    assert slot.poll(120) is None
    assert apply(slot, record(3), 120, 120) is DUPLICATE
    assert shown(slot, 120) is None
    with pytest.raises(SnapshotError, match="clock ran backwards"):
        apply(slot, record(4), 122, 121)
    assert apply(slot, record(4), 121, 121) is APPLIED


def test_expiry_is_told_once() -> None:
    slot = new_slot()
    apply(slot, record(), 0, 0)
    assert [slot.poll(now) for now in (99, 100, 101)] == [None, Withdrawn.EXPIRED, None]


REFUSED = {
    "an older sequence": (record(1, observed_unix_ms=2000), "slot-sequence"),
    "other bytes under the last sequence": (record(2, ttl_ms=99), "slot-sequence"),
    "observed before the last one": (record(3, observed_unix_ms=1001), "slot-observed"),
    "another provider of the source": (record(3, provider="docker"), "slot-provider"),
    "another source": (record(3, source_id="mac-controller"), "snapshot-source_id"),
    "a provider that is not enrolled": (record(3, provider="launchd"), "snapshot-provider"),
}


@pytest.mark.parametrize(("snapshot", "code"), REFUSED.values(), ids=REFUSED)
def test_refusals_leave_everything_as_it_was(snapshot: HostSnapshot, code: str) -> None:
    slot = new_slot()
    apply(slot, record(2), 10, 10)
    before = slot.visible(20)
    with pytest.raises(SnapshotError) as refused:
        apply(slot, snapshot, 20, 20)
    assert refused.value.code == code
    assert (slot.visible(20), slot.sequence) == (before, 2)
    assert apply(slot, record(3, observed_unix_ms=1002), 20, 20) is APPLIED


def test_an_epoch_does_not_change_under_a_slot() -> None:
    slot = new_slot()
    apply(slot, record(), 10, 10)
    with pytest.raises(SnapshotError) as refused:
        apply(slot, record(2, epoch=8), 20, 20, domain=replace(DOMAIN, epoch=8))
    assert (refused.value.code, slot.sequence) == ("slot-domain", 1)


def test_a_deadline_beyond_the_clock_is_a_limit() -> None:
    slot = new_slot()
    with pytest.raises(SnapshotLimitError):
        apply(slot, record(), U64_MAX - 99, U64_MAX - 99)
    assert apply(slot, record(), U64_MAX - 100, U64_MAX - 100) is APPLIED


def test_the_status_of_a_visible_record() -> None:
    slot = new_slot()
    apply(slot, record(reason=UnavailableReason.TIMED_OUT), 10, 10)
    current = slot.visible(10)
    assert current is not None
    assert encode_status(current.status) == (
        "schema=host-snapshot-status/v1 state=unavailable source=linux-reference provider=systemd epoch=7"
        f" sequence=1 observed_unix_ms=1001 ttl_ms=100 sha256={current.sha256}"
    )
