"""The callers' own log: nothing in it can stop the agent, and version-1 tickets keep the same promise."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from agent_faults import DyingAppends, Killed, drop, root_writes
from agent_support import Bench, agent_on
from hive_support import DEADLETTER, STATUS, ManualClock, raw_grant, raw_ticket, running_hive

from ticket_agent.hive.reference import DEFAULT, STRICT_A, HiveProfile, ReferenceHive
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

V1_RECEIPTS = replace(DEFAULT, accept_v1_lease_actions=True)
V1_STRICT = replace(STRICT_A, accept_v1_lease_actions=True, slots_per_role=8)


def v1(ticket: str = "c1", action: str = "gpu.lease.grant", **members: object) -> str:
    known = {"schema": "host-ticket/v1", "id": ticket, "idempotency_key": f"key-{ticket}", "action": action}
    if action == "gpu.lease.grant":
        known["args"] = {"gpu_id": "GPU-0"}  # type: ignore[assignment]
    return json.dumps(known | members)


def _states_in(hive: ReferenceHive, path: str, ticket: str) -> list[str]:
    return [result["state"] for result in map(json.loads, hive.cat(path)) if result["id"] == ticket]


def _raw(hive: ReferenceHive, line: str) -> None:
    root_writes(hive, "spec", line)


def _good_one(hive: ReferenceHive) -> None:
    hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "good", "lease-good"))


BAD_LINES: Mapping[str, Callable[[ReferenceHive], str]] = {
    "no-json": lambda hive: "{nonsense",
    "no-object": lambda hive: "[1]",
    "number": lambda hive: "17",
    "too-long": lambda hive: v1(args={"x": "y" * 2100}),
    "huge-number": lambda hive: v1().replace('"GPU-0"', "1" * 400),
    "deep": lambda hive: v1().replace('"GPU-0"', "[" * 200 + "]" * 200),
    "unknown-schema": lambda hive: v1(schema="host-ticket/v9"),
    "unknown-member": lambda hive: v1(surprise=1),
    "doubled-member": lambda hive: v1()[:-1] + ',"id":"c2"}',
    "bad-token": lambda hive: v1(ticket="-dash"),
    "v1-with-v2-members": lambda hive: v1(receipt_mode="worker"),
    "v2-of-root": lambda hive: v1(schema="host-ticket/v2"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_counted_once_and_stops_nobody(tmp_path: Path, name: str) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _raw(hive, BAD_LINES[name](hive))
        _good_one(hive)
        _raw(hive, BAD_LINES[name](hive))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            bench.passes(3)
            assert bench.agent.intake.counters.malformed_callers == 1
            (event,) = bench.events("caller-line-skipped")
            assert event["reason"]
            assert len(bench.store.records) == 1
        assert hive.admission_of("good").outcome == "confirmed"


def test_blank_lines_are_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _raw(hive, " ")
        _good_one(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            assert bench.agent.intake.counters.malformed_callers == 0


def test_a_callers_version_2_line_is_never_executed_itself(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _raw(hive, raw_grant(hive, hive.spawn_worker("worker-gpu"), "never", "lease-never"))
        _good_one(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            assert bench.agent.intake.counters.malformed_callers == 0
        assert {effect.subject: count for effect, count in hive.effects.items()} == {"lease-good": 1}


def test_a_ticket_for_another_hive_is_skipped_without_a_result(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(V1_RECEIPTS, clock=clock) as (hive, server):
        hive.submit(v1("far", source_hive="hive-b", target_hive="hive-c"))
        hive.submit(v1("near", source_hive="hive-b", target_hive="hive-a"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            assert bench.agent.intake.counters.other_hive == 1
            assert [bench.record("near").state] == [r.state for r in bench.store.records.values()]
        assert _states_in(hive, STATUS, "near") == ["claimed", "running", "succeeded"]
        assert _states_in(hive, STATUS, "far") == []


def test_the_same_pair_with_other_content_is_a_conflict(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(V1_RECEIPTS, clock=clock) as (hive, server):
        hive.submit(v1())
        hive.submit(v1(args={"gpu_id": "GPU-1"}))
        hive.submit(v1())
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            bench.passes(2)
            assert bench.agent.intake.counters.conflicts == 1
            assert len(bench.events("idempotency-conflict")) == 1
        assert {effect.subject: count for effect, count in hive.effects.items()} == {"GPU-0": 1}


@pytest.mark.parametrize("profile", [V1_RECEIPTS, V1_STRICT], ids=["default", "strict-a"])
def test_a_version_1_grant_runs_once(tmp_path: Path, profile: HiveProfile) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        hive.submit(v1())
        for _ in range(3):
            with agent_on(server, tmp_path / "state", clock=clock) as bench:
                bench.settle()
                bench.passes(2)
        assert _states_in(hive, STATUS, "c1") == ["claimed", "running", "succeeded"]
        assert hive.effect_count("spawn", "GPU-0") == 1


def test_an_expired_version_1_ticket_is_not_claimed(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(V1_RECEIPTS, clock=clock) as (hive, server):
        hive.submit(v1(expires_unix_ms=clock()))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
        assert _states_in(hive, STATUS, "c1") == []
        assert _states_in(hive, DEADLETTER, "c1") == ["expired"]
        assert not hive.effects


@pytest.mark.parametrize("sent", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("append", range(4), ids=["claimed", "running", "effect", "result"])
@pytest.mark.parametrize("profile", [V1_RECEIPTS, V1_STRICT], ids=["default", "strict-a"])
def test_death_during_a_version_1_ticket_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: HiveProfile, append: int, sent: bool
) -> None:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        hive.submit(v1(expires_unix_ms=clock() + 1000))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            monkeypatch.setattr(bench.namespace, "append", DyingAppends(bench.namespace, append, sent=sent))
            with pytest.raises(Killed):
                bench.settle()
            drop(bench)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            _passes(bench)
            unknowable = append == 2 and sent
            assert (bench.record("c1").state is State.EXECUTING) == unknowable
            clock.advance(1000)
            bench.settle()
        applied = 0 if append == 2 and not sent else 1
        assert hive.effect_count("spawn", "GPU-0") == applied
        (line,) = hive.terminal_lines(("c1", "key-c1"))
        expected = "expired" if unknowable else "succeeded" if applied else "failed"
        assert json.loads(line)["state"] == expected


@pytest.mark.parametrize("append", range(4), ids=["claimed", "running", "effect", "result"])
def test_a_version_1_pair_from_an_earlier_life_of_the_hive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, append: int
) -> None:
    """Dispatched before: refused. Only claimed before: performed in the new life."""
    clock = ManualClock()
    with running_hive(V1_RECEIPTS, clock=clock) as (hive, server):
        _good_one(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
            bench.passes(1)
            hive.submit(v1())
            monkeypatch.setattr(bench.namespace, "append", DyingAppends(bench.namespace, append, sent=True))
            bench.agent._feed.forget()
            with pytest.raises(Killed):
                bench.until(lambda: bench.agent.totals.ended == 2, limit=100_000)
            drop(bench)
        hive.reboot()
        hive.submit(v1())
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(1)
            bench.settle()
        assert hive.effect_count("spawn", "GPU-0") == 1
        dispatched = append >= 2
        assert _states_in(hive, DEADLETTER, "c1") == (["failed"] if dispatched else [])
        assert _states_in(hive, STATUS, "c1").count("succeeded") == (not dispatched)


@pytest.mark.parametrize(
    ("action", "args"),
    [
        ("systemd.restart", {"unit": "nginx.service"}),
        ("docker.stop", {"container": "web"}),
        ("k8s.drain", {"node": "n1"}),
    ],
)
def test_version_1_actions_without_a_provider_are_refused(
    tmp_path: Path, action: str, args: Mapping[str, str]
) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        hive.submit(v1(action=action, args=args))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
        (line,) = hive.cat(DEADLETTER)
        assert json.loads(line)["state"] == "failed"
        assert f"{action} is not enabled" in json.loads(line)["message"]
        assert _states_in(hive, STATUS, "c1") == []


@pytest.mark.parametrize("action", ["peft.export", "peft.activate", "peft.rollback"])
def test_version_2_actions_without_a_provider_are_refused(tmp_path: Path, action: str) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        worker = hive.spawn_worker("worker-lora")
        hive.submit(raw_ticket(worker, action, ticket_id="t1", operation_id="job-1", subject="model-1"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
        assert hive.admission_of("t1").outcome == "rejected"
        assert f"{action} is not enabled" in json.loads(hive.cat(DEADLETTER)[0])["message"]


def test_an_action_that_the_hives_list_does_not_name_is_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        _good_one(hive)
        with agent_on(
            server, tmp_path / "state", clock=clock, allowlist=frozenset({"gpu.lease.renew"})
        ) as bench:
            bench.settle()
        assert "action_allowlist" in json.loads(hive.cat(DEADLETTER)[0])["message"]
        assert not hive.effects


def test_a_damaged_record_of_a_version_1_ticket_stops_nobody(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_hive(V1_RECEIPTS, clock=clock) as (hive, server):
        hive.submit(v1())
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.settle()
        (record,) = (tmp_path / "state" / "ops").glob("*.rec")
        record.write_bytes(record.read_bytes()[:-5])
        hive.submit(v1("c2", args={"gpu_id": "GPU-1"}))
        _good_one(hive)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(1)
            bench.settle()
            assert len(bench.events("quarantined")) == 1
        assert Counter(effect.subject for effect in hive.effects.elements()) == {
            "GPU-0": 1,
            "GPU-1": 1,
            "lease-good": 1,
        }


def _passes(bench: Bench, count: int = 5) -> None:
    for _ in range(count):
        bench.hurry()
        bench.passes(1)
