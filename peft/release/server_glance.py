"""Which model servers of a root run, told from their run directories alone. Reads only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.layout import SERVERS
from ticket_agent.peft.release.running_phase import Finished, Lost, Running, RunningPhase

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RUN_SUFFIX", "ServerGlance", "servers_at_a_glance"]

RUN_SUFFIX: Final = ".run"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGlance:
    """A server that was started here once.

    Attributes:
        launch_id: of its launch.
        standing: in words, like ``running``.
        dead: nothing of it runs, for certain.
    """

    launch_id: str
    standing: str
    dead: bool

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {"launch_id": self.launch_id, "standing": self.standing, "dead": self.dead}


def servers_at_a_glance(root: Path) -> list[ServerGlance]:
    """All servers of a root, by name. What cannot be read counts as not known to be dead."""
    try:
        names = sorted(os.listdir(root / SERVERS))  # noqa: PTH208 - names are what is wanted
    except OSError:
        return []
    return [_glance(root, name.removesuffix(RUN_SUFFIX)) for name in names if name.endswith(RUN_SUFFIX)]


def _glance(root: Path, launch_id: str) -> ServerGlance:
    process = RunningPhase(root / SERVERS / f"{launch_id}{RUN_SUFFIX}", launch_id=launch_id)
    try:
        state = process.poll()
    except PeftError as error:
        return ServerGlance(launch_id=launch_id, standing=f"cannot be read: {error}", dead=False)
    match state:
        case Running():
            return ServerGlance(launch_id=launch_id, standing="running", dead=False)
        case Finished(record=record):
            return ServerGlance(launch_id=launch_id, standing=f"ended ({record.reason.value})", dead=True)
        case Lost(record=record):
            alive = record.child.is_running()
            words = "its supervisor is gone, it runs on" if alive else "its supervisor is gone"
            return ServerGlance(launch_id=launch_id, standing=words, dead=False)
    return ServerGlance(launch_id=launch_id, standing="never started", dead=True)
