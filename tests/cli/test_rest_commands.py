"""Commands in front of a gateway: `once`, `submit`, `doctor`, `hive serve`; what a configuration may say."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
from cli_support import now_ms
from hive_support import SPEC, TOKEN, raw_grant, running_gateway
from rest_support import TICKET, ScriptedGateway, http
from scripted_console import refused_port

from ticket_agent.config import ConfigError, load_config
from ticket_agent.exits import Exit
from ticket_agent.hive.reference import Fault, FaultKind, Faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_support import Operator

    from ticket_agent.hive.reference import GatewayServer, ReferenceHive

GRANT = ["submit", "gpu.lease.grant", "--worker", "worker-1", "--subject", "GPU-0", "--id", "t1"]


@pytest.fixture
def gateway() -> Iterator[tuple[ReferenceHive, GatewayServer]]:
    with running_gateway(clock=now_ms, cache_s=0.0) as (model, server):
        model.spawn_worker("worker-gpu")
        yield model, server


def at(operator: Operator, url: str) -> list[str]:
    """Options that lead to a gateway of the test, whose cache is switched off."""
    config = operator.home / "agent.toml"
    config.write_text("[rest]\nurl = 'http://127.0.0.1'\ncache_s = 0\n")
    return ["--config", str(config), "--rest-url", url, "--rest-auth-token", "env:LAB_TOKEN"]


def test_once_serves_what_submit_had_admitted(
    operator: Operator, gateway: tuple[ReferenceHive, GatewayServer]
) -> None:
    model, server = gateway
    options = at(operator, server.url)
    assert operator.run(*GRANT, *options).out == "admitted: t1\n"
    told = operator.run("once", "--json", *options)
    assert (told.code, told.object["by_outcome"]) == (Exit.OK, {"confirmed": 1})
    assert model.effect_count("grant", "t1") == 1


def test_the_token_may_come_from_the_environment(
    operator: Operator, gateway: tuple[ReferenceHive, GatewayServer]
) -> None:
    options = at(operator, gateway[1].url)[:4]
    assert operator.run("once", *options).code == Exit.HIVE_REFUSED
    told = operator.run("once", *options, env={"HIVE_GATEWAY_REQUEST_AUTH_TOKEN": TOKEN})
    assert told.code == Exit.OK


def test_doctor_says_which_gateway_it_asked(
    operator: Operator, gateway: tuple[ReferenceHive, GatewayServer]
) -> None:
    told = operator.run("doctor", "--json", *at(operator, gateway[1].url))
    assert told.code == Exit.OK
    found = {entry["name"]: (entry["verdict"], entry["detail"]) for entry in told.objects}
    where = f"gateway 127.0.0.1:{gateway[1].port}"
    assert found["gateway"] == ("ok", f"{where}, lines of 2048 bytes")
    assert found["hive"] == ("ok", f"{where} serves 8 ticket nodes")
    assert found["lifecycle"][0] == "ok"


def test_doctor_finds_a_gateway_whose_lines_are_too_short(operator: Operator) -> None:
    bounds = http(200, {"console": {"max_echo_len": 128}})
    with ScriptedGateway(bounds) as server:
        told = operator.run("doctor", "--json", *at(operator, f"http://127.0.0.1:{server.port}"))
    (found,) = [entry for entry in told.objects if entry["name"] == "gateway"]
    assert (told.code, found["verdict"]) == (Exit.FAILURE, "fail")
    assert "takes lines of 128 bytes" in found["detail"]


@pytest.mark.parametrize("command", [["once"], ["doctor"], GRANT])
def test_what_stands_in_the_way_is_one_line(operator: Operator, command: list[str]) -> None:
    absent = operator.run(*command, *at(operator, f"http://127.0.0.1:{refused_port()}"))
    assert absent.code == Exit.HIVE_UNREACHABLE
    assert "Connection refused" in absent.out + absent.err
    with ScriptedGateway(http(401, b"who are you"), status=http(401, b"who are you")) as server:
        refused = operator.run(*command, *at(operator, f"http://127.0.0.1:{server.port}"))
    assert refused.code == Exit.HIVE_REFUSED
    assert "refuses the request token" in refused.out + refused.err
    assert "Traceback" not in refused.err


def test_a_submission_whose_answer_is_lost_is_read_back(operator: Operator) -> None:
    lost = Faults(Fault(kind=FaultKind.STATUS_AFTER, verb="ECHO", prefix=SPEC))
    with running_gateway(clock=now_ms, cache_s=0.0, faults=lost) as (model, server):
        model.spawn_worker("worker-gpu")
        answer = operator.run(*GRANT, *at(operator, server.url))
    assert (answer.code, answer.out) == (
        Exit.OK,
        "admitted: t1 (read back; the answer itself was lost)\n",
    )
    assert model.appended(SPEC) == 1


def test_a_write_that_is_not_to_be_seen_stays_uncertain(operator: Operator) -> None:
    """Where a console's next session would prove that it never comes, a gateway may still hold it."""
    lost = Faults(Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", prefix="/queen/lease/ctl"))
    with running_gateway(clock=now_ms, cache_s=0.0, faults=lost) as (model, server):
        worker = model.spawn_worker("worker-gpu").worker_id
        model.submit(raw_grant(model, worker, "t1", "lease-1"))
        assert operator.run("once", *at(operator, server.url)).code == Exit.UNCERTAIN
        server.drop_connections()
        server.kick()
        operator.run("once", *at(operator, server.url))
        assert operator.run("once", *at(operator, server.url)).code == Exit.UNCERTAIN
        assert server.faults.struck(FaultKind.DROP_BEFORE) == 1


@pytest.mark.parametrize(
    "more", [["--tcp-port", "31337"], ["--tcp-host", "127.0.0.1"], ["--mock"]], ids=" ".join
)
def test_a_console_and_a_gateway_at_once(operator: Operator, more: list[str]) -> None:
    answer = operator.run("once", "--rest-url", "http://127.0.0.1:1", *more)
    assert answer.code == Exit.USAGE
    assert "names both a console and a gateway's rest.url" in answer.err


@pytest.mark.parametrize("url", ["http://user:pass-w0rd@h", "http://h?token=pass-w0rd", "ftp://h", "http://"])
def test_a_url_that_cannot_be(operator: Operator, url: str) -> None:
    answer = operator.run("once", "--rest-url", url)
    assert answer.code == Exit.USAGE
    assert "pass-w0rd" not in answer.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[rest]\nauth_token = 'x'", "`rest`: needs a url"),
        ("[rest]\nurl = 'gateway:8080'", "`rest.url`: is empty, too long or holds"),
        ("[rest]\nurl = 'http://h'\nca_file = 'ca.pem'", "`rest.ca_file`: must be an absolute path"),
        ("[rest]\nurl = 'http://h'\nca_file = ''", "`rest.ca_file` is not the name of a file"),
        ("[rest]\nurl = 'http://h'\nproxy = 'p'", "`rest.proxy`: is empty, too long or holds"),
        ("[rest]\nurl = 'http://h'\ntimeout_s = 0", "`rest.timeout_s`: must be greater than 0"),
        (
            "[rest]\nurl = 'http://h'\ntoken = 'x'",
            "`rest.token`: unknown key; known here: allow_placeholder_t",
        ),
        ("[rest]\nurl = 'http://h'\n[console]\nport = 1", "names both a console and a gateway's rest.url"),
    ],
)
def test_what_a_file_must_not_say(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {"state_dir": str(tmp_path / "state")})
    assert words in str(caught.value)


