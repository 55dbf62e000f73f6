"""What `doctor` says about releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from cli_support import contents
from peft_support import held_elsewhere
from release_host import HOW, ReleaseHost, put

from ticket_agent.cli.doctor_release import EXTRA, release_checks
from ticket_agent.exits import Exit
from ticket_agent.peft.locks import RootLock
from ticket_agent.peft.release.markers import Blocker
from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.cli.doctor_check import Check


@dataclass
class Lab:
    host: ReleaseHost

    def python(self, script: str) -> None:
        path = self.host.home / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def option(self, line: str) -> None:
        with self.host.file.open("a") as file:
            file.write(line + "\n")

    def look(self) -> dict[str, Check]:
        """By name; of several with one name the worst."""
        order = ["ok", "warn", "fail"]
        found: dict[str, Check] = {}
        for check in release_checks(self.host.file):
            known = found.get(check.name)
            if known is None or order.index(check.verdict) > order.index(known.verdict):
                found[check.name] = check
        return found


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(ReleaseHost(tmp_path))
    made.python("echo 3.11.7")
    made.option(f'python = "{made.host.home / "python"}"')
    made.option("unconfined = true")
    return made


def test_a_host_in_order(lab: Lab) -> None:
    before = contents(lab.host.place)
    found = lab.look()
    assert {check.verdict for name, check in found.items() if name not in {"launcher", "guarantee"}} == {"ok"}
    assert found["release root"].detail == f"{lab.host.place}, generation 0 deployed, lock free"
    assert found["launcher"].verdict != "fail"
    assert "phases run " in found["launcher"].detail or found["launcher"].detail.startswith("not used")
    assert "guarantee" in found
    assert found["release python"].detail.endswith(f"Python 3.11.7, with {', '.join(EXTRA)}")
    assert found["model servers"].detail == "0 running"
    assert contents(lab.host.place) == before


def test_without_a_configuration_nothing_is_looked_at() -> None:
    (only,) = release_checks(None)
    assert (only.verdict, only.detail[:11]) == ("ok", "not enabled")


def _open_root(lab: Lab) -> None:
    lab.host.place.chmod(0o755)


def _no_root(lab: Lab) -> None:
    lab.host.place.rename(lab.host.home / "elsewhere")


def _damaged(lab: Lab) -> None:
    put(lab.host.place / "accepted.json", b"damaged")


def _blocked(lab: Lab) -> None:
    owner = lab.host.owner(lab.host.scene())
    with lab.host.root() as root, root.locked():
        root.control.block(
            Blocker(
                operation_id=owner.operation_id,
                request_sha256=owner.request_sha256,
                reason="it hangs",
                since_unix_ms=1,
            )
        )


def _no_torch(lab: Lab) -> None:
    lab.python("echo 3.11.7 torch peft")


def _no_python(lab: Lab) -> None:
    (lab.host.home / "python").unlink()


def _broken_python(lab: Lab) -> None:
    lab.python("exit 3")


def _open_token(lab: Lab) -> None:
    (lab.host.home / "token").chmod(0o644)


def _empty_token(lab: Lab) -> None:
    (lab.host.home / "token").write_bytes(b"")


def _no_token(lab: Lab) -> None:
    (lab.host.home / "token").unlink()


def _open_key(lab: Lab) -> None:
    assert lab.host.key is not None
    lab.host.key.chmod(0o644)


def _bad_config(lab: Lab) -> None:
    lab.option("nonsense = 1")


@pytest.mark.parametrize(
    ("damage", "name", "code", "words"),
    [
        (_open_root, "release root", Exit.FAILURE, "chmod 700"),
        (_no_root, "release root", Exit.FAILURE, "does not exist"),
        (_damaged, "release root", Exit.FAILURE, ""),
        (_blocked, "release blocker", Exit.DEGRADED, "release recover release-one"),
        (_no_torch, "release python", Exit.FAILURE, "has no torch, peft; install them with"),
        (_no_python, "release python", Exit.FAILURE, "No such file"),
        (_broken_python, "release python", Exit.FAILURE, "ended with code 3"),
        (_open_token, "serving token", Exit.FAILURE, "chmod 600"),
        (_empty_token, "serving token", Exit.FAILURE, "is empty"),
        (_no_token, "serving token", Exit.FAILURE, "No such file"),
        (_open_key, "signing key", Exit.FAILURE, "signing.key"),
        (_bad_config, "releases", Exit.USAGE, "unknown key"),
    ],
)
def test_each_thing_that_is_wrong_is_found(
    lab: Lab, damage: Callable[[Lab], None], name: str, code: Exit, words: str
) -> None:
    damage(lab)
    found = lab.look()
    assert {key for key, check in found.items() if check.verdict == "fail"} - {"launcher"} == {name}
    assert found[name].code == code
    assert words in found[name].detail


def test_owner_lock_and_servers_are_told(lab: Lab) -> None:
    scene = lab.host.scene(**HOW["bad input"])
    files = lab.host.begin(scene)
    lab.host.started(files, Phase.LOAD)
    run = lab.host.place / "servers" / "release-one.candidate.run"
    run.parent.mkdir(0o700)
    files.run(Phase.LOAD).rename(run)
    told = (run / "running.json").read_bytes()
    put(run / "running.json", told.replace(b"release-one.load", b"release-one.candidate"))
    with held_elsewhere(lab.host.place, RootLock.RELEASE) as process:
        found = lab.look()
    assert f"lock held by pid {process.pid}" in found["release root"].detail
    assert found["release owner"].detail.startswith("release-one is not finished")
    assert found["model servers"].detail.startswith("0 running, 1 ended")


def test_no_key_is_a_warning_and_no_failure(tmp_path: Path) -> None:
    lab = Lab(ReleaseHost(tmp_path, signing=False))
    assert lab.look()["signing key"].verdict == "warn"


def test_doctor_asks_for_the_configuration_of_the_agent(lab: Lab) -> None:
    from types import SimpleNamespace  # noqa: PLC0415

    from ticket_agent.cli import doctor  # noqa: PLC0415

    config: Any = SimpleNamespace(peft=SimpleNamespace(release_config=lab.host.file))
    assert next(iter(doctor._releases(config))).detail == str(lab.host.file)
