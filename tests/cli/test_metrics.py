"""Metrics as an operator switches them on: flags and file, a real daemon, a real scrape."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cli_support import PATIENCE_S, break_record, now_ms
from hive_support import raw_grant, running_hive
from metrics_support import Scrape, scrape_until, scrape_url

from ticket_agent.config import ConfigError, load_config
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_support import Operator, Running

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive

ANYWHERE = ["--metrics-listen", "127.0.0.1:0"]


@pytest.fixture
def hive() -> Iterator[tuple[ReferenceHive, ConsoleServer]]:
    with running_hive(clock=now_ms, lab_port=0) as (model, server):
        model.spawn_worker("worker-gpu")
        yield model, server


def _url(agent: Running) -> str:
    served = agent.event("metrics-served")
    return f"http://{served['address']}:{served['port']}{served['path']}"


def _until(url: str, name: str, wanted: float, **labels: str) -> Scrape:
    return scrape_until(url, lambda found: found.get(name, **labels) == wanted)


# -- a daemon ------------------------------------------------------------------------------------------------


def test_a_daemon_is_scraped_and_leaves_its_last_numbers(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    model, server = hive
    with operator.serve(server, *ANYWHERE, "--metrics-textfile", "agent.prom") as agent:
        url = _url(agent)
        _until(url, "hive_connected", 1)
        model.submit(raw_grant(model, "worker-1", "t1", "lease-1", ttl_s=60))
        ended = _until(url, "operations_ended_total", 1, action="gpu.lease.grant", outcome="confirmed")
        assert ended("transitions_total", action="gpu.lease.grant", state="terminal") == 1
        assert ended("fsync_duration_seconds_count", target="file") >= 5
        assert ended("hive_reconnects_total") == 0
        server.kick()
        _until(url, "hive_reconnects_total", 1)
        assert agent.stop(signal.SIGTERM) == Exit.OK
        agent.event("stopped", ended=1, open=0)
    with pytest.raises(OSError, match="refused"):
        scrape_url(url)
    last = Scrape((operator.home / "agent.prom").read_text())
    assert last("operations_ended_total", action="gpu.lease.grant", outcome="confirmed") == 1
    assert last("hive_reconnects_total") == 1


def test_the_file_says_where_they_go(operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]) -> None:
    config = operator.home / "agent.toml"
    textfile = operator.home / "agent.prom"
    config.write_text(f'[metrics]\nlisten = "[::1]:0"\ntextfile = "{textfile}"\n')
    with operator.serve(hive[1], "--config", "agent.toml", *ANYWHERE) as agent:
        # The flag wins.
        assert agent.event("metrics-served")["address"] == "127.0.0.1"
        assert agent.stop(signal.SIGTERM) == Exit.OK
    assert Scrape(textfile.read_text()).get("build_info", version="0") is None
    # A single pass is over before it could be asked; it writes the file all the same.
    textfile.unlink()
    answer = operator.run("once", *operator.at(hive[1]), "--config", "agent.toml")
    assert answer.code == Exit.OK
    assert "metrics-served" not in answer.err
    assert Scrape(textfile.read_text())("hive_connected") == 1


def test_a_degraded_journal_shows_in_the_file_of_a_single_pass(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer], journal: Path
) -> None:
    break_record(journal, 3)
    answer = operator.run("once", *operator.at(hive[1]), "--metrics-textfile", "a.prom")
    assert answer.code == Exit.DEGRADED
    assert Scrape((operator.home / "a.prom").read_text())("quarantined_records") == 1


def test_a_file_that_cannot_be_written_stops_nobody(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    with operator.serve(hive[1], "--metrics-textfile", "nowhere/agent.prom") as agent:
        warning = agent.events("hive-connected", "metrics-textfile-unwritable")["metrics-textfile-unwritable"]
        path = operator.home / "nowhere" / "agent.prom"
        assert warning["detail"] == f"{path} cannot be written: No such file or directory"
        assert agent.stop(signal.SIGINT) == Exit.OK


def test_an_address_that_is_taken_ends_the_start_and_the_fence_comes_first(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = operator.run("run", *operator.at(hive[1]), "--metrics-listen", address)
        assert (answer.code, answer.out) == (Exit.FAILURE, "")
        port = address.partition(":")[2]
        assert (
            answer.line
            == f"ticket-agent: metrics cannot listen on 127.0.0.1 port {port}: Address already in use"
        )
    with operator.serve(hive[1], *ANYWHERE) as first:
        port = str(first.event("metrics-served")["port"])
        second = operator.run("run", *operator.at(hive[1]), "--metrics-listen", f"127.0.0.1:{port}")
        assert second.code == Exit.OTHER_OWNER


# -- off by default ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [([], "False False 1"), (["--metrics-textfile", "a.prom"], "True False 1"), (ANYWHERE, "True True 2")],
    ids=["off", "file", "listen"],
)
def test_nothing_is_loaded_and_no_thread_runs_unless_asked_for(
    operator: Operator, options: list[str], expected: str
) -> None:
    """The daemon's modules and threads, looked at from inside once it is connected; the hive is elsewhere."""
    code = (
        "import sys, threading\n"
        "from ticket_agent.agent.loop import Agent\n"
        "from ticket_agent.cli import main\n"
        "pause = Agent._pause\n"
        "def look(agent, summary):\n"
        "    names = ('prometheus_client', 'ticket_agent.agent.metrics_http')\n"
        "    ours = [t.name for t in threading.enumerate() if t.name in ('metrics', 'stop-on-signals')]\n"
        "    print(*(name in sys.modules for name in names), len(ours), flush=True)\n"
        "    Agent._pause = pause\n"
        "    return pause(agent, summary)\n"
        "Agent._pause = look\n"
        "main()\n"
    )
    with running_hive(clock=now_ms) as (_, server):
        process = subprocess.Popen(
            [sys.executable, "-c", code, "run", *operator.at(server), *options],
            env=operator.env,
            cwd=operator.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == expected
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == Exit.OK
        finally:
            process.kill()
            process.communicate()


# -- what is refused -----------------------------------------------------------------------------------------

PLAIN = "must be ADDRESS:PORT, such as 127.0.0.1:9464"
LOOPBACK = "must be an address of this host's loopback, such as 127.0.0.1:9464; put a proxy in front of it"
REFUSED = {
    "": PLAIN,
    "9464": PLAIN,
    "127.0.0.1": PLAIN,
    "127.0.0.1:": PLAIN,
    "127.0.0.1:http": PLAIN,
    "127.0.0.1:65536": PLAIN,
    "127.0.0.1:-1": PLAIN,
    "127.0.0.1:²": PLAIN,
    "127.0.0.1: 9464": PLAIN,
    ":9464": LOOPBACK,
    "0.0.0.0:9464": LOOPBACK,
    "10.0.0.1:9464": LOOPBACK,
    "[::]:9464": LOOPBACK,
    "[2001:db8::1]:9464": LOOPBACK,
    "localhost:9464": LOOPBACK,
    "example.org:9464": LOOPBACK,
    "127.1:9464": LOOPBACK,
}
ACCEPTED = {
    "127.0.0.1:9464": ("127.0.0.1", 9464),
    "127.8.0.1:0": ("127.8.0.1", 0),
    "[::1]:65535": ("::1", 65535),
    "::1:9464": ("::1", 9464),
}


@pytest.mark.parametrize("text", REFUSED)
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, {"state_dir": "/s", "metrics": {"listen": text}})
    assert str(refused.value) == f"command line: `metrics.listen`: {REFUSED[text]}"


