"""What asking a model server raises."""

from __future__ import annotations

from ticket_agent.peft.errors import PeftError

__all__ = [
    "AnswerRefusedError",
    "InstanceRefusedError",
    "ServerRefusedError",
    "ServerTimeoutError",
    "ServerUnreachableError",
    "ServingError",
    "WrongModelError",
]


class ServingError(PeftError):
    """Root of these errors."""

    code = "serving"


class InstanceRefusedError(ServingError):
    """An instance that must not be started: a name, port, token or path that no instance has."""

    code = "serving-instance"


class ServerUnreachableError(ServingError):
    """Nobody answers on the port, or the connection broke before the answer was complete.

    Attributes:
        refused: there was no connection at all, because nobody listens.
    """

    code = "serving-unreachable"

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class ServerTimeoutError(ServerUnreachableError):
    """The answer was not complete in time."""

    code = "serving-timeout"


class ServerRefusedError(ServingError):
    """The server answered with an error.

    Attributes:
        status: of HTTP.
    """

    code = "serving-refused"

    def __init__(self, text: str, *, status: int) -> None:
        super().__init__(text)
        self.status = status


class AnswerRefusedError(ServingError):
    """An answer that is too long, malformed, incomplete or says that something failed."""

    code = "serving-answer"


class WrongModelError(AnswerRefusedError):
    """The server answers under another name than the one that was asked for."""

    code = "serving-name"
