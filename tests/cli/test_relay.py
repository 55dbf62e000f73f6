"""`run --relay` and what the other commands say about relayed tickets."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hive_support import SPEC, TOKEN, running_hive
from relay_support import ACTION, LOCAL, arrived, peers, perform, relaying, run_until, ticket

from ticket_agent.agent.statusfile import StatusFile
from ticket_agent.config import AgentConfig, ConfigError, apply_manifest, load_config
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from cli_support import Operator
    from relay_support import Peers


def config(path: Path, other: Peers, **more: int) -> Path:
    """A file that names every peer by its console."""
    lines = ["[relay]", f'actions = ["{ACTION}"]', *(f"{name} = {value}" for name, value in more.items())]
    for name, server in other.servers.items():
        lines += ["[[relay.peers]]", f'name = "{name}"', 'transport = "console"', 'host = "127.0.0.1"']
        lines += [f"port = {server.port}", 'auth_token = "env:PEER_TOKEN"']
    path.write_text("\n".join(lines))
    return path


def test_one_pass_delivers_and_the_next_one_brings_the_result_back(
    tmp_path: Path, operator: Operator
) -> None:
    env = {"PEER_TOKEN": TOKEN}
    with running_hive() as (hive, server), peers() as other:
        hive.echo(SPEC, ticket())
        options = ["--relay", "--config", str(config(tmp_path / "agent.toml", other, timeout_ms=60_000))]
        options += operator.at(server)
        assert operator.run("once", *options, env=env).code == Exit.OK
        assert [spec.id for spec in arrived(other.hives["hive-b"])] == ["somebody-elses", "t1"]
        perform(other.hives["hive-b"])
        assert operator.run("once", *options, env=env).code == Exit.OK
        assert len(hive.terminal_lines(("t1", "key-t1"))) == 1
        assert len(other.taken["hive-b"]) == 1


def test_commands_name_a_relayed_ticket_by_where_it_goes(operator: Operator) -> None:
    with running_hive() as (hive, server), peers() as other:
        hive.echo(SPEC, ticket())
        with relaying(server, operator.state, other.plan()) as bench:
            run_until(bench, lambda: bench.events("relay-delivered"))
    listed = operator.run("journal", "list")
    assert "to hive-b" in listed.out
    assert ACTION in listed.out
    line = operator.run("journal", "list", "--json").object
    assert (line["family"], line["target_hive"]) == ("federation.relay", "hive-b")
    told = operator.run("journal", "explain", "t1")
    assert "read the peer back; the ticket is sent again only if it certainly did not arrive" in told.out
    assert "observe" in operator.run("journal", "replay").out
    kept = operator.run("journal", "gc", "--dry-run")
    assert kept.code == Exit.OK


def test_status_shows_the_queue_and_the_circuits(operator: Operator) -> None:
    with running_hive() as (hive, server), peers() as other:
        other.servers["hive-b"].stop()
        hive.echo(SPEC, ticket("t1"))
        hive.echo(SPEC, ticket("t2", target="hive-x"))
        with relaying(server, operator.state, other.plan()) as bench:
            run_until(bench, lambda: bench.agent.relay.peers["hive-b"].breaker.failures >= 3)
            fd = os.open(operator.state, os.O_RDONLY)
            try:
                StatusFile(fd, pid=1, boot_id="b", clock=bench.clock, monotonic=lambda: 0.0).write(
                    bench.agent
                )
            finally:
                os.close(fd)
    status = operator.run("status")
    assert "relay: 1 of 256 waiting" in status.out
    assert "relay: 1 tickets for hive-x, which is no configured peer" in status.out
    assert "hive-b" in status.out
    assert "open" in status.out
    document = operator.run("status", "--json").object
    assert document["daemon"]["relay"]["peers"]["hive-b"]["pending"] == 1


def test_relay_flags_that_are_no_more_are_explained(operator: Operator) -> None:
    answer = operator.run("run", "--relay-wal", "x.json")
    assert answer.code == Exit.USAGE
    assert "in the journal of the state directory" in answer.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no peers are named"),
        ("[relay]\nenabled = false", "does not enable federation"),
        (
            '[[relay.peers]]\nname="hive-b"\nurl="http://127.0.0.1:1"\nauth_token="env:X"',
            "no actions are named",
        ),
    ],
)
def test_a_relay_that_could_relay_nothing_does_not_start(
    tmp_path: Path, operator: Operator, text: str, says: str
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    answer = operator.run("run", "--relay", "--config", path)
    assert answer.code == Exit.USAGE
    assert says in answer.err


PEER = 'name="hive-b"\nauth_token="env:X"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[relay]\nqueue_max_entries=0", "relay.queue_max_entries"),
        ("[relay]\nwal_max_entries=10", "wal_max_entries"),
        ("[relay]\nsurprise=1", "known here: actions, enabled, peers"),
        (f"[[relay.peers]]\n{PEER}", "needs url"),
        (f'[[relay.peers]]\n{PEER}transport="console"', "needs host"),
        (f'[[relay.peers]]\n{PEER}url="ftp://x"', "relay.peers.0.url"),
        ('[[relay.peers]]\nname="hive-b"\nurl="http://x"', "relay.peers.0.auth_token"),
        (f'[[relay.peers]]\n{PEER}url="http://x"\nsurprise=1', "known here: allow_placeholder_token"),
        (f'[[relay.peers]]\n{PEER}url="http://x"\n[[relay.peers]]\n{PEER}url="http://y"', "the same name"),
        ('[[relay.peers]]\nname="hive-a"\nauth_token="env:X"\nurl="http://x"', "own name"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_config(path, {"state_dir": str(tmp_path)})


def manifest(path: Path, **federation: object) -> Path:
    host = {"enable": True, "tickets": {"enable": True}, "federation": {"enable": True, **federation}}
    path.write_text(json.dumps({"ecosystem": {"host": host}}))
    return path


def test_the_manifest_names_what_the_file_does_not(tmp_path: Path) -> None:
    path = manifest(
        tmp_path / "m.json",
        local_hive=LOCAL,
        peers=[{"name": "hive-b", "rest_url": "http://127.0.0.1:8081/", "auth_ref": "TOKEN_B"}],
        action_allowlist=[ACTION, "systemd.stop"],
        relay_queue_max_entries=7,
        wal_max_bytes=600_000,
        relay_timeout_ms=2000,
    )
    relay = apply_manifest(AgentConfig(state_dir=tmp_path), path).relay
    assert (relay.queue_max_entries, relay.wal_max_bytes, relay.timeout_ms) == (7, 600_000, 2000)
    assert relay.actions == {ACTION, "systemd.stop"}
    (peer,) = relay.peers
    assert (peer.name, peer.transport, peer.url) == ("hive-b", "rest", "http://127.0.0.1:8081")
    assert peer.auth_token == "env:TOKEN_B"
    assert "TOKEN_B" not in repr(relay)
    ours = load_config(None, {"state_dir": str(tmp_path), "relay": {"actions": [ACTION], "timeout_ms": 500}})
    merged = apply_manifest(ours, path).relay
    assert (merged.actions, merged.timeout_ms) == (frozenset({ACTION}), 500)


def test_a_file_cannot_enable_what_the_manifest_does_not(tmp_path: Path) -> None:
    path = manifest(tmp_path / "m.json", enable=False)
    assert not apply_manifest(AgentConfig(state_dir=tmp_path), path).relay.enabled
