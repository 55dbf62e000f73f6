"""What may be sent to a console at all; checked before a connection is even opened."""

from __future__ import annotations

import re
from typing import Final

from ticket_agent.hive.console.framing import MAX_DEPTH, MAX_ECHO_LEN, MAX_PATH_LEN, MAX_ROLE_LEN
from ticket_agent.protocol.namespace import HiveError

__all__ = ["ConsoleUsageError", "check_keepalive", "check_line", "check_path", "check_port", "check_role"]

MAX_PORT: Final = 65535

MAX_KEEPALIVE_S: Final = 15.0
"""Longest silence of an idle session that every console bears."""

ROLE: Final = re.compile(rf"[a-z][a-z0-9-]{{0,{MAX_ROLE_LEN - 1}}}")


class ConsoleUsageError(HiveError, ValueError):
    """The caller asked for something that no console can carry; a defect of the caller, nothing was sent."""

    code = "hive-usage"


def check_path(path: str) -> str:
    """Return ``path`` if it is absolute, normalised, printable ASCII without blanks, and within the bounds.

    Raises:
        ConsoleUsageError: it is not.
    """
    if len(path) > MAX_PATH_LEN:
        raise ConsoleUsageError(f"a path of {len(path)} characters exceeds the console's {MAX_PATH_LEN}")
    if not path.startswith("/"):
        raise ConsoleUsageError(f"path {path!r} must be absolute")
    if not all("!" <= char <= "~" for char in path):
        raise ConsoleUsageError(f"path {path!r} holds a blank, control or non-ASCII character")
    components = path[1:].split("/") if path != "/" else []
    if any(component in {"", ".", ".."} for component in components):
        raise ConsoleUsageError(f"path {path!r} must not hold empty, '.' or '..' components")
    if len(components) > MAX_DEPTH:
        raise ConsoleUsageError(f"path {path!r} is deeper than the console's {MAX_DEPTH} components")
    return path


def check_line(line: str) -> str:
    """Return ``line`` if a console stores exactly these bytes when it is appended.

    Consoles corrupt everything but ASCII and trim blanks at both ends, so that neither may be sent.

    Raises:
        ConsoleUsageError: it would be refused or altered. The text never quotes the line.
    """
    if not line:
        raise ConsoleUsageError("an empty line cannot be appended through a console")
    if len(line) > MAX_ECHO_LEN:
        raise ConsoleUsageError(f"a line of {len(line)} characters exceeds the console's {MAX_ECHO_LEN}")
    if not all(" " <= char <= "~" for char in line):
        raise ConsoleUsageError(
            "the line holds a control or non-ASCII character; escape it, consoles carry printable ASCII only"
        )
    if line != line.strip(" "):
        raise ConsoleUsageError("the line starts or ends with a blank, which the console would remove")
    return line


def check_port(port: int) -> int:
    """Return ``port`` if TCP has such a port.

    Raises:
        ConsoleUsageError: it has not.
    """
    if not 1 <= port <= MAX_PORT:
        raise ConsoleUsageError(f"port {port} is outside 1..={MAX_PORT}")
    return port


def check_keepalive(seconds: float) -> float:
    """Return ``seconds`` if a session that is silent for so long is not taken for dead.

    Raises:
        ConsoleUsageError: it may be.
    """
    if not 0 < seconds <= MAX_KEEPALIVE_S:
        raise ConsoleUsageError(
            f"a keep-alive of {seconds} s is wrong: it must be above 0 and at most {MAX_KEEPALIVE_S:.0f} s"
        )
    return seconds


def check_role(role: str) -> str:
    """Return ``role`` if it is a role token of at most 16 characters.

    Raises:
        ConsoleUsageError: it is not.
    """
    if ROLE.fullmatch(role) is None:
        raise ConsoleUsageError(f"role {role[:32]!r} is no role token; use queen or a worker role")
    return role
