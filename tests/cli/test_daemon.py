"""The daemon as a process: ownership, signals, the service manager, the embedded hive, and two processes."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from cli_support import PATIENCE_S, contents, now_ms
from hive_support import TOKEN, RawConsole, new_hive, raw_grant, running_hive
from scripted_console import refused_port

from ticket_agent.cli.demo_peft import PeftStory
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_support import Answer, Operator

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive

STOPS = [signal.SIGTERM, signal.SIGINT]
GRANT = ["submit", "gpu.lease.grant", "--subject", "GPU-0", "--arg", "ttl_s=60"]


@pytest.fixture
def hive() -> Iterator[tuple[ReferenceHive, ConsoleServer]]:
    with running_hive(clock=now_ms, lab_port=0) as (model, server):
        model.spawn_worker("worker-gpu")
        yield model, server


def test_a_second_agent_is_refused_and_told_who_owns_the_directory(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    with operator.serve(hive[1]) as first:
        started = first.event("started")
        assert (started["pid"], started["state_dir"]) == (first.process.pid, str(operator.state))
        before = contents(operator.state / "ops")
        for command in ("once", "run"):
            second = operator.run(command, *operator.at(hive[1]))
            assert (second.code, second.out) == (Exit.OTHER_OWNER, "")
            assert f"process {first.process.pid} already owns this state directory" in second.line
        assert contents(operator.state / "ops") == before
        first.event("hive-connected")
        told = operator.run("status", "--json").object
        assert told["owner"]["pid"] == first.process.pid
        assert first.stop(signal.SIGTERM) == Exit.OK
    assert operator.run("status", "--json").object["owner"] is None
    assert operator.run("once", *operator.at(hive[1])).code == Exit.OK


def test_beside_the_running_agent_doctor_and_status_say_so(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    with operator.serve(hive[1]) as agent:
        agent.event("hive-connected")
        assert _status(operator, "hive: connected (")[0] == f"agent: running, pid {agent.process.pid}"
        told = operator.run("doctor", "--json", *operator.at(hive[1]))
        (found,) = [entry for entry in told.objects if entry["name"] == "hive"]
        assert (told.code, found["verdict"]) == (Exit.OK, "ok")
        assert f"the running agent, pid {agent.process.pid}, owns the console" in found["detail"]


def _status(operator: Operator, begins: str) -> list[str]:
    """What `status` prints once a line begins so: an agent logs first, and then leaves word of itself."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        lines = operator.run("status").out.splitlines()
        for line in lines:
            if line.startswith(begins):
                assert re.fullmatch(r"hive: connected \([0-9.]+ (s|min) ago\)", line)
                return lines
    raise AssertionError(f"no line ever began with {begins!r}: {lines}")


@pytest.mark.parametrize("number", STOPS)
def test_a_stop_signal_leaves_a_consistent_journal(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer], number: int
) -> None:
    model, server = hive
    model.submit(raw_grant(model, "worker-1", "t1", "lease-1", ttl_s=60))
    with operator.serve(server) as agent:
        agent.event("transition", state="terminal")
        assert agent.stop(number) == Exit.OK
        agent.event("stopped", ended=1, open=0)
    assert operator.run("journal", "verify").code == Exit.OK
    assert operator.run("status", "--json").object["consumed_sequence"] == 1
    assert model.effect_count("grant", "lease-1") == 1


@pytest.mark.parametrize("number", STOPS)
def test_an_agent_that_waits_for_its_hive_stops_at_once(operator: Operator, number: int) -> None:
    options = ["--tcp-port", str(refused_port()), "--auth-token", "env:LAB_TOKEN", "--log-format", "json"]
    with operator.spawn("run", *options) as agent:
        agent.event("hive-unavailable")
        assert agent.stop(number) == Exit.OK


