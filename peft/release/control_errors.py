"""Why a control phase ends without success; each is a definite end of the phase."""

from __future__ import annotations

from ticket_agent.peft.errors import PeftError

__all__ = [
    "AuthorityExpiredError",
    "CandidateChangedError",
    "ControlError",
    "ControlJobError",
    "ServerMissingError",
]


class ControlError(PeftError):
    """Root of these errors."""

    code = "control"


class ControlJobError(ControlError):
    """The job directory is not what the agent has to prepare for this phase."""

    code = "control-job"


class AuthorityExpiredError(ControlError):
    """The ticket has expired: nothing more is begun."""

    code = "release-authority-expired"


class CandidateChangedError(ControlError):
    """The candidate is not the adapter that was compared."""

    code = "candidate-changed-after-evaluation"


class ServerMissingError(ControlError):
    """A server that must be there was never started, is another one, or does not run."""

    code = "control-server"
