"""Which model servers of a root run, told from their run directories alone. Reads only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.layout import SERVERS
from ticket_agent.peft.release.process import ProcessIdentity
from ticket_agent.peft.release.running_phase import Finished, Lost, Running, RunningPhase

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RECORD_SUFFIX", "RUN_SUFFIX", "ServerGlance", "servers_at_a_glance"]

RUN_SUFFIX: Final = ".run"
RECORD_SUFFIX: Final = ".json"


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
    # One that is noted down and was never started, or is half removed, has a record alone.
    found = {
        name.removesuffix(end) for name in names for end in (RUN_SUFFIX, RECORD_SUFFIX) if name.endswith(end)
    }
    return [_glance(root, launch_id) for launch_id in sorted(found)]


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
            # What had detached itself is not known to be gone, unless the host was started anew since.
            here = ProcessIdentity.of(os.getpid())
            rebooted = here is not None and record.supervisor.boot_id != here.boot_id
            return ServerGlance(launch_id=launch_id, standing=words, dead=rebooted and not alive)
    return ServerGlance(launch_id=launch_id, standing="never started", dead=True)
