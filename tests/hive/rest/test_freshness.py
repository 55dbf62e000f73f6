"""A gateway answers reads from memory: none of that may pass for the present."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hive_support import DEADLETTER, LEASE_CTL, SNAPSHOT, SPEC, STATUS, raw_grant, running_gateway
from rest_support import rest

from ticket_agent.hive.reference import STRICT_A
from ticket_agent.hive.rest.freshness import MARGIN_S, Freshness
from ticket_agent.protocol.lease import GrantControl, PreemptControl
from ticket_agent.protocol.namespace import Acked, HiveRefusedError
from ticket_agent.protocol.retention import parse_retention
from ticket_agent.protocol.snapshot_enrolment import DEFAULT_ENROLMENT

GRANT = GrantControl(id="l-1", subject="worker-1", resource="GPU-0", ttl_s=60, priority=1).encode()
PREEMPT = PreemptControl(id="l-1", reason="done").encode()
BY_ID = "/proc/lease/by-id/l-1"
SUMMARY = "/proc/lease/summary"
CURRENT = "/host/tickets/current/ab"
LIFE = 2.0 + MARGIN_S
PAIR = DEFAULT_ENROLMENT.paths("systemd", "linux-reference")
OTHER_PAIR = DEFAULT_ENROLMENT.paths("network", "linux-reference")
ODDLY_NAMED = DEFAULT_ENROLMENT.paths("tickets", "current")
CTL = PAIR.ctl

WRITES = [
    (LEASE_CTL, GRANT, BY_ID, True),
    (LEASE_CTL, GRANT, "/proc/lease/by-id/l-2", False),
    (LEASE_CTL, GRANT, SUMMARY, False),
    (LEASE_CTL, GRANT, "/proc/lease/active", True),
    (LEASE_CTL, PREEMPT, SUMMARY, True),
    (LEASE_CTL, PREEMPT, "/proc/lease/preemptions", True),
    (LEASE_CTL, PREEMPT, "/proc/lifecycle/state", False),
    (LEASE_CTL, "gibberish", SUMMARY, True),
    (STATUS, "{}", SUMMARY, False),
    (STATUS, "{}", STATUS, False),
    (STATUS, "{}", CURRENT, True),
    ("/queen/lifecycle/ctl", "cordon", "/proc/lifecycle/state", True),
    ("/queen/ctl", "{}", SUMMARY, True),
    (CTL, "end", PAIR.snapshot, True),
    (CTL, "end", PAIR.status, True),
    (CTL, "end", OTHER_PAIR.status, False),
    (CTL, "end", STATUS, False),
    (CTL, "end", "/proc/lifecycle/state", False),
    (CTL, "begin bytes=2 sha256=" + "0" * 64, PAIR.status, False),
    (CTL, "b64:e30=", PAIR.snapshot, False),
    (ODDLY_NAMED.ctl, "end", ODDLY_NAMED.status, True),
]


@pytest.mark.parametrize(("path", "line", "read", "waits"), WRITES)
def test_a_read_waits_for_what_a_write_may_have_changed(path: str, line: str, read: str, waits: bool) -> None:
    fresh = Freshness(2.0)
    life = LIFE if read != CURRENT else 0.25 + MARGIN_S
    fresh.read(read, 10.0)
    fresh.wrote(path, line, 10.1)
    assert fresh.wait(read, 10.1) == (pytest.approx(life - 0.1) if waits else 0.0)
    assert fresh.wait(read, 10.0 + life) == 0.0
    fresh.read(read, 10.0 + life)
    assert fresh.wait(read, 10.0 + life) == 0.0


@pytest.mark.parametrize(
    "path", [LEASE_CTL, "/worker/w/telemetry", "/host/tickets/admission/7", "/log/queen.log"]
)
def test_what_is_never_cached_never_waits(path: str) -> None:
    fresh = Freshness(2.0)
    fresh.session_began(10.0)
    fresh.read(path, 10.0)
    fresh.wrote("/queen/ctl", "{}", 10.0)
    assert fresh.wait(path, 10.0) == 0.0


@pytest.mark.parametrize("name", ["admission", "current", "tickets"])
def test_a_snapshot_is_kept_as_long_whatever_its_source_is_called(name: str) -> None:
    assert Freshness(2.0).life(f"/host/snapshots/tickets/{name}/status") == 2.0


def test_a_write_does_not_delay_what_was_not_read_before_it() -> None:
    fresh = Freshness(2.0)
    fresh.wrote(LEASE_CTL, GRANT, 10.0)
    assert fresh.wait(BY_ID, 10.0) == 0.0


def test_whatever_is_cached_waits_in_a_new_session() -> None:
    fresh = Freshness(2.0)
    fresh.session_began(10.0)
    assert fresh.wait(SUMMARY, 10.5) == pytest.approx(LIFE - 0.5)
    assert fresh.wait(SUMMARY, 10.0 + LIFE) == 0.0
    assert fresh.wait(CURRENT, 10.0) == pytest.approx(0.25 + MARGIN_S)


def test_it_forgets() -> None:
    fresh = Freshness(2.0)
    for number in range(10_000):
        fresh.read(f"/proc/lease/by-id/l-{number}", number / 10)
        fresh.wrote("/queen/ctl", "{}", number / 10)
    assert len(fresh._lapses) <= 1025
    assert len(fresh._stale) <= 1025


def test_a_lease_is_seen_as_soon_as_it_is_there_and_no_longer_than_it_is() -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        time.sleep(seconds)

    with (
        running_gateway(cache_s=0.3) as (_, server),
        rest(server.url, auth_token=server.token, cache_s=0.3, sleep=sleep) as namespace,
    ):
        before = namespace.read(SUMMARY)
        waits.clear()
        with pytest.raises(HiveRefusedError) as absent:
            namespace.read(BY_ID)
        assert absent.value.absent
        assert isinstance(namespace.append(LEASE_CTL, GRANT), Acked)
        assert "id=l-1" in namespace.read(BY_ID)[0]
        assert not waits, "a grant is not waited for"
        assert isinstance(namespace.append(LEASE_CTL, PREEMPT), Acked)
        assert namespace.read(SUMMARY) != before
        with pytest.raises(HiveRefusedError):
            namespace.read(BY_ID)


def test_the_cache_does_mislead_who_does_not_wait() -> None:
    with (
        running_gateway(cache_s=600.0) as (_, server),
        rest(server.url, auth_token=server.token, cache_s=0.0) as careless,
    ):
        before = careless.read(SUMMARY)
        assert isinstance(careless.append(LEASE_CTL, GRANT), Acked)
        assert isinstance(careless.append(LEASE_CTL, PREEMPT), Acked)
        assert careless.read(SUMMARY) == before
        server.gateway._cache._entries.clear()
        assert careless.read(SUMMARY) != before


def test_the_cache_tells_nothing_of_an_earlier_life_after_a_reboot() -> None:
    with running_gateway(cache_s=0.3) as (hive, server):
        worker = hive.spawn_worker("worker-gpu")
        with rest(server.url, auth_token=server.token, cache_s=0.3, sleep=time.sleep) as namespace:
            assert isinstance(namespace.append(SPEC, raw_grant(hive, worker, "t-1", "l-1")), Acked)
            offsets = namespace.read("/host/tickets/retention")
            assert len(namespace.read(SNAPSHOT)) == 1
            hive.reboot()
            assert namespace.read("/host/tickets/retention") != offsets
            assert namespace.session == 2
            assert namespace.read(SNAPSHOT) == []


@pytest.mark.parametrize("leaf", [SNAPSHOT, SPEC, STATUS, DEADLETTER])
def test_a_log_is_whole_although_tail_goes_on_where_the_last_one_ended(
    leaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a gateway that attached with a ticket: its TAIL has a cursor."""
    with running_gateway() as (hive, server), rest(server.url, auth_token=server.token) as namespace:
        for number in range(3):
            worker = hive.spawn_worker("worker-gpu")
            namespace.append(SPEC, raw_grant(hive, worker, f"t-{number}", f"l-{number}"))
        whole, shown = hive.cat(leaf), {"lines": 0}

        def with_cursor(path: str) -> list[str]:
            new = hive.cat(path)[shown["lines"] :]
            shown["lines"] += len(new)
            return new

        monkeypatch.setattr(hive, "tail", with_cursor)
        for _ in range(3):
            assert namespace.read(leaf) == whole


