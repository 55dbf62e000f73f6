"""The lease actions over a real console: sockets, lost answers, reconnects, reboots."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hive_support import LEASE_CTL, TOKEN, admitted, raw_lease, running_hive

from ticket_agent.gpu.compat import compat_lease_providers
from ticket_agent.gpu.lease import lease_providers
from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.reference import Fault, FaultKind, Faults
from ticket_agent.journal.outcome import Committed, Outcome, Plan, PlanRefusedError, Rejected, Unknown
from ticket_agent.protocol.lease import GrantControl, PreemptControl
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.hive.reference import ReferenceHive
    from ticket_agent.protocol.spec import HostTicketSpec

WORKER = "worker-gpu-1"
EFFECT = {"grant": "grant", "renew": "renew-bound", "release": "preempt"}
VERBS = tuple(EFFECT)
PATIENCE_S = 60.0
"""Seconds that a busy machine may take for an answer."""


@dataclass
class Lab:
    """A served hive, and the agent's side of it."""

    hive: ReferenceHive
    port: int
    faults: Faults
    lock_dir: Path
    applied: list[tuple[str, str]] = field(default_factory=list)
    instance: int = 0
    tickets: int = 0

    @contextmanager
    def process(self) -> Iterator[ConsoleNamespace]:
        """A process of the agent, with a session counter and an instance of its own."""
        self.instance += 1
        config = ConsoleConfig(
            port=self.port,
            token=TOKEN,
            lock_dir=self.lock_dir,
            command_s=PATIENCE_S,
            auth_s=PATIENCE_S,
        )
        with ConsoleNamespace(config, env={}) as namespace:
            yield namespace

    def ticket(self, verb: str) -> HostTicketSpec:
        """A ticket as the root admitted it."""
        self.tickets += 1
        ticket_id = f"ticket-{self.tickets}"
        self.hive.submit(raw_lease(self.hive, WORKER, verb, ticket_id, "lease-1"))
        return admitted(self.hive, ticket_id)

    def count(self, verb: str) -> int:
        return self.hive.effect_count(EFFECT[verb], "lease-1")

    def by_hand(self, line: str) -> None:
        """What another client of the ledger does."""
        self.hive.echo(LEASE_CTL, line)

    def lease(self, subject: str = WORKER) -> None:
        self.by_hand(
            GrantControl(id="lease-1", subject=subject, resource="GPU-0", ttl_s=5, priority=0).encode()
        )


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    faults = Faults()
    with running_hive(faults=faults) as (hive, server):
        hive.spawn_worker("worker-gpu", WORKER)
        lab = Lab(hive, server.port, faults, tmp_path)
        faults.on_applied(lambda path, line: lab.applied.append((path, line)))
        yield lab


def start(lab: Lab, namespace: ConsoleNamespace, verb: str) -> tuple[HostTicketSpec, Plan]:
    if verb != "grant":
        lab.lease()
    request = lab.ticket(verb)
    plan = lease_providers(namespace, instance=str(lab.instance))[request.action].plan(request)
    # As it comes back from a journal.
    return request, Plan(
        **{part: json.loads(json.dumps(dict(getattr(plan, part)))) for part in ("before", "intent")}
    )


def observe(lab: Lab, namespace: ConsoleNamespace, request: HostTicketSpec, plan: Plan) -> Outcome:
    applied = list(lab.applied)
    outcome = lease_providers(namespace, instance=str(lab.instance))[request.action].observe(plan)
    assert lab.applied == applied
    return outcome


def check(outcome: Outcome, kind: type[Outcome], text: str = "") -> None:
    assert isinstance(outcome, kind), outcome
    assert text in outcome.detail


@pytest.mark.parametrize("verb", VERBS)
def test_an_action_is_one_write_and_one_effect(lab: Lab, verb: str) -> None:
    with lab.process() as namespace:
        request, plan = start(lab, namespace, verb)
        before = lab.count(verb)
        check(lease_providers(namespace)[request.action].execute(plan), Committed)
    assert lab.applied == [(LEASE_CTL, plan.intent["line"])]
    assert lab.count(verb) == before + 1


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", [FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER, FaultKind.GARBAGE])
@pytest.mark.parametrize("restart", [False, True])
def test_a_lost_answer_is_settled_by_the_next_session(
    lab: Lab, verb: str, kind: FaultKind, *, restart: bool
) -> None:
    lab.faults.add(Fault(kind=kind, prefix=LEASE_CTL))
    with lab.process() as namespace:
        request, plan = start(lab, namespace, verb)
        before = lab.count(verb)
        provider = lease_providers(namespace, instance=str(lab.instance))[request.action]
        check(provider.execute(plan), Unknown)
        if not restart:
            outcome = provider.observe(plan)
    if restart:
        with lab.process() as namespace:
            outcome = observe(lab, namespace, request, plan)
    if kind is FaultKind.DROP_BEFORE:
        check(outcome, Rejected, "not applied")
        assert lab.count(verb) == before
    else:
        check(outcome, Committed)
        assert lab.count(verb) == before + 1


