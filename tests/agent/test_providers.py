"""Who performs what, and how tickets are named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from agent_faults import blind
from agent_support import agent_on
from hive_support import ManualClock, raw_grant, running_hive
from hypothesis import given
from hypothesis import strategies as st
from journal_support import REQUEST, open_store
from ticket_lines import ADMITTED, V1, line

from ticket_agent.agent.keys import V2_FAMILY, base_key, base_of, reuse_key
from ticket_agent.agent.lookup import related
from ticket_agent.agent.operation import open_operation
from ticket_agent.agent.providers import NotEnabled, ProviderTable
from ticket_agent.journal.outcome import Plan, PlanRefusedError, PlanWaitsError, Rejected, Unknown
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.spec import HostTicketSpec, parse_spec

if TYPE_CHECKING:
    from pathlib import Path

PLAN = Plan(before={}, intent={})


def spec(document: dict[str, Any] = ADMITTED, **changes: Any) -> HostTicketSpec:
    known = document | changes
    return parse_spec(line(known), source="admitted" if document is ADMITTED else "raw")


class Stub(NotEnabled):
    """Some provider."""

    def __init__(self) -> None:
        super().__init__("stub", "a test")


def test_a_provider_is_found_by_version_and_action() -> None:
    first, second = Stub(), Stub()
    table = ProviderTable(v1={"gpu.lease.grant": first}, v2={"gpu.lease.grant": second}, allowlist=None)
    assert table.provider_for(spec(V1, action="gpu.lease.grant")) is first
    assert table.provider_for(spec()) is second


@pytest.mark.parametrize(
    ("action", "allowlist", "reason"),
    [
        ("gpu.lease.renew", None, "have no provider here"),
        ("gpu.lease.grant", frozenset({"gpu.lease.renew"}), "action_allowlist"),
        ("gpu.lease.grant", frozenset[str](), "action_allowlist"),
    ],
)
def test_everything_else_is_not_enabled(action: str, allowlist: frozenset[str] | None, reason: str) -> None:
    table = ProviderTable(v1={}, v2={"gpu.lease.grant": Stub()}, allowlist=allowlist)
    provider = table.provider_for(spec(action=action))
    with pytest.raises(PlanRefusedError, match=reason):
        provider.plan(spec(action=action))


def test_not_enabled_claims_no_knowledge() -> None:
    """An agent with the provider may have dispatched the ticket before this one was started."""
    provider = NotEnabled("peft.export", "a reason")
    assert isinstance(provider.observe(PLAN), Unknown)
    assert isinstance(provider.execute(PLAN), Rejected)
    assert "a reason" in provider.observe(PLAN).detail


def test_not_enabled_tickets_hold_nobody_up() -> None:
    provider = NotEnabled("peft.export", "a reason")
    lanes = {provider.lane(spec(id=name)) for name in ("a", "b", "c")}
    assert len(lanes) == 3


TOKENS = st.text("abcXYZ019.-_:", min_size=1, max_size=128).filter(lambda text: not text.startswith("-"))


@given(first=st.tuples(TOKENS, TOKENS), second=st.tuples(TOKENS, TOKENS))
def test_no_two_tickets_share_a_name(first: tuple[str, str], second: tuple[str, str]) -> None:
    names = []
    for ticket_id, key in (first, second):
        v2 = base_key(spec(id=ticket_id, idempotency_key=key))
        v1 = base_key(spec(V1, id=ticket_id, idempotency_key=key))
        family = [v2, v1, reuse_key(v2, 2, 7), reuse_key(v2, 27, 7), reuse_key(v1, 2, None)]
        assert len(set(family)) == 5
        assert all(len(name) <= 512 for name in family)
        assert [base_of(name)[0] for name in family] == [v2, v1, v2, v2, v1]
        assert [base_of(name)[1] for name in family] == [False, False, True, True, True]
        names.append(set(family))
    assert (first == second) == bool(names[0] & names[1])


def test_related_admissions_of_a_pair_are_found_oldest_first(tmp_path: Path) -> None:

    with open_store(tmp_path / "state") as store:
        for key, epoch, sequence in [
            ("1:a:k@2.1", 2, 1),
            ("1:a:k", 1, 9),
            ("1:b:k", 1, 8),
            ("1:a:k@1.12", 1, 12),
        ]:
            store.prepare(key=key, family="f", epoch=epoch, sequence=sequence, request=REQUEST)
        assert [r.key for r in related(store.records, "1:a:k@2.1")] == ["1:a:k", "1:a:k@1.12"]
        assert [r.key for r in related(store.records, "1:b:k")] == []


def test_results_are_grouped_by_the_worker_that_was_admitted(tmp_path: Path) -> None:

    changes: list[dict[str, Any]] = [
        {},
        {"resolved_lease_epoch": 9},
        {"receipt_supervisor_generation": 9},
        {"receipt_cap_generation": 9},
        {"resolved_worker_slot": 9},
        {"receipt_worker_id": "worker-9"},
    ]
    groups = []
    with open_store(tmp_path / "state") as store:
        for number, change in enumerate(changes, start=1):
            request = line(ADMITTED | change | {"id": f"t{number}", "admission_sequence": number})
            admitted = parse_spec(request, source="admitted")
            record = store.prepare(
                key=base_key(admitted), family=V2_FAMILY, epoch=1, sequence=number, request=request
            )
            groups.append(open_operation(record, admitted, Stub()).group)
    assert len(set(groups)) == len(changes)


def test_an_open_operation_whose_action_was_switched_off_is_not_judged(tmp_path: Path) -> None:

    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "t1", "lease-1", expires=clock() + 1000))
        blind(server)
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            bench.passes(2)
        server.faults.clear()
        with agent_on(server, tmp_path / "state", clock=clock, allowlist=frozenset()) as bench:
            bench.passes(3)
            assert not bench.record("t1").terminal
            clock.advance(1000)
            bench.settle()
        (result,) = hive.terminal_lines(("t1", "key-t1"))
        assert json.loads(result)["state"] == "expired"


def test_what_cannot_be_planned_now_waits_with_the_reason_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with running_hive(clock=clock) as (hive, server):
        hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "t1", "lease-1"))
        with agent_on(server, tmp_path / "state", clock=clock) as bench:
            provider = bench.agent._providers.provider_for(spec())
            plan = provider.plan

            def wait(request: HostTicketSpec) -> Plan:
                raise PlanWaitsError(f"{request.subject_ref} is in use by process 7")

            monkeypatch.setattr(provider, "plan", wait)
            bench.passes(3)
            record = bench.record("t1")
            assert record.state is State.PREPARED
            assert bench.waiting(record.key) == "GPU-0 is in use by process 7"
            monkeypatch.setattr(provider, "plan", plan)
            bench.settle()
        assert hive.admission_of("t1").outcome == "confirmed"