@pytest.mark.parametrize("profile", ["default", "strict-a"])
def test_logs_that_grow_are_read_past_the_cache(profile: str) -> None:
    profiles: dict[str, Any] = {"profile": STRICT_A} if profile == "strict-a" else {}
    with (
        running_gateway(cache_s=60.0, **profiles) as (hive, server),
        rest(server.url, auth_token=server.token) as namespace,
    ):
        worker = hive.spawn_worker("worker-gpu")
        for number in range(1, 4):
            if number > 1 and profile == "default":
                worker = hive.spawn_worker("worker-gpu")
            namespace.append(SPEC, raw_grant(hive, worker, f"t-{number}", f"l-{number}"))
            assert len(namespace.read(SNAPSHOT)) == number


def test_a_log_and_offsets_of_another_moment_are_never_shown_as_one() -> None:
    """The records move on behind the gateway's back; all are of one length, so that sizes tell nothing."""
    with (
        running_gateway(cache_s=0.2) as (hive, server),
        rest(server.url, auth_token=server.token, cache_s=0.2, sleep=time.sleep) as namespace,
    ):
        places: dict[str, int] = {}
        for number in range(100, 160):
            hive.submit(
                raw_grant(hive, hive.spawn_worker("worker-gpu", f"w-{number}"), f"t-{number}", f"l-{number}")
            )
            if number % 6:
                continue
            for _ in range(5):
                before = namespace.read("/host/tickets/retention")
                lines = namespace.read(SNAPSHOT)
                after = namespace.read("/host/tickets/retention")
                if before == after:
                    break
            assert before == after
            at = parse_retention(after)["spec.snapshot"].base
            for line in lines:
                assert places.setdefault(line, at) == at, "a record moved, as if the hive had rebooted"
                at += len(line) + 1
        assert len(places) > 20