@pytest.mark.parametrize("verb", VERBS)
def test_a_refusal_of_the_hive_is_definite(lab: Lab, verb: str) -> None:
    lab.faults.add(Fault(kind=FaultKind.ERR, prefix=LEASE_CTL))
    with lab.process() as namespace:
        request, plan = start(lab, namespace, verb)
        before = lab.count(verb)
        check(lease_providers(namespace)[request.action].execute(plan), Rejected, "refused by the hive")
    assert lab.count(verb) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_write_that_was_late_has_arrived_when_the_next_session_is_attached(lab: Lab, verb: str) -> None:
    go_on = threading.Event()
    lab.faults.add(Fault(kind=FaultKind.DELAY, prefix=LEASE_CTL, seconds=60.0, event=go_on))
    with lab.process() as namespace:
        request, plan = start(lab, namespace, verb)
        before = lab.count(verb)
        # Only now: whatever is asked before has an answer, and may wait for it.
        namespace._command_s = 0.3
        check(lease_providers(namespace)[request.action].execute(plan), Unknown)
        assert lab.count(verb) == before
    go_on.set()
    with lab.process() as namespace:
        # The first reading waits for the attachment, and so for whatever the old connection still carried.
        check(lease_providers(namespace)[request.action].observe(plan), Committed)
    assert lab.count(verb) == before + 1


def test_the_real_ledger_refuses_what_another_client_made_impossible(lab: Lab) -> None:
    with lab.process() as namespace:
        request, plan = start(lab, namespace, "grant")
        lab.lease("worker-gpu-9")
        check(lease_providers(namespace)[request.action].execute(plan), Rejected, "invalid-payload")
        check(observe(lab, namespace, request, plan), Rejected, "wrong-binding")


def test_a_lease_hidden_from_the_aggregate_nodes_is_found(lab: Lab) -> None:
    with lab.process() as namespace:
        for number in range(6):
            name = f"a-rather-long-name-of-a-lease-{number}"
            lab.by_hand(GrantControl(id=name, subject=WORKER, resource="GPU-1", ttl_s=5, priority=0).encode())
            if number % 2:
                lab.by_hand(PreemptControl(id=name, reason="gone").encode())
        request, plan = start(lab, namespace, "grant")
        check(lease_providers(namespace)[request.action].execute(plan), Committed)
        request = parse_spec(request.encode().replace(b"lease.grant", b"lease.release"), source="admitted")
        providers = lease_providers(namespace)
        plan = providers[request.action].plan(request)
        check(providers[request.action].execute(plan), Committed)
    assert lab.count("release") == 1


def test_a_withdrawn_inventory_refuses_grants_and_lets_releases_through(lab: Lab) -> None:
    lab.lease()
    request = lab.ticket("release")
    as_grant = parse_spec(request.encode().replace(b"lease.release", b"lease.grant"), source="admitted")
    lab.hive.withdraw_inventory()
    with lab.process() as namespace:
        providers = lease_providers(namespace)
        with pytest.raises(PlanRefusedError, match="absent from the /gpu inventory"):
            providers[as_grant.action].plan(as_grant)
        check(providers[request.action].execute(providers[request.action].plan(request)), Committed)


@pytest.mark.parametrize("verb", VERBS)
def test_after_a_reboot_the_outcome_is_unknown(lab: Lab, verb: str) -> None:
    lab.faults.add(Fault(kind=FaultKind.DROP_AFTER, prefix=LEASE_CTL))
    if verb != "grant":
        lab.lease()
    request = lab.ticket(verb)
    with lab.process() as namespace:
        provider = lease_providers(namespace, epoch=lambda: lab.hive.boots)[request.action]
        plan = provider.plan(request)
        check(provider.execute(plan), Unknown)
        lab.hive.reboot()
        check(provider.observe(plan), Unknown)


def test_version_1_reserves_and_releases_a_gpu(lab: Lab) -> None:
    def v1(action: str) -> HostTicketSpec:
        line = {"schema": "host-ticket/v1", "id": action, "idempotency_key": "k", "action": action}
        return parse_spec(json.dumps({**line, "args": {"gpu_id": "GPU-1"}}).encode(), source="raw")

    with lab.process() as namespace:
        providers = compat_lease_providers(namespace)
        for verb, status in (("grant", "verified"), ("release", "released")):
            request = v1(f"gpu.lease.{verb}")
            plan = providers[request.action].plan(request)
            check(providers[request.action].execute(plan), Committed, f"status={status}")
    assert lab.hive.effect_count("spawn", "GPU-1") == 1
