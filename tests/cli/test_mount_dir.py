"""A hive that is mounted as a directory, as an operator uses it: doctor, submit, run, status, mistakes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from cli_support import now_ms
from fuse_hive import mounted_hive
from hive_support import running_hive
from mount_support import NEWEST, needs_fuse

from ticket_agent.config import ConfigError, load_config
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_support import Operator

    from ticket_agent.hive.reference import ReferenceHive

GRANT = ["submit", "gpu.lease.grant", "--worker", "worker-1", "--subject", "GPU-0", "--id", "t1"]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[ReferenceHive, Path]]:
    with running_hive(NEWEST, clock=now_ms) as (model, server):
        model.spawn_worker("worker-gpu")
        with mounted_hive(server.port, tmp_path / "hive") as hive:
            yield model, hive.path


@needs_fuse
def test_doctor_submit_run_and_status(operator: Operator, mounted: tuple[ReferenceHive, Path]) -> None:
    model, path = mounted
    at = ["--mount-dir", str(path)]
    told = operator.run("doctor", "--json", "--state-dir", operator.state, *at)
    checks = {entry["name"]: entry for entry in told.objects}
    assert (checks["hive"]["verdict"], checks["lifecycle"]["detail"]) == ("ok", "ONLINE")
    assert checks["hive"]["detail"].startswith(f"mount {path} serves")
    assert checks["workers"]["detail"] == "the telemetry of worker-1 can be read"
    run = ["run", "--state-dir", str(operator.state), "--log-format", "json", *at]
    with operator.spawn(*run) as agent:
        agent.event("hive-connected")
        # A mount has room for several: the caller comes beside the agent.
        assert operator.run(*GRANT, "--arg", "ttl_s=60", *at).code == Exit.OK
        agent.event("transition", state="terminal")
        second = operator.run("once", "--state-dir", operator.state.with_name("other"), *at)
        assert second.code == Exit.HIVE_UNREACHABLE
        assert "is served by another agent" in second.line
        model.set_lifecycle("DRAINING")
        agent.event("lifecycle-closed")
        assert agent.stop(signal.SIGTERM) == Exit.OK
    assert model.effect_count("grant", "t1") == 1
    shown = operator.run("status")
    assert "lifecycle: DRAINING, first seen" in shown.out
    told = operator.run("status", "--json")
    assert told.object["daemon"]["lifecycle"]["takes_results"] is False
    assert told.object["daemon"]["pace"]["close"] is False


@needs_fuse
def test_doctor_names_a_root_that_cannot_be_served_over_a_mount(operator: Operator, tmp_path: Path) -> None:
    with running_hive() as (model, server), mounted_hive(server.port, tmp_path / "hive") as hive:
        doctor = ["doctor", "--state-dir", str(operator.state), "--mount-dir", str(hive.path)]
        assert "there is no Worker yet" in operator.run(*doctor).out
        model.spawn_worker("worker-gpu")
        told = operator.run(*doctor)
    assert told.code == Exit.HIVE_REFUSED
    assert "no ticket can be executed over this mount" in told.out


@needs_fuse
def test_an_old_mount_is_named(operator: Operator, tmp_path: Path) -> None:
    with running_hive(NEWEST) as (_, server), mounted_hive(server.port, tmp_path / "hive", "old") as hive:
        at = ["--mount-dir", str(hive.path)]
        told = operator.run("once", "--state-dir", operator.state, *at)
        assert told.code == Exit.HIVE_UNREACHABLE
        assert "every file as empty" in told.line
        assert "every file as empty" in operator.run("doctor", "--state-dir", operator.state, *at).out


@pytest.mark.parametrize("command", ["once", "doctor"])
def test_a_directory_that_is_not_there(operator: Operator, tmp_path: Path, command: str) -> None:
    told = operator.run(command, "--state-dir", operator.state, "--mount-dir", tmp_path / "none")
    assert told.code == Exit.HIVE_UNREACHABLE
    assert "is the hive mounted there?" in told.out + told.err


# -- configuration -------------------------------------------------------------------------------------------


def _loaded(tmp_path: Path, text: str, **overrides: Any) -> Any:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return load_config(path, {"state_dir": "/var/lib/ticket-agent"} | overrides)


def test_a_file_names_the_directory(tmp_path: Path) -> None:
    config = _loaded(tmp_path, '[mount_dir]\npath = "/run/hive"\n', console={"host": None, "port": None})
    assert str(config.mount_dir.path) == "/run/hive"
    assert _loaded(tmp_path, "", mount_dir={"path": None}).mount_dir is None


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        ('[mount_dir]\npath = "run/hive"', {}, "`mount_dir.path`: must be an absolute path"),
        ('[mount_dir]\npath = ""', {}, "`mount_dir.path` is not the name of a directory"),
        ("[mount_dir]", {}, "`mount_dir.path`: Field required"),
        ('[mount_dir]\npath = "/a"\nhost = "b"', {}, "unknown key; known here: path"),
        ('mount_dir = "/a"', {}, "`mount_dir`: must be a table"),
        ('[mount_dir]\npath = "/a"\n[console]\nport = 1', {}, "`console` and `mount_dir` are both named"),
        ('[mount_dir]\npath = "/a"', {"console": {"port": 1}}, "`console` and `mount_dir` are both named"),
        ("[console]\nport = 1", {"mount_dir": {"path": "/a"}}, "`console` and `mount_dir` are both named"),
    ],
)
def test_mistakes_in_it(tmp_path: Path, text: str, overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _loaded(tmp_path, text, **overrides)
    assert words in str(caught.value)


def test_a_mock_hive_is_not_mounted(operator: Operator, tmp_path: Path) -> None:
    told = operator.run("once", "--mock", "--state-dir", operator.state, "--mount-dir", tmp_path)
    assert told.code == Exit.USAGE
    assert "`console` and `mount_dir` are both named" in told.line