def test_a_stop_while_the_main_thread_holds_the_events_lock_is_no_deadlock() -> None:
    """A handler runs between two instructions of the main thread, also of those within ``Event.wait``."""
    code = (
        "import signal\n"
        "from ticket_agent.cli.assembly import stop_on_signals\n"
        "stop = stop_on_signals()\n"
        "with stop._cond:\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "assert stop.wait(60)\n"
        "print('stopped')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.stdout, done.returncode) == ("stopped\n", 0), done.stderr


# -- service manager -----------------------------------------------------------------------------------------


@pytest.fixture
def manager(operator: Operator) -> Iterator[socket.socket]:
    """The notification socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(operator.tmp / "n"))
        channel.settimeout(PATIENCE_S)
        yield channel


def test_the_service_manager_hears_ready_watchdog_and_stopping(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer], manager: socket.socket
) -> None:
    env = {"NOTIFY_SOCKET": str(operator.tmp / "n"), "WATCHDOG_USEC": "600000"}
    with operator.serve(hive[1], env=env) as agent:
        agent.event("hive-connected")
        # A hive that answers late is waited for, with signs of life.
        assert _beside_life(manager) == b"READY=1\nSTATUS=serving the hive"
        assert [manager.recv(4096) for _ in range(4)] == [b"WATCHDOG=1"] * 4
        agent.process.send_signal(signal.SIGTERM)
        assert _beside_life(manager) == b"STOPPING=1"
        assert agent.process.wait(PATIENCE_S) == Exit.OK


def _beside_life(manager: socket.socket) -> bytes:
    """What the manager hears next that is no sign of life."""
    while (heard := manager.recv(4096)) == b"WATCHDOG=1":
        pass
    return heard


def test_without_a_watchdog_none_is_answered(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer], manager: socket.socket
) -> None:
    with operator.serve(hive[1], env={"NOTIFY_SOCKET": str(operator.tmp / "n")}) as agent:
        assert manager.recv(4096).startswith(b"READY=1")
        assert agent.stop(signal.SIGTERM) == Exit.OK
        assert manager.recv(4096) == b"STOPPING=1"


def test_ready_is_not_said_before_the_hive_answers(operator: Operator, manager: socket.socket) -> None:
    options = ["--tcp-port", str(refused_port()), "--auth-token", "env:LAB_TOKEN", "--log-format", "json"]
    env = {"NOTIFY_SOCKET": str(operator.tmp / "n"), "WATCHDOG_USEC": "600000"}
    with operator.spawn("run", *options, env=env) as agent:
        agent.event("hive-unavailable")
        assert manager.recv(4096) == b"WATCHDOG=1"
        agent.process.send_signal(signal.SIGTERM)
        assert _beside_life(manager) == b"STOPPING=1"
        assert agent.process.wait(PATIENCE_S) == Exit.OK


# -- the embedded hive ---------------------------------------------------------------------------------------


def test_the_embedded_hive_serves_what_its_greeting_submits(operator: Operator) -> None:
    with operator.spawn("run", "--mock", "--log-format", "json") as agent:
        greeting = agent.until(lambda text: "submit with: ticket-agent " in text)
        words = shlex.split(greeting.partition("submit with: ticket-agent ")[2])
        assert operator.run(*words).out.startswith("admitted: ")
        assert agent.event("transition", state="terminal")["action"] == "gpu.lease.grant"
        assert agent.stop(signal.SIGTERM) == Exit.OK


def test_the_embedded_hives_tickets_stay_out_of_the_real_journal(operator: Operator) -> None:
    assert operator.run("once", "--mock").code == Exit.OK
    assert not operator.state.exists()
    assert operator.state.with_name("state-mock").is_dir()
    assert operator.run("once", "--mock", "--state-dir", "named").code == Exit.OK
    assert (operator.home / "named").is_dir()


# -- two processes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("profile", ["default", "strict-a"])
def test_hive_and_agent_as_two_processes(operator: Operator, profile: str, number: int) -> None:
    serve = ["hive", "serve", "--json", "--port", "0", "--lab-port", "0", "--profile", profile]
    with operator.spawn(*serve, "--workers", "1") as hive:
        where = json.loads(hive.until(lambda text: text.startswith("{")))
        assert (where["schema"], where["kind"]) == ("ticket-agent-output/v1", "hive")
        env = {"LAB_TOKEN": where["token"]}
        at = ["--auth-token", "env:LAB_TOKEN", "--tcp-port"]
        with operator.spawn("run", *at, str(where["port"]), "--log-format", "json", env=env) as agent:
            agent.event("hive-connected")
            worker = ["--worker", where["workers"][0]]
            submitted = operator.run(*GRANT, *worker, *at, str(where["lab_port"]), "--json", env=env)
            assert submitted.object["admitted"]
            agent.event("transition", state="terminal")
            assert agent.stop(number) == Exit.OK
        assert hive.stop(number) == Exit.OK
    assert operator.run("journal", "verify").code == Exit.OK
    shown = operator.run("journal", "show", submitted.object["id"], "--json").object
    assert (shown["outcome"], shown["state"]) == ("confirmed", "terminal")


def test_hive_serve_announces_itself_to_people(operator: Operator) -> None:
    with operator.spawn("hive", "serve", "--port", "0", "--token", "env:LAB_TOKEN", "--workers", "2") as hive:
        assert re.fullmatch(r"console on 127\.0\.0\.1:[0-9]+", hive.until(lambda text: "console" in text))
        assert hive.until(lambda text: "Workers" in text) == "READY Workers: worker-1, worker-2"
        peft = hive.until(lambda text: "PEFT" in text)
        assert peft == "READY Workers for PEFT tickets: worker-3"
        assert hive.stop(signal.SIGTERM) == Exit.OK
        assert not any("token" in text or "export" in text for text in hive.lines)


def test_hive_serve_publishes_export_jobs(operator: Operator) -> None:
    jobs = ["--export-job", "job-1", "--export-job", "job-2", "--lora-workers", "2"]
    with operator.spawn("hive", "serve", "--port", "0", "--token", "env:LAB_TOKEN", *jobs, "--json") as hive:
        where = json.loads(hive.until(lambda text: "port" in text))
        assert where["export_jobs"] == ["job-1", "job-2"]
        assert len(where["lora_workers"]) == 2
        with RawConsole(where["port"], token=TOKEN) as console:
            assert console.stream("LS /queen/export/lora_jobs") == ["job-1", "job-2"]
        assert hive.stop(signal.SIGTERM) == Exit.OK


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--token", ""], Exit.USAGE, "is empty"),
        (["--token", "env:NO_SUCH_VARIABLE"], Exit.USAGE, "NO_SUCH_VARIABLE"),
        (["--token", "file:relative"], Exit.USAGE, "absolute path"),
        (["--fault", "nonsense"], Exit.USAGE, "unknown fault 'nonsense'; use one of"),
        (["--fault", "delay::seconds=" + "9" * 400], Exit.USAGE, "outside 0..3600"),
        (["--fault", "err:/queen:every=0"], Exit.USAGE, "is not a whole number"),
        (["--workers", "65"], Exit.USAGE, "--workers"),
        (["--port", "70000"], Exit.USAGE, "--port"),
        (["--export-job", "../job"], Exit.USAGE, "is no job id"),
        (["--lora-workers", "9"], Exit.USAGE, "--lora-workers"),
    ],
)
def test_a_hive_that_cannot_be_served(operator: Operator, options: list[str], code: Exit, words: str) -> None:
    answer = operator.run("hive", "serve", *options)
    assert (answer.code, answer.out) == (code, "")
    assert words in answer.line


@pytest.mark.parametrize("option", ["--port", "--lab-port"])
def test_a_port_that_is_taken(operator: Operator, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = operator.run("hive", "serve", "--port", "0", option, port)
    assert answer.code == Exit.FAILURE
    assert "ddress already in use" in answer.line
    assert port in answer.line


# -- demo ----------------------------------------------------------------------------------------------------


def test_the_demo_keeps_the_promise(demo: tuple[Answer, Path], operator: Operator) -> None:
    answer, kept = demo
    assert answer.code == Exit.OK
    *events, summary = [json.loads(line) for line in answer.out.splitlines()]
    assert summary == {
        "tickets": 12,
        "terminal": 12,
        "dispatched": 12,
        "repeated": 0,
        "confirmed": 12,
        "results": 12,
        "kills": 1,
    }
    names = [event["event"] for event in events]
    assert names.index("killed") < names.index("restarted")
    assert {"hive", "transition"} <= set(names)
    assert operator.run("journal", "verify", "--state-dir", kept).code == Exit.OK
    assert operator.run("status", "--state-dir", kept).code == Exit.OK


def test_the_demo_for_people_ends_with_its_verdict(operator: Operator) -> None:
    """One Worker with three leases, and the four steps of an adapter."""
    answer = operator.run("demo", "--workers", "1", "--keep", "kept")
    assert answer.code == Exit.OK
    assert "side effects dispatched: 7 of 7, repeated: 0\n" in answer.out
    assert answer.out.endswith("journal kept: ticket-agent journal list --state-dir kept\n")
    listed = operator.run("journal", "list", "--state-dir", "kept", "--json").objects
    actions = [entry["action"] for entry in listed]
    assert [action for action in actions if action.startswith("peft.")] == [
        "peft.export",
        "peft.import",
        "peft.activate",
        "peft.rollback",
    ]
    assert len(actions) == 7
    # Its directories are gone, and nothing else was left either.
    assert sorted(path.name for path in operator.home.iterdir()) == ["kept", "tmp"]
    assert not [path for path in operator.tmp.iterdir() if path.is_dir()]


def test_a_demo_whose_directories_nobody_could_trust_says_why(operator: Operator) -> None:
    operator.tmp.chmod(0o777)
    answer = operator.run("demo", "--workers", "1")
    assert answer.code == Exit.FAILURE
    assert "see --leases-only" in answer.line
    assert "can be written by others" in answer.line
    assert operator.run("demo", "--workers", "1", "--leases-only").code == Exit.OK


@pytest.mark.parametrize("times", [0, 1, 5])
def test_the_demo_counts_what_appears_and_not_what_is_said(tmp_path: Path, times: int) -> None:
    hive = new_hive()
    with PeftStory(hive, tmp_path) as story:
        assert story.next_request() is not None
        story.submitted()
        for _ in range(times):
            # An empty directory may be replaced by another one, so that this is a rename and nothing more.
            (tmp_path / "exports/made").mkdir()
            (tmp_path / "exports/made").rename(tmp_path / "exports/demo-job")
            (tmp_path / "registry/made").write_text("vision-edge-1\n")
            (tmp_path / "registry/made").replace(tmp_path / "registry/active")
        (tmp_path / "exports/other").mkdir()
        assert story.next_request() is None
        assert story.effects_of("peft.export") == 2 * times


@pytest.mark.parametrize("kind", ["file", "full", "symlink", "dangling"])
def test_the_demo_never_writes_into_what_is_there(operator: Operator, kind: str) -> None:
    path = operator.home / kind
    match kind:
        case "file":
            path.write_bytes(b"precious")
        case "full":
            path.mkdir()
            (path / "precious").write_bytes(b"")
        case "symlink":
            (operator.home / "elsewhere").mkdir()
            path.symlink_to(operator.home / "elsewhere")
        case _:
            path.symlink_to(operator.home / "nowhere")
    before = contents(operator.home)
    answer = operator.run("demo", "--keep", path)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert contents(operator.home) == before


def test_a_demo_whose_agent_cannot_start_says_why(operator: Operator) -> None:
    (operator.home / "file").write_bytes(b"")
    answer = operator.run("demo", "--keep", operator.home / "file" / "kept")
    assert answer.code == Exit.FAILURE
    assert answer.line.startswith("ticket-agent: demo: ")
    assert answer.line.count("ticket-agent: ") == 1
