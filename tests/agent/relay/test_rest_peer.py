"""A peer behind a REST gateway: an unanswered request may still be carried out later."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hive_support import SPEC, TOKEN, new_hive, running_hive
from relay_support import ACTION, ANSWER_S, arrived, perform, relaying, run_until, ticket

from ticket_agent.agent.relay.contact import PeerLink
from ticket_agent.agent.relay.relay import RelayPlan
from ticket_agent.cli.peers import peer_namespace, relay_plan
from ticket_agent.config import AgentConfig
from ticket_agent.config_relay import PeerSettings, RelaySettings
from ticket_agent.hive.reference import DEFAULT, STRICT_A, Fault, FaultKind, HiveProfile
from ticket_agent.hive.reference.gateway import GatewayTimes
from ticket_agent.hive.reference.gateway_server import GatewayServer
from ticket_agent.protocol.paths import TicketPaths

if TYPE_CHECKING:
    from pathlib import Path

SETTLE_S = 0.3
"""Short, as the gateway of these tests holds nothing back: what it took it has applied before it answers."""


def settings(server: GatewayServer) -> PeerSettings:
    return PeerSettings(name="hive-b", url=f"http://127.0.0.1:{server.port}", auth_token=TOKEN)


@pytest.mark.parametrize(
    ("kind", "profile"),
    [
        (None, DEFAULT),
        (FaultKind.STATUS_BEFORE, STRICT_A),
        (FaultKind.STATUS_AFTER, DEFAULT),
        (FaultKind.DROP_AFTER, DEFAULT),
    ],
)
def test_it_arrives_once_and_its_result_comes_back(
    tmp_path: Path, kind: FaultKind | None, profile: HiveProfile
) -> None:
    peer = new_hive(profile)
    peer.echo(SPEC, ticket("somebody-elses", target=None, source=None))
    taken: list[str] = []
    clock = lambda: time.time_ns() // 1_000_000  # noqa: E731 - the server's own notion of time
    times = GatewayTimes(cache_s=0.1)
    with (
        GatewayServer(peer, clock=clock, token=TOKEN, times=times) as gateway,
        running_hive() as (hive, server),
    ):
        gateway.faults.on_applied(lambda path, line: taken.append(line) if path == SPEC else None)
        if kind is not None:
            gateway.faults.add(Fault(kind=kind, verb="ECHO", prefix=SPEC, nth=1))
        hive.echo(SPEC, ticket())
        link = PeerLink(
            "hive-b",
            lambda: peer_namespace(settings(gateway), timeout_s=ANSWER_S, cache_s=0.1),
            paths=TicketPaths("/host"),
            gives_way=False,
            settle_s=SETTLE_S,
        )
        plan = RelayPlan(links=(link,), actions=frozenset({ACTION}))
        with relaying(server, tmp_path / "state", plan) as bench:
            run_until(bench, lambda: bench.events("relay-delivered"))
            assert len(taken) == 1
            perform(peer)
            run_until(bench, lambda: not bench.store.open_records())
        assert [spec.id for spec in arrived(peer)] == ["somebody-elses", "t1"]
        assert len(taken) == 1
        assert len(hive.terminal_lines(("t1", "key-t1"))) == 1


def test_credentials_of_this_hive_never_reach_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment holds for our own gateway stays with it."""
    monkeypatch.setenv("COH_REST_TICKET", "cohesix-ticket-" + "00" * 20)
    peer = new_hive()
    heard: list[dict[str, str]] = []
    with GatewayServer(peer, clock=lambda: 0, token=TOKEN) as gateway:
        answer = gateway.gateway.handle

        def listening(request: object) -> object:
            heard.append(dict(request.headers))  # type: ignore[attr-defined]
            return answer(request)  # type: ignore[arg-type]

        monkeypatch.setattr(gateway.gateway, "handle", listening)
        namespace = peer_namespace(settings(gateway), timeout_s=2.0)
        namespace.ls("/host/tickets")
        namespace.close()
    assert heard
    assert not any("x-cohesix-ticket" in headers for headers in heard)


def test_links_follow_the_transport(tmp_path: Path) -> None:
    peers = (
        PeerSettings(name="hive-b", url="http://127.0.0.1:1", auth_token="env:X"),
        PeerSettings(name="hive-c", transport="console", host="127.0.0.1", auth_token="env:X"),
    )
    config = AgentConfig(state_dir=tmp_path, relay=RelaySettings(actions=frozenset({ACTION}), peers=peers))
    gateway, console = relay_plan(config).links
    assert (gateway.gives_way, gateway.settle_s) == (False, 130.0)
    assert (console.gives_way, console.settle_s) == (True, 0.0)
