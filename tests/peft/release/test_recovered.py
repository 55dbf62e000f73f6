"""A release that somebody recovers under another ticket, as its own ticket is told."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from release_host import HOW, ReleaseHost, put
from release_scene import SCENES, Scene

from ticket_agent.journal.outcome import Outcome, Rejected, Unknown
from ticket_agent.peft.release.conclude import conclude
from ticket_agent.peft.release.driver import ReleaseDriver
from ticket_agent.peft.release.layout import OperationFiles
from ticket_agent.peft.release.phase_journal import PhaseJournal
from ticket_agent.peft.release.phase_machine import Allowed
from ticket_agent.peft.release.request import parse_request
from ticket_agent.peft.release.spelled import spell

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> ReleaseHost:
    return ReleaseHost(tmp_path.resolve())


def recovered(host: ReleaseHost, scene: Scene, *, state: str | None) -> None:
    """An attempt to recover the release, that ended in a state or goes on."""
    attempt = OperationFiles(root=host.place, operation_id=scene.operation_id, recovery="ticket-2")
    put(attempt.path / "begun.json", host.begun(scene).encode())
    if state is not None:
        put(attempt.path / "release.json", spell(scene.record.members() | {"state": state}))


def told(host: ReleaseHost, scene: Scene) -> Outcome:
    """What the driver of the release itself answers."""
    starter: Any = None  # it must not come to that
    with (
        host.root() as root,
        closing(PhaseJournal.open(host.place, clock=lambda: 1, boot_id="b", agent_version="1+t")) as journal,
    ):
        driver = ReleaseDriver(
            root=root,
            journal=journal,
            files=host.files(scene),
            begun=host.begun(scene),
            request=parse_request(scene.request_bytes),
            starter=starter,
            conclude=partial(conclude, root, host.config),
            clock=lambda: 1,
        )
        return driver.advance(Allowed.LOST)


@pytest.fixture
def scene(host: ReleaseHost) -> Scene:
    made = host.scene(**HOW["canary failed"] | {"recovery": SCENES["rescued"].recovery})
    host.begin(made)
    return made


def test_a_release_that_was_put_back_has_failed(host: ReleaseHost, scene: Scene) -> None:
    recovered(host, scene, state="recovered_failure")
    answer = told(host, scene)
    assert isinstance(answer, Rejected)
    assert answer.detail.startswith("recovered_failure native_observation=sha256:")
    assert answer.evidence == {"recovered_under_ticket": "ticket-2"}
    assert told(host, scene) == answer


@pytest.mark.parametrize("state", [None, "rollback_failed"])
def test_a_release_whose_recovery_goes_on_is_unknown(
    host: ReleaseHost, scene: Scene, state: str | None
) -> None:
    recovered(host, scene, state=state)
    answer = told(host, scene)
    assert isinstance(answer, Unknown)
    assert "is left to its recovery under ticket ticket-2" in answer.detail
