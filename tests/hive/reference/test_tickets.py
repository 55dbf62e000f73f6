"""Sessions that were opened with a capability ticket."""

from __future__ import annotations

from typing import Any

import pytest
from capability_support import ISSUED_MS, SECRET, lab_ticket
from hive_support import TOKEN, WAITS, ManualClock, RawConsole, new_hive, running_hive
from scripted_console import FakeClock

from ticket_agent.hive.console.accepting import Line
from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.reference.limiter import AttachLimiter
from ticket_agent.hive.reference.session import ConsoleSession, Reply, SessionOptions
from ticket_agent.hive.reference.tickets import AttachDeniedError, TicketDesk
from ticket_agent.protocol.capability import Access, Quotas, Role, Scope
from ticket_agent.protocol.namespace import (
    Acked,
    HiveAuthError,
    HiveBusyError,
    HiveRefusedError,
    HiveUnreachableError,
    Refusal,
    RefusalKind,
    Refused,
)

SECRETS = {"queen": SECRET, "worker-gpu": "gpu-secret"}


def opened(clock: ManualClock) -> ConsoleSession:
    return ConsoleSession(
        new_hive(clock=clock),
        token=TOKEN,
        limiter=AttachLimiter(lambda: 0.0),
        options=SessionOptions(),
        desk=TicketDesk(SECRETS, clock=clock),
    )


def ask(session: ConsoleSession, line: str) -> str:
    heard = session.hear(Line(line.encode()))
    return (heard if isinstance(heard, Reply) else session.execute(heard)).lines[0]


OK = "OK ATTACH role={}"
DENIED = "ERR ATTACH reason=policy detail=denied"


@pytest.mark.parametrize(
    ("role", "ticket", "answer"),
    [
        ("queen", "", OK.format("queen")),
        ("queen", lab_ticket(), OK.format("queen")),
        ("queen", lab_ticket(secret="foreign"), DENIED),
        ("queen", lab_ticket(role=Role.GPU, subject="w", secret="gpu-secret"), DENIED),
        ("queen", "notaticket", DENIED),
        ("queen", lab_ticket(ttl_s=1), OK.format("queen")),
        ("queen", lab_ticket(ttl_s=0), "ERR ATTACH reason=policy detail=expired"),
        (
            "queen",
            lab_ticket(issued_at_ms=ISSUED_MS + 5_001),
            "ERR ATTACH reason=policy detail=invalid-claims",
        ),
        ("worker-gpu", "", DENIED),
        ("worker-gpu", lab_ticket(role=Role.GPU, subject="w", secret="gpu-secret"), OK.format("worker-gpu")),
        (
            "worker-gpu",
            lab_ticket(role=Role.GPU, secret="gpu-secret"),
            "ERR ATTACH reason=policy detail=invalid-claims",
        ),
        ("worker-bus", lab_ticket(role=Role.BUS, subject="w"), DENIED),
    ],
)
def test_who_is_admitted(role: str, ticket: str, answer: str) -> None:
    assert ask(opened(ManualClock(ISSUED_MS)), f"ATTACH {role} {ticket}") == answer


def test_a_shared_secret_makes_no_ticket_good_for_another_role() -> None:
    desk = TicketDesk({"queen": SECRET, "worker-bus": SECRET}, clock=lambda: ISSUED_MS)
    assert desk.admit("worker-bus", lab_ticket(role=Role.BUS, subject="w")) is not None
    with pytest.raises(AttachDeniedError):
        desk.admit("queen", lab_ticket(role=Role.BUS, subject="w"))


def scoped(clock: ManualClock, **claims: Any) -> ConsoleSession:
    session = opened(clock)
    assert ask(session, f"ATTACH queen {lab_ticket(**claims)}") == OK.format("queen")
    return session


def test_scopes_and_access() -> None:
    session = scoped(ManualClock(ISSUED_MS), scopes=(Scope(path="/proc", access=Access.READ),))
    assert ask(session, "CAT /proc/lifecycle/state").startswith("OK ")
    assert ask(session, "LS /host") == "ERR LS reason=policy path=/host error=EPERM"
    assert ask(session, "ECHO /proc/lifecycle/state x") == (
        "ERR ECHO reason=policy path=/proc/lifecycle/state error=EPERM"
    )
    assert ask(session, "PING").startswith("OK ")


def test_a_rate_is_per_second_and_recovers_with_the_next_one() -> None:
    clock = ManualClock(ISSUED_MS)
    session = scoped(clock, scopes=(Scope(path="/", access=Access.READ_WRITE, rate_per_s=2),))
    assert [ask(session, "LS /gpu").split(" ")[0] for _ in range(3)] == ["OK", "OK", "ERR"]
    assert ask(session, "LS /gpu") == "ERR LS reason=quota path=/gpu error=ELIMIT"
    clock.advance(1000)
    assert ask(session, "LS /gpu").startswith("OK ")


@pytest.mark.parametrize("claims", [{"ops": 2}, {"quotas": Quotas(bandwidth=1)}])
def test_a_budget_does_not_recover(claims: dict[str, Any]) -> None:
    clock = ManualClock(ISSUED_MS)
    session = scoped(clock, **claims)
    while ask(session, "LS /gpu").startswith("OK "):
        pass
    clock.advance(5000)
    assert ask(session, "LS /gpu") == "ERR LS reason=quota path=/gpu error=ELIMIT"


