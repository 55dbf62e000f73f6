"""`release serve`: what is deployed is served once, found again, and ended; never beside a release."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from control_scene import MODEL, ControlScene, scene

from ticket_agent.exits import Exit
from ticket_agent.peft.release.prepared import PREPARED_FILE, Preparation
from ticket_agent.peft.release.profile import encode_profile
from ticket_agent.peft.release.request import encode_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_support import Answer, Operator

    from ticket_agent.peft.release.request import ReleaseRequest


@pytest.fixture(params=[0, 1])
def deployed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ControlScene]:
    """A root in which something is deployed, and no release is under way."""
    with scene(tmp_path, generation=request.param) as made:
        with made.root.locked():
            made.root.control.disclaim(made.owner)
        yield made


@pytest.fixture
def serve(operator: Operator, deployed: ControlScene) -> Serve:
    return Serve(operator, deployed)


class Serve:
    """The command on that root."""

    def __init__(self, operator: Operator, made: ControlScene) -> None:
        self.operator = operator
        self.made = made
        config = made.config
        self.config = made.folder / "release.toml"
        lines = [f'{name} = "{getattr(config, name)}"' for name in ("root", "python", "token_file")]
        lines += [f"ports = {list(config.ports)}", "unconfined = true", "ready_s = 60.0", "gone_s = 60.0"]
        self.config.write_text("\n".join(lines), encoding="utf-8")
        self.prepared(made.request)

    def prepared(self, request: ReleaseRequest) -> None:
        """A release is prepared in the root."""
        root = self.made.root
        with root.locked():
            sha256 = root.objects.store(encode_request(request))
        told = Preparation(operation_id="prepared", request_sha256=sha256, model_id=MODEL)
        with root.locked(), root.operation("prepared", create=True) as directory:
            directory.write_file(PREPARED_FILE, told.encode())

    def run(self, *options: str, first: bool = False) -> Answer:
        named = ("--operation", "prepared") if first else ()
        return self.operator.run("release", "serve", "--release-config", str(self.config), *named, *options)


def test_it_is_served_once_found_again_and_ended(serve: Serve) -> None:
    made = serve.made
    answer = serve.run()
    assert answer.code == Exit.FAILURE
    assert "was never served from this root; name a prepared release" in answer.line
    first = serve.run("--json", first=True)
    assert (first.code, first.err) == (Exit.OK, "")
    (started,) = first.objects
    assert (started["kind"], started["state"]) == ("server", "started")
    assert started["port"] in made.config.ports
    assert made.deployed() == (f"g{made.generation}", made.generation, True, True)
    again = serve.run()
    assert again.code == Exit.OK
    assert again.out == (
        f"serving  {started['name']}  127.0.0.1:{started['port']}  generation {made.generation}\n"
    )
    # A reboot: everything is gone, and nobody was asked.
    made.server(started["launch_id"]).phase.stop(timeout_s=60)
    rebooted = serve.run("--json")
    assert rebooted.code == Exit.OK, rebooted.err
    assert rebooted.objects[0]["state"] == "started"
    assert rebooted.objects[0]["launch_id"] != started["launch_id"]
    assert made.deployed() == (f"g{made.generation}", made.generation, True, True)
    assert [entry["state"] for entry in serve.run("--stop", "--json").objects] == ["stopped"]
    assert serve.run("--stop").out == "nothing was running\n"
    assert all(server.running() is False for server in made.room.all())


@pytest.mark.parametrize("deployed", [1], indirect=True)
def test_what_it_refuses(serve: Serve) -> None:
    made = serve.made
    with made.root.locked():
        made.root.control.claim(made.owner)
    for options in ((), ("--stop",)):
        answer = serve.run(*options)
        assert answer.code == Exit.FAILURE
        assert "release release-one is not finished" in answer.line
    with made.root.locked():
        made.root.control.disclaim(made.owner)
        answer = serve.run(first=True)
        assert answer.code == Exit.OTHER_OWNER
        made.root.control.select_runtime(made.new_runtime)
    assert "accepted.json names adapter" in serve.run(first=True).line
    with made.root.locked():
        made.root.control.select_runtime(made.old_runtime)
    other = replace(made.profile, versions=(*made.profile.versions[:-1], ("uvicorn", "0.0.1")))
    assert other != made.profile
    with made.root.locked():
        sha256 = made.root.objects.store(encode_profile(other))
    serve.prepared(replace(made.request, profile_sha256=sha256))
    assert "name the profile that it was released under" in serve.run(first=True).line
    serve.prepared(made.request)
    made.fault(1, "ends-at-once")
    answer = serve.run(first=True)
    assert answer.code == Exit.FAILURE
    assert "ended before it was ready" in answer.line
    assert "out of memory; the token was (token)" in answer.line
    assert made.root.pointer.read() is None
    assert serve.run("--stop", first=True).code == Exit.USAGE
    assert "release another was not prepared here" in serve.run("--operation", "another").line
    made.config.token_file.chmod(0o644)
    assert "nobody else may read it" in serve.run(first=True).line
    made.config.token_file.chmod(0o600)
