"""Delegated tickets at the gateway: minted for a lab, used by our client and refused by every rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hive_support import SPEC, START_MS, STATUS, ManualClock, running_gateway
from rest_support import rest

from ticket_agent.hive.reference import DelegatedTickets
from ticket_agent.protocol.capability import Access, Claims, Quotas, Role, Scope, mint_ticket
from ticket_agent.protocol.namespace import HiveRefusedError, RefusalKind, Refused

KEY = "delegation-key"
GOOD = Claims(
    role=Role.QUEEN,
    issued_at_ms=START_MS,
    ttl_s=600,
    subject="a",
    scopes=(Scope(path="/host", access=Access.READ_WRITE),),
)


def _append(claims: Claims, *, path: str = SPEC, key: str = KEY, clock: ManualClock | None = None) -> Any:
    clock = clock or ManualClock()
    ticket = mint_ticket(claims, key).reveal()
    with (
        running_gateway(clock=clock, delegation=DelegatedTickets(clock=clock, key=KEY)) as (_, server),
        rest(server.url, auth_token=server.token, ticket=ticket) as namespace,
    ):
        answer = namespace.append(path, "{}")
        assert isinstance(answer, Refused)
        return answer.refusal


def test_a_good_ticket_lets_the_hive_decide() -> None:
    assert _append(GOOD).kind is RefusalKind.INVALID_PAYLOAD


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"subject": None}, "subject"),
        ({"ttl_s": None}, "ttl"),
        ({"ttl_s": 86_401}, "ttl"),
        ({"issued_at_ms": START_MS + 1}, "issued-at"),
        ({"issued_at_ms": START_MS - 600_000}, "scope"),
        ({"scopes": ()}, "scope"),
        ({"scopes": (Scope(path="/host", access=Access.READ),)}, "scope"),
        ({"scopes": (Scope(path="/host/tickets/status", access=Access.WRITE),)}, "scope"),
        ({"scopes": (Scope(path="/host/tick", access=Access.WRITE),)}, "scope"),
    ],
)
def test_claims_that_do_not_do(changes: dict[str, Any], why: str) -> None:
    refusal = _append(replace(GOOD, **changes))
    assert refusal.kind is RefusalKind.DENIED
    assert f"EPERM delegated-ticket-{why}" in refusal.text


def test_a_ticket_of_another_key() -> None:
    assert "delegated-ticket-mac" in _append(GOOD, key="another").text


def test_reads_need_a_ticket_too_and_its_scope() -> None:
    clock = ManualClock()
    delegation = DelegatedTickets(clock=clock, key=KEY)
    ticket = mint_ticket(GOOD, KEY).reveal()
    with running_gateway(clock=clock, delegation=delegation) as (_, server):
        with rest(server.url, auth_token=server.token, ticket=ticket) as namespace:
            assert namespace.tail(STATUS) == []
            with pytest.raises(HiveRefusedError, match="delegated-ticket-scope"):
                namespace.ls("/gpu")
            clock.advance(-1)
            with pytest.raises(HiveRefusedError, match="delegated-ticket-clock"):
                namespace.tail(STATUS)
        with (
            rest(server.url, auth_token=server.token) as without,
            pytest.raises(HiveRefusedError, match="exactly once"),
        ):
            without.tail(STATUS)


@pytest.mark.parametrize(
    "limits",
    [
        {"ops": 2},
        {"scopes": (Scope(path="/host", access=Access.READ_WRITE, rate_per_s=2),)},
        {"quotas": Quotas(bandwidth=4)},
    ],
)
def test_what_is_used_up_is_counted_per_ticket_and_not_per_connection(limits: dict[str, Any]) -> None:
    clock = ManualClock()
    ticket = mint_ticket(replace(GOOD, **limits), KEY).reveal()
    with running_gateway(clock=clock, delegation=DelegatedTickets(clock=clock, key=KEY)) as (_, server):
        kinds = []
        for _ in range(3):
            with rest(server.url, auth_token=server.token, ticket=ticket) as namespace:
                answer = namespace.append(SPEC, "{}")
                assert isinstance(answer, Refused)
                kinds.append(answer.refusal.kind)
    assert kinds == [RefusalKind.INVALID_PAYLOAD, RefusalKind.INVALID_PAYLOAD, RefusalKind.LIMIT]
