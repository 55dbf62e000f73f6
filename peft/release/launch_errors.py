"""What starting, finding and stopping a phase's process raises."""

from __future__ import annotations

from ticket_agent.peft.errors import PeftError

__all__ = [
    "LaunchError",
    "LaunchRefusedError",
    "LaunchUnknownError",
    "NoLauncherError",
    "PhaseMismatchError",
    "PhaseStopError",
    "RunFileError",
]


class LaunchError(PeftError):
    """Root of these errors."""

    code = "release-launch"


class LaunchRefusedError(LaunchError):
    """Nothing was started, and nothing will be: a definite answer."""

    code = "release-launch-refused"


class LaunchUnknownError(LaunchError):
    """Whether the phase runs is not known yet; attach to its run directory and look."""

    code = "release-launch-unknown"


class NoLauncherError(LaunchError):
    """No confinement works on this host, and running without was not allowed."""

    code = "release-no-launcher"


class PhaseMismatchError(LaunchError):
    """A run directory belongs to another launch than the one that was asked for."""

    code = "release-phase-mismatch"


class PhaseStopError(LaunchError):
    """Something of the phase may still be running; try again."""

    code = "release-phase-stop"


class RunFileError(LaunchError):
    """A file of a run directory is not what its writer leaves; nothing is concluded from it."""

    code = "release-run-file"
