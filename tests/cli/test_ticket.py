"""`ticket show|check|mint`: what they say, what they exit with, and that they never print a given ticket."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

import pytest
from capability_support import SECRET, lab_ticket
from cli_support import now_ms
from click.testing import CliRunner, Result
from hive_support import raw_grant, running_hive

from ticket_agent.cli.root import cli
from ticket_agent.exits import Exit
from ticket_agent.hive.reference import DEFAULT, STRICT_A
from ticket_agent.hive.reference.session import ConsoleSession
from ticket_agent.protocol.capability import Access, Claims, Role, Scope, decode_ticket, verify_mac
from ticket_agent.protocol.capability_check import agent_needs

if TYPE_CHECKING:
    from pathlib import Path

    from cli_support import Operator

    from ticket_agent.hive.reference import HiveProfile
    from ticket_agent.hive.reference.commands import Command
    from ticket_agent.hive.reference.session import Reply

KEY = {"K": SECRET}


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(cli, ["ticket", *arguments], env={**KEY, **env})


def minted(*arguments: str) -> str:
    result = run("mint", "--key", "env:K", *arguments)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_what_is_minted_is_shown_and_genuine() -> None:
    limits = ["--scope", "/host:rw:8", "--scope", "/proc:r", "--ops", "5", "--ttl-s", "60"]
    text = minted("--subject", "gp", *limits)
    capability = decode_ticket(text)
    assert verify_mac(capability, SECRET)
    assert capability.claims.scopes == (
        Scope(path="/host", access=Access.READ_WRITE, rate_per_s=8),
        Scope(path="/proc", access=Access.READ),
    )
    shown = run("show", "env:T", "--key", "env:K", T=text)
    assert shown.exit_code == 0
    assert "scope        /host rw, 8 operations a second\n" in shown.output
    assert shown.output.endswith("mac          good\n")
    assert capability.fingerprint in shown.output
    assert text[15:40] not in shown.output


def test_show_as_json_is_complete_and_without_the_ticket() -> None:
    text = lab_ticket(ttl_s=10, subject="gp", scopes=(Scope(path="/x", access=Access.WRITE),))
    (line,) = run("show", "env:T", "--json", T=text).output.splitlines()
    document: dict[str, Any] = json.loads(line)
    assert document.pop("fingerprint") == decode_ticket(text).fingerprint
    assert document == {
        "schema": "ticket-agent-output/v1",
        "kind": "ticket",
        "version": 1,
        "role": "queen",
        "subject": "gp",
        "issued_unix_ms": 1_700_000_000_000,
        "expires_unix_ms": 1_700_000_010_000,
        "ops": None,
        "ticks": None,
        "mount": None,
        "scopes": [{"path": "/x", "access": "w", "rate_per_s": 0}],
        "quotas": None,
        "mac": "not verified",
    }


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_foreign_ticket_is_a_failure(command: str) -> None:
    result = run(command, "env:T", "--key", "env:K", T=lab_ticket(secret="foreign"))
    assert result.exit_code == Exit.FAILURE
    assert "wrong" in result.output or "not minted with this key" in result.output


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        ([], Exit.OK, "can be used; its MAC was not verified"),
        (["--key", "env:K"], Exit.OK, "can be used\n"),
        (["--role", "worker-gpu"], Exit.FAILURE, "for role queen, not for worker-gpu"),
    ],
)
def test_check(arguments: list[str], exit_code: Exit, words: str) -> None:
    result = run("check", "env:T", *arguments, T=minted())
    assert result.exit_code == exit_code
    assert words in result.output


def test_check_against_named_needs() -> None:
    text = minted("--scope", "/host:r:2")
    assert run("check", "env:T", "--need", "/host/x:r", "--calls-per-s", "2", T=text).exit_code == 0
    refused = run("check", "env:T", "--need", "/host/x:w", "--json", T=text)
    assert refused.exit_code == Exit.FAILURE
    document = json.loads(refused.output)
    assert not document["usable"]
    assert [one["code"] for one in document["findings"] if one["fatal"]] == ["scope"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", lab_ticket()],
        ["check", lab_ticket()],
        ["mint", "--key", SECRET],
        ["show", "env:T", "--key", SECRET],
    ],
)
def test_a_secret_is_never_taken_from_the_command_line(arguments: list[str]) -> None:
    result = run(*arguments, T=lab_ticket())
    assert result.exit_code == Exit.USAGE
    assert "never the secret itself" in result.output
    assert SECRET not in result.output
    assert lab_ticket()[15:60] not in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scope", "host:r"], "must look like"),
        (["--scope", "/host:x"], "must look like"),
        (["--role", "worker-gpu"], "needs --subject"),
        (["--scope", f"/{'x' * 90}:r"], "exceeds the 224"),
        (["--ttl-s", "0"], "--ttl-s"),
    ],
)
def test_what_cannot_be_minted(arguments: list[str], words: str) -> None:
    result = run("mint", "--key", "env:K", *arguments)
    assert result.exit_code == Exit.USAGE
    assert words in result.output


def test_a_well_known_key_needs_the_labs_flag() -> None:
    assert run("mint", "--key", "env:P", P="bootstrap").exit_code == Exit.USAGE
    assert run("mint", "--key", "env:P", "--allow-placeholder-token", P="bootstrap").exit_code == 0


def test_a_file_is_new_and_private(tmp_path: Path) -> None:
    path = tmp_path / "ticket"
    result = run("mint", "--key", "env:K", "--out", str(path), "--json")
    assert result.exit_code == 0
    text = path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert text[15:] not in result.output
    assert json.loads(result.output)["fingerprint"] == decode_ticket(text).fingerprint
    assert run("show", f"file:{path}").exit_code == 0
    again = run("mint", "--key", "env:K", "--out", str(path))
    assert again.exit_code == Exit.FAILURE
    assert path.read_text().strip() == text


def scopes(*roots: str) -> list[str]:
    return [word for root in roots for word in ("--scope", f"{root}:rw")]


@pytest.mark.parametrize(
    ("roots", "enough"),
    [
        (["/"], True),
        (["/host", "/proc", "/gpu", "/queen"], False),
        (["/host", "/proc", "/shard", "/queen"], False),
    ],
)
def test_check_says_whether_the_agent_can_work(operator: Operator, roots: list[str], enough: bool) -> None:
    text = minted(*scopes(*roots))
    assert (run("check", "env:T", T=text).exit_code == 0) == enough
    with running_hive(clock=now_ms, ticket_secrets={Role.QUEEN: SECRET}) as (model, server):
        worker = model.spawn_worker("worker-gpu")
        model.submit(raw_grant(model, worker, "t1", "lease-1", ttl_s=60))
        told = operator.run("once", "--json", *operator.at(server), "--ticket", "env:T", env={"T": text})
        assert model.effect_count("grant", "lease-1") == enough
    assert (told.code == Exit.OK and told.object["by_outcome"] == {"confirmed": 1}) == enough


@pytest.mark.parametrize("profile", [DEFAULT, STRICT_A], ids=lambda profile: profile.name)
def test_check_asks_for_everything_that_the_agent_does(
    operator: Operator, profile: HiveProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, str]] = set()
    execute = ConsoleSession.execute

    def noting(session: ConsoleSession, command: Command) -> Reply:
        if command.path:
            seen.add((command.verb, command.path))
        return execute(session, command)

    monkeypatch.setattr(ConsoleSession, "execute", noting)
    with running_hive(profile, clock=now_ms) as (model, server):
        worker = model.spawn_worker("worker-gpu")
        model.submit(raw_grant(model, worker, "t1", "lease-1", ttl_s=60))
        assert operator.run("once", *operator.at(server)).code == Exit.OK
    asked = Claims(
        role=Role.QUEEN,
        issued_at_ms=0,
        scopes=tuple(Scope(path=need.path, access=need.access) for need in agent_needs()),
    )
    outside = {
        (verb, path)
        for verb, path in seen
        if not asked.allows(path, Access.WRITE if verb == "ECHO" else Access.READ)
    }
    assert len(seen) > 10
    assert outside == set()


def test_a_served_hive_accepts_the_tickets_of_its_key(operator: Operator) -> None:
    keys = {"K": SECRET, "LAB_TOKEN": "lab-token-4711"}
    options = ["--port", "0", "--token", "env:LAB_TOKEN", "--ticket-key", "queen=env:K", "--json"]
    with operator.spawn("hive", "serve", *options, env=keys) as serving:
        port = str(json.loads(serving.until(lambda text: text.startswith("{")))["port"])
        asked = ["once", "--tcp-port", port, "--auth-token", "env:LAB_TOKEN", "--ticket", "env:T"]
        good = operator.run(*asked, env=keys | {"T": lab_ticket(issued_at_ms=1)})
        assert good.code == Exit.OK, good.err
        foreign = lab_ticket(issued_at_ms=1, secret="foreign")
        bad = operator.run(*asked, env=keys | {"T": foreign})
        assert bad.code == Exit.HIVE_REFUSED
        assert foreign[15:60] not in bad.err + bad.out
