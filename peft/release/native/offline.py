"""The network is given up before any library is imported; the standard library is all that this needs.

A launcher that isolates the process does the same from outside, and more of it: what native code does is not
seen here. This is the second lock on the same door.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.offline_flags import FLAGS

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__ = ["NetworkRefusedError", "go_offline", "refuse_network"]

_SECRETS: Final = ("TOKEN", "PROXY", "SECRET", "PASSWORD", "API_KEY")
"""Parts of the names of variables that have nothing to do in a process without a network."""

_EVENTS: Final = frozenset(
    {
        "socket.connect",
        "socket.bind",
        "socket.sendto",
        "socket.sendmsg",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.gethostbyaddr",
        "socket.getnameinfo",
    }
)


class NetworkRefusedError(OSError):
    """Something in this process wanted to talk to somebody."""


def go_offline(environment: MutableMapping[str, str]) -> None:
    """Set the flags of the libraries, and drop every token and proxy."""
    for name in list(environment):
        if any(part in name.upper() for part in _SECRETS) and name not in FLAGS:
            del environment[name]
    environment.update(FLAGS)


def refuse_network() -> None:
    """Let every use of a socket or of a resolver from Python raise; for the rest of the process's life.

    Sockets of the local system (``AF_UNIX``) stay possible.
    """
    sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _EVENTS:
        return
    address = arguments[-1]
    if event in ("socket.connect", "socket.bind") and isinstance(address, str | bytes):
        return
    raise NetworkRefusedError(f"{event} is refused: a native phase has no network")
