"""The receiver against a second one that was written from the rules alone, over random histories."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from snapshot_histories import first_divergence

from ticket_agent.hive.reference import snapshot_receiver
from ticket_agent.hive.reference.snapshot_receiver import SnapshotReceiver
from ticket_agent.hive.reference.snapshot_slot import SnapshotSlot
from ticket_agent.protocol.errors import SnapshotError
from ticket_agent.protocol.snapshot_status import Withdrawn
from ticket_agent.protocol.snapshot_transfer import parse_command

if TYPE_CHECKING:
    from collections.abc import Callable

HISTORIES = 5000
AT_LEAST = {
    "applied": 3000,
    "withdrawal applied": 1500,
    "duplicate": 500,
    "duplicate of nothing visible": 50,
    "expired": 500,
    "clock_regressed": 1000,
    "upload lapsed": 300,
    "too late": 300,
    "replayed": 200,
    "observed earlier": 80,
    "of another provider": 70,
}


@pytest.mark.parametrize("seed", range(10))
def test_random_histories_end_as_the_rules_say(seed: int) -> None:
    events: Counter[str] = Counter()
    assert first_divergence(seed, HISTORIES, events) is None
    assert {name: count for name, count in AT_LEAST.items() if events[name] < count} == {}


# -- what the comparison would notice ------------------------------------------------------------------------

Patch = pytest.MonkeyPatch
IS_RETRY = SnapshotSlot._is_retry
APPLY, POLL, WRITE = SnapshotSlot.apply, SnapshotSlot.poll, SnapshotReceiver.write
RECEIVER_POLL, PAIR, END = SnapshotReceiver.poll, SnapshotReceiver._pair, SnapshotReceiver._end


def a_retry_renews_the_time_to_live(patch: Patch) -> None:
    def is_retry(*given: Any) -> bool:
        IS_RETRY(*given)
        return False

    patch.setattr(SnapshotSlot, "_is_retry", staticmethod(is_retry))


def a_retry_brings_back_what_had_lapsed(patch: Patch) -> None:
    def apply(slot: SnapshotSlot, data: bytes, **moments: Any) -> Any:
        if slot._current is None and slot._fence is not None:
            slot._fence = replace(slot._fence, sha256="")
            slot._fence = replace(slot._fence, sequence=slot._fence.sequence - 1)
        return APPLY(slot, data, **moments)

    patch.setattr(SnapshotSlot, "apply", apply)


def a_record_is_shown_a_millisecond_too_long(patch: Patch) -> None:
    def visible(slot: SnapshotSlot, now: int) -> Any:
        current = slot._current
        gone = current is None or (current.expires_ms is not None and now > current.expires_ms)
        return None if gone or now < slot._last_now else current

    patch.setattr(SnapshotSlot, "visible", visible)


def the_fence_falls_when_a_record_lapses(patch: Patch) -> None:
    def poll(slot: SnapshotSlot, now: int) -> Withdrawn | None:
        reason = POLL(slot, now)
        if reason is Withdrawn.EXPIRED and slot._fence is not None:
            slot._fence = replace(slot._fence, sha256="", observed_unix_ms=0)
        return reason

    patch.setattr(SnapshotSlot, "poll", poll)


def a_clock_that_runs_backwards_goes_unnoticed(patch: Patch) -> None:
    patch.setattr(SnapshotSlot, "poll", lambda slot, now: POLL(slot, max(now, slot._last_now)))


def a_source_may_look_back_in_time(patch: Patch) -> None:
    def is_retry(fence: Any, snapshot: Any, *rest: Any) -> bool:
        return IS_RETRY(replace(fence, observed_unix_ms=0), snapshot, *rest)

    patch.setattr(SnapshotSlot, "_is_retry", staticmethod(is_retry))


def the_time_to_live_counts_from_the_end(patch: Patch) -> None:
    def apply(slot: SnapshotSlot, data: bytes, *, domain: Any, received_ms: int, now: int) -> Any:
        del received_ms
        return APPLY(slot, data, domain=domain, received_ms=now, now=now)

    patch.setattr(SnapshotSlot, "apply", apply)


def a_withdrawal_lapses(patch: Patch) -> None:
    def apply(slot: SnapshotSlot, data: bytes, **moments: Any) -> Any:
        verdict = APPLY(slot, data, **moments)
        if slot._current is not None and slot._current.expires_ms is None:
            until = moments["received_ms"] + slot._current.snapshot.ttl_ms
            slot._current = replace(slot._current, expires_ms=until)
        return verdict

    patch.setattr(SnapshotSlot, "apply", apply)


def a_late_record_uses_up_its_sequence(patch: Patch) -> None:
    def apply(slot: SnapshotSlot, data: bytes, **moments: Any) -> Any:
        try:
            return APPLY(slot, data, **moments)
        except SnapshotError as error:
            if error.code == "slot-late" and slot._fence is not None:
                slot._fence = replace(slot._fence, sequence=slot._fence.sequence + 1)
            raise

    patch.setattr(SnapshotSlot, "apply", apply)


def a_refused_begin_ends_the_upload(patch: Patch) -> None:
    def write(receiver: SnapshotReceiver, provider: str, source: str, payload: str, now: int) -> None:
        if payload.startswith("begin "):
            receiver._pair(provider, source).upload = None
        WRITE(receiver, provider, source, payload, now)

    patch.setattr(SnapshotReceiver, "write", write)


def a_failed_end_leaves_the_upload(patch: Patch) -> None:
    def end(receiver: SnapshotReceiver, pair: Any, source: str, upload: Any, now: int) -> None:
        try:
            END(receiver, pair, source, upload, now)
        except SnapshotError:
            pair.upload = upload
            raise

    patch.setattr(SnapshotReceiver, "_end", end)


def an_upload_survives_the_clock(patch: Patch) -> None:
    def poll(receiver: SnapshotReceiver, now: int) -> None:
        kept = {key: pair.upload for key, pair in receiver._pairs.items()}
        RECEIVER_POLL(receiver, now)
        for key, upload in kept.items():
            if upload is not None and now < upload.deadline_ms:
                receiver._pairs[key].upload = upload

    patch.setattr(SnapshotReceiver, "poll", poll)


def sources_of_one_provider_share_an_upload(patch: Patch) -> None:
    def write(receiver: SnapshotReceiver, provider: str, source: str, payload: str, now: int) -> None:
        pair, first = receiver._pair(provider, source), receiver._pair("network", "alpha")
        pair.upload = first.upload
        try:
            WRITE(receiver, provider, source, payload, now)
        finally:
            first.upload = pair.upload

    patch.setattr(SnapshotReceiver, "write", write)


def more_text_is_taken_than_was_announced(patch: Patch) -> None:
    patch.setattr(snapshot_receiver, "encoded_characters", lambda size: 4 * size + 4)


def blanks_around_a_command_do_not_matter(patch: Patch) -> None:
    def parse(text: str, *, max_bytes: int) -> Any:
        return parse_command(text.strip(), max_bytes=max_bytes)

    patch.setattr(snapshot_receiver, "parse_command", parse)


MUTANTS: list[Callable[[Patch], None]] = [
    a_retry_renews_the_time_to_live,
    a_retry_brings_back_what_had_lapsed,
    a_record_is_shown_a_millisecond_too_long,
    the_fence_falls_when_a_record_lapses,
    a_clock_that_runs_backwards_goes_unnoticed,
    a_source_may_look_back_in_time,
    the_time_to_live_counts_from_the_end,
    a_withdrawal_lapses,
    a_late_record_uses_up_its_sequence,
    a_refused_begin_ends_the_upload,
    a_failed_end_leaves_the_upload,
    an_upload_survives_the_clock,
    sources_of_one_provider_share_an_upload,
    more_text_is_taken_than_was_announced,
    blanks_around_a_command_do_not_matter,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_receiver_with_one_rule_broken_is_noticed(
    mutant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert first_divergence(0, HISTORIES, Counter()) is not None