def test_a_session_ends_with_its_ticket() -> None:
    clock = ManualClock(ISSUED_MS)
    session = scoped(clock, ttl_s=10)
    clock.advance(9_999)
    assert ask(session, "LS /gpu").startswith("OK ")
    clock.advance(1)
    assert ask(session, "LS /gpu") == "ERR LS reason=policy path=/gpu error=EPERM"


def test_a_worker_reads_and_writes_nothing() -> None:
    session = opened(ManualClock(ISSUED_MS))
    ask(session, f"ATTACH worker-gpu {lab_ticket(role=Role.GPU, subject='w', secret='gpu-secret')}")
    assert ask(session, "LS /gpu").startswith("OK ")
    assert ask(session, "ECHO /log/queen.log x") == "ERR ECHO reason=policy detail=denied"


# Our client with a ticket


def client(port: int, ticket: str, *, now_ms: int = ISSUED_MS, role: str = "queen") -> ConsoleNamespace:
    clock = FakeClock()
    config = ConsoleConfig(port=port, token=TOKEN, ticket="env:T", role=role, use_lock=False, **WAITS)
    return ConsoleNamespace(
        config, env={"T": ticket}, monotonic=clock.monotonic, sleep=clock.sleep, now_ms=lambda: now_ms
    )


def test_a_scoped_client_learns_its_limits_as_refusals() -> None:
    ticket = lab_ticket(scopes=(Scope(path="/log", access=Access.READ_WRITE, rate_per_s=1),))
    with (
        running_hive(clock=ManualClock(ISSUED_MS), ticket_secrets=SECRETS) as (_, server),
        client(server.port, ticket) as console,
    ):
        assert isinstance(console.append("/log/queen.log", "x"), Acked)
        limit = Refusal(kind=RefusalKind.LIMIT, text="ERR ECHO reason=quota path=/log/queen.log error=ELIMIT")
        assert console.append("/log/queen.log", "y") == Refused(limit)
        with pytest.raises(HiveRefusedError) as caught:
            console.ls("/gpu")
        assert caught.value.refusal.kind is RefusalKind.DENIED


UNUSABLE = {
    "no ticket at all": ("notaticket", {}, "no ticket"),
    "another role": (lab_ticket(), {"role": "worker-gpu"}, "is for role queen"),
    "expired": (lab_ticket(ttl_s=1), {"now_ms": ISSUED_MS + 1000}, "expired 0 s ago"),
    "not yet issued": (lab_ticket(), {"now_ms": ISSUED_MS - 60_000}, "check both clocks"),
    "a Worker's without subject": (lab_ticket(role=Role.GPU), {"role": "worker-gpu"}, "no subject"),
}


@pytest.mark.parametrize(("ticket", "how", "words"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_ticket_that_cannot_work_never_reaches_the_limiter_of_all(
    ticket: str, how: dict[str, Any], words: str
) -> None:
    with running_hive(clock=ManualClock(ISSUED_MS), ticket_secrets=SECRETS) as (_, server):
        for _ in range(5):
            with pytest.raises(HiveAuthError, match=words) as caught:
                client(server.port, ticket, **how).connect()
            assert ticket not in str(caught.value)
        with RawConsole(server.port) as other:
            assert other.ask("PING") == "OK PING reply=pong"


def test_a_ticket_the_hive_refuses_costs_others_a_throttle_and_never_the_lockout() -> None:
    """Two refusals a minute at most: the third one would lock everybody out for 90 s."""
    seconds = FakeClock()
    with running_hive(clock=ManualClock(ISSUED_MS), ticket_secrets=SECRETS, monotonic=seconds.monotonic) as (
        _,
        server,
    ):
        bad = client(server.port, lab_ticket(secret="foreign"))
        for _ in range(6):
            with pytest.raises((HiveAuthError, HiveBusyError)):
                bad.connect()
            seconds.now += 1
        with client(server.port, lab_ticket()) as good:
            good.connect()


def test_a_session_is_left_when_its_ticket_ends_and_the_rotated_one_is_presented() -> None:
    env = {"T": lab_ticket(ttl_s=10)}
    clock, seconds = ManualClock(ISSUED_MS), FakeClock()
    with running_hive(clock=clock, ticket_secrets=SECRETS) as (_, server):
        console = ConsoleNamespace(
            ConsoleConfig(port=server.port, token=TOKEN, ticket="env:T", use_lock=False, **WAITS),
            env=env,
            monotonic=seconds.monotonic,
            sleep=seconds.sleep,
            now_ms=clock,
        )
        with console:
            clock.advance(9_999)
            assert console.ls("/gpu")
            env["T"] = lab_ticket(ttl_s=60)
            assert console.ls("/gpu")
            assert console.session == 1
            clock.advance(1)
            with pytest.raises(HiveUnreachableError, match="session 1 is over; nothing was sent"):
                console.append("/log/queen.log", "x", session=1)
            assert console.ls("/gpu")
            assert console.session == 2
            clock.advance(60_000)
            with pytest.raises(HiveAuthError, match="expired"):
                console.ls("/gpu")