def test_a_file_that_names_a_gateway(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        f"[rest]\nurl = 'https://h/x'\nauth_token = 's3cr3t'\nticket = '{TICKET}'\nca_file = '/a/ca.pem'\n"
        "proxy = 'http://p:3128'\ntimeout_s = 30\ncache_s = 0.5\n[console]\nauth_token = 'unused'\n"
    )
    config = load_config(path, {"state_dir": str(tmp_path / "state")})
    assert (config.rest.url, config.rest.timeout_s, config.rest.cache_s) == ("https://h/x", 30.0, 0.5)
    assert str(config.rest.ca_file) == "/a/ca.pem"
    assert "s3cr3t" not in repr(config)
    assert TICKET not in repr(config)


def test_the_reference_hive_serves_a_gateway_beside_its_console(operator: Operator) -> None:
    options = ["--port", "0", "--rest-port", "0", "--token", "env:LAB_TOKEN", "--json"]
    with operator.spawn("hive", "serve", *options) as serving:
        opened = json.loads(serving.until(lambda text: text.startswith("{")))
        assert opened["rest_url"].startswith("http://127.0.0.1:")
        assert operator.run(*GRANT, *at(operator, opened["rest_url"])).out == "admitted: t1\n"
        console = ["--tcp-port", str(opened["port"]), "--auth-token", "env:LAB_TOKEN"]
        assert operator.run("once", *console).code == Exit.OK
        assert serving.stop(signal.SIGTERM) == 0


def test_a_gateway_that_asks_for_tickets(operator: Operator) -> None:
    options = ["--port", "0", "--rest-port", "0", "--token", "env:LAB_TOKEN", "--rest-ticket-key", "env:KEY"]
    with operator.spawn("hive", "serve", *options, "--json", env={"KEY": "k3y"}) as serving:
        opened = json.loads(serving.until(lambda text: text.startswith("{")))
        options = at(operator, opened["rest_url"])
        without = operator.run(*GRANT, *options)
        assert (without.code, "exactly once" in without.line) == (Exit.HIVE_REFUSED, True)
        forged = operator.run(*GRANT, *options, "--rest-ticket", "env:FORGED", env={"FORGED": TICKET})
        assert "EPERM delegated-ticket-format" in forged.line
        assert serving.stop(signal.SIGTERM) == 0


def test_the_state_of_a_gateway_may_be_hidden_from_us(operator: Operator) -> None:
    """Then our own connection tells sessions apart."""
    hidden = http(403, b"EPERM admin read")
    refusal = {"status": "ERR", "verb": "LS", "path": "/host/tickets", "error": "ERR LS reason=busy"}
    with ScriptedGateway(http(200, refusal), status=hidden) as server:
        told = operator.run("once", *at(operator, f"http://127.0.0.1:{server.port}"))
    assert told.code == Exit.HIVE_REFUSED
    assert "ERR LS reason=busy" in told.line
