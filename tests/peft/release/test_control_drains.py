"""Who was sent to a candidate is answered before it ends, and what is newer than a release stays as it is."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from control_scene import NEW, OLD, ControlScene, scene
from open_connection import connected_to

from ticket_agent.peft.release.known_server import KnownServer
from ticket_agent.peft.release.launch_errors import PhaseStopError
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.serving_pointer import PointerFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DRAIN_S = 0.5
GONE_S = 0.5
"""Who is connected keeps a server from ending by itself, for as long as it is given."""


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[ControlScene]:
    """Both serve."""
    with scene(tmp_path) as made:
        made.point(made.start_old())
        made.start_new()
        made.ready(OLD, NEW)
        made.config = replace(made.config, drain_s=DRAIN_S, gone_s=GONE_S)
        yield made


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """When the pointer moved last, and when the first server was asked to end."""
    told: dict[str, float] = {}
    move, stop = PointerFile.move, KnownServer.stop

    def moving(*arguments: Any) -> bool:
        moved = move(*arguments)
        told["moved"] = time.monotonic()
        return moved

    def stopping(server: KnownServer) -> None:
        told.setdefault("stopped", time.monotonic())
        stop(server)

    monkeypatch.setattr(PointerFile, "move", moving)
    monkeypatch.setattr(KnownServer, "stop", stopping)
    return told


def test_a_rollback_waits_for_who_is_connected(loaded: ControlScene, times: dict[str, float]) -> None:
    loaded.point(loaded.server(NEW))
    with closing(connected_to(loaded.server(NEW).instance.port)):
        found = loaded.run(Phase.ROLLBACK)
    assert found.succeeded, found.detail
    assert times["stopped"] - times["moved"] >= DRAIN_S


def test_a_candidate_that_is_taken_back_is_left_alone_for_a_while(
    loaded: ControlScene, times: dict[str, float]
) -> None:
    loaded.fault(2, "base-output")
    with closing(connected_to(loaded.server(NEW).instance.port)):
        found = loaded.run(Phase.PROMOTE)
    assert found.detail["ended"] == "restored"
    assert times["stopped"] - times["moved"] >= DRAIN_S


def newer(made: ControlScene) -> None:
    """Somebody else has deployed another adapter."""
    other = replace(made.promoted, adapter_sha256="9" * 64, served_artifact_sha256="9" * 64)
    with made.root.locked():
        made.root.control.promote(made.baseline, other)


def somebody_elses(made: ControlScene) -> None:
    """Another release has the root."""
    with made.root.locked():
        made.root.control.disclaim(made.owner)
        made.root.control.claim(replace(made.owner, operation_id="release-two"))


@pytest.mark.parametrize(("spoil", "rule"), [(newer, "release-accepted"), (somebody_elses, "release-owned")])
def test_a_rollback_of_what_is_not_its_own_touches_nothing(
    spoil: Callable[[ControlScene], None], rule: str, loaded: ControlScene
) -> None:
    loaded.point(loaded.server(NEW))
    spoil(loaded)
    before = (loaded.root.control.accepted(), loaded.root.control.runtime(), loaded.root.pointer.read())
    found = loaded.run(Phase.ROLLBACK)
    assert (found.succeeded, found.detail["rule"]) == (False, rule)
    after = (loaded.root.control.accepted(), loaded.root.control.runtime(), loaded.root.pointer.read())
    assert after == before
    assert loaded.server(NEW).usable()


def test_a_candidate_that_ends_later_than_it_was_told_to_is_gone(
    loaded: ControlScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine takes longer to end processes than one call waits; whether they are there counts."""
    kill, later = KnownServer.kill, []

    def slow(server: KnownServer) -> None:
        later.append(threading.Timer(0.3, kill, [server]))
        later[0].start()
        raise PhaseStopError("something is still there; stop it again")

    monkeypatch.setattr(KnownServer, "kill", slow)
    loaded.config = replace(loaded.config, gone_s=20.0)
    monkeypatch.setattr(KnownServer, "stop", refused)
    found = loaded.run(Phase.ROLLBACK)
    later[0].join()
    assert found.succeeded, found.detail
    assert found.detail["candidate_gone"] is True


def refused(_: KnownServer) -> None:
    raise PhaseStopError("it could not be asked to end; kill it")