@pytest.mark.parametrize("text", ACCEPTED)
def test_addresses_that_are_accepted(text: str) -> None:
    config = load_config(None, {"state_dir": "/s", "metrics": {"listen": text}})
    assert config.metrics.address == ACCEPTED[text]


@pytest.mark.parametrize("text", ["agent.prom", "/var/lib/agent.txt", "/var/lib/agent.prom\0", ""])
def test_files_that_no_collector_would_read(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"`metrics.textfile`: must be an absolute path that ends in \.prom"
    ):
        load_config(None, {"state_dir": "/s", "metrics": {"textfile": text}})


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["run", "--metrics-listen", "0.0.0.0:9464"], "put a proxy in front of it"),
        (["run", "--metrics-textfile", "agent.txt"], "must be an absolute path that ends in .prom"),
        (["once", "--metrics-textfile", ""], "must be an absolute path that ends in .prom"),
    ],
)
def test_a_wrong_flag_is_a_usage_error(operator: Operator, command: list[str], words: str) -> None:
    answer = operator.run(*command, "--auth-token", "env:LAB_TOKEN")
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert words in answer.line
    assert not operator.state.exists()


@pytest.mark.parametrize("command", [["run", "--run-once"], ["once"]])
def test_a_single_pass_cannot_be_asked(operator: Operator, command: list[str]) -> None:
    answer = operator.run(*command, *ANYWHERE)
    assert answer.code == Exit.USAGE
    assert "--metrics-" in answer.err
