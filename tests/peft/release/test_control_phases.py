"""Each control phase on a real root with real server processes: what it leaves, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from control_scene import NEW, OLD, ControlScene, scene

from ticket_agent.peft.release.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ControlScene]:
    """The incumbent serves."""
    with scene(tmp_path) as made:
        made.point(made.start_old())
        made.ready(OLD)
        yield made


def test_a_release_goes_all_the_way(served: ControlScene, capsys: pytest.CaptureFixture[str]) -> None:
    with served.somebody_asks() as caller:
        staged = served.run(Phase.STAGE)
        assert staged.succeeded, staged.detail
        assert staged.detail["serving_bundle_sha256"] == served.new_bundle
        served.start_new()
        for phase in (Phase.LOAD, Phase.CANARY, Phase.PROMOTE):
            found = served.run(phase)
            assert found.succeeded, found.detail
    with capsys.disabled():
        print(f"\n{len(caller.answers)} answers, longest gap {caller.longest_gap_ms():.0f} ms")
    assert caller.failures == []
    assert found.detail["incumbent_gone"] is True
    assert served.deployed() == ("g2", 2, True, True)
    assert served.server(OLD).running() is False
    assert served.server(NEW).running() is True


def test_a_rollback_takes_a_whole_promotion_back(served: ControlScene) -> None:
    served.run(Phase.STAGE)
    served.start_new()
    with served.somebody_asks() as caller:
        for phase in (Phase.LOAD, Phase.CANARY, Phase.PROMOTE):
            assert served.run(phase).succeeded
        served.start_old("again.server")
        found = served.run(Phase.ROLLBACK, incumbent="again.server")
    assert found.succeeded, found.detail
    assert caller.failures == []
    assert caller.generations() == [1, 2]
    assert served.deployed() == ("g1", 1, True, True)
    assert served.server(NEW).running() is False
    assert found.detail["candidate_gone"] is True
    assert found.detail["accepted"] == served.baseline.members()
    again = served.run(Phase.ROLLBACK, incumbent="again.server")
    assert again.succeeded, again.detail
