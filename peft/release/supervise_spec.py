"""What a supervisor is told, on its standard input: nothing of it is ever on a command line or on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, Self

from ticket_agent.peft.release.output_ring import OutputBounds

__all__ = ["MAX_SPEC_BYTES", "SuperviseSpec"]

MAX_SPEC_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperviseSpec:
    """One process to run.

    Attributes:
        launch_id: the caller's name of this launch.
        marker: random text, also in the environment of the phase.
        launcher: what confines it, for the record.
        unit: its systemd unit, or None.
        argv: what to execute; the program is an absolute path.
        environment: all that it gets.
        cwd: where it starts.
        deadline_s: how long it may run, in seconds, suspended time included; None: as long as it does.
        niceness: how much it gives way to others.
        rlimits: soft and hard limit by the name of the resource.
        no_new_privileges: set here; a confining program may need to set it itself.
        bounds: of the output that is kept.
        end_commands: commands that end what is not a descendant of ours; code 0 or 5 (absent) is success.
    """

    launch_id: str
    marker: str
    launcher: str
    unit: str | None
    argv: tuple[str, ...]
    environment: dict[str, str]
    cwd: str
    deadline_s: float | None
    rlimits: dict[str, int]
    no_new_privileges: bool
    bounds: OutputBounds
    end_commands: tuple[tuple[str, ...], ...] = ()
    niceness: int = 0

    def encode(self) -> bytes:
        """As bytes for :meth:`decode`."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what our own launcher encoded in the same version.

        Raises:
            ValueError, TypeError, KeyError: it is anything else.
        """
        value = json.loads(data)
        value["argv"] = tuple(value["argv"])
        value["bounds"] = OutputBounds(**value["bounds"])
        value["end_commands"] = tuple(tuple(command) for command in value["end_commands"])
        return cls(**value)
