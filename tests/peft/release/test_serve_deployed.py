"""Serving what is deployed: what contradicts it is told, and what was begun before is gone on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from control_scene import NEW, OLD, ControlScene, scene, slow_to_die

from ticket_agent.peft.release.bundle import ADAPTER_WEIGHTS
from ticket_agent.peft.release.root_errors import ObjectCorruptError
from ticket_agent.peft.release.serve_deployed import NotServedError, serve_deployed, stop_serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ControlScene]:
    """Generation 1 is deployed, and no release is under way."""
    with scene(tmp_path) as found:
        with found.root.locked():
            found.root.control.disclaim(found.owner)
        yield found


def test_something_else_that_answers_is_not_replaced(made: ControlScene) -> None:
    made.start_old()
    made.point(made.start_new())
    pointer = made.root.pointer.read()
    with pytest.raises(NotServedError, match="but generation 1 is deployed"):
        serve_deployed(made.root, made.room)
    assert made.root.pointer.read() == pointer
    ended = stop_serving(made.root, made.room)
    assert {server.launch_id for server in ended} == {OLD, NEW}
    served = serve_deployed(made.root, made.room)
    assert served.started
    assert made.deployed() == ("g1", 1, True, True)


def test_a_server_that_was_started_before_the_pointer_moved_is_pointed_at(made: ControlScene) -> None:
    made.start_old()
    served = serve_deployed(made.root, made.room)
    assert (served.started, served.server.launch_id) == (False, OLD)
    assert made.deployed() == ("g1", 1, True, True)


def test_a_server_that_was_asked_to_end_is_not_gone_on_with(made: ControlScene) -> None:
    made.point(made.start_old())
    made.ready(OLD)
    made.fault(1, "unstoppable")
    made.server(OLD).stop()
    assert made.server(OLD).running() is True
    served = serve_deployed(made.root, made.room)
    assert served.started
    assert served.server.instance.port != made.server(OLD).instance.port


def test_a_server_that_takes_long_to_die_is_waited_for(made: ControlScene) -> None:
    made.point(made.start_old())
    with slow_to_die():
        ended = stop_serving(made.root, made.room)
    assert [server.launch_id for server in ended] == [OLD]
    assert made.room.gone(made.server(OLD))


def test_damaged_files_are_not_served(made: ControlScene) -> None:
    made.point(made.start_old())
    made.server(OLD).kill()
    path = made.path / "bundles" / made.old_bundle / ADAPTER_WEIGHTS
    path.write_bytes(b"weights X")
    with pytest.raises(ObjectCorruptError):
        serve_deployed(made.root, made.room)
    assert all(server.running() is False for server in made.room.all())
