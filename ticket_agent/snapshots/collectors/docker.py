"""Collector ``docker``: how many containers the engine on this host has, asked over its Unix socket.

Entries are ``source`` and ``engine``. The highest version of the API that both sides know is used. A server's
version may be any short printable text, for distributions write ones such as ``20.10.24+dfsg1``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from ticket_agent.protocol.collecting import CollectError, fact
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.snapshots.collectors.http_json import OK, Peer, connect_unix, get, json_object

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from ticket_agent.protocol.collecting import CollectContext, Deadline
    from ticket_agent.protocol.snapshot import SnapshotEntry

__all__ = ["KNOWN_MINORS", "MAX_BODY", "STANDARD_SOCKET", "collect", "engine_socket", "negotiate", "project"]

STANDARD_SOCKET: Final = "/var/run/docker.sock"
HOST_VARIABLE: Final = "DOCKER_HOST"
KNOWN_MINORS: Final = range(40, 53)
"""Versions 1.40 to 1.52 of the API; what is read here is the same in all of them."""
MAX_BODY: Final = 1024 * 1024
"""Bytes of one answer; ``/info`` grows with the plugins, registries and warnings of an engine."""

_UNIX = "unix://"
_U32_MAX = 2**32 - 1
_API_VERSION = re.compile(r"1\.(0|[1-9][0-9]{0,3})")
_SERVER_VERSION = re.compile(r"[!-~]{1,64}")
_COUNTERS = {
    "containers": "Containers",
    "paused": "ContainersPaused",
    "running": "ContainersRunning",
    "stopped": "ContainersStopped",
}


def collect(context: CollectContext) -> list[SnapshotEntry]:
    """Ask the engine at ``DOCKER_HOST``, or at the standard socket.

    Raises:
        CollectError: ``not_enabled`` without a socket or with a host that is none, ``timed_out``, else
            ``source_failed``.
    """
    path = engine_socket(context.environ.get(HOST_VARIABLE))
    peer = Peer(name="the Docker engine", host="docker", connect=lambda deadline: _connect(path, deadline))
    minor = negotiate(_ask(peer, "/version", context.deadline))
    return project(_ask(peer, f"/v1.{minor}/info", context.deadline))


def engine_socket(host: str | None) -> str:
    """Return the path of the engine's socket; nothing given means the standard one.

    Raises:
        CollectError: ``not_enabled``, the engine is elsewhere.
    """
    if not host:
        return STANDARD_SOCKET
    path = unquote(host.removeprefix(_UNIX))
    if not host.startswith(_UNIX) or not path.startswith("/") or "\0" in path:
        raise CollectError(
            f"{HOST_VARIABLE} names no engine of this host; only unix:///absolute/path can be observed",
            UnavailableReason.NOT_ENABLED,
        )
    return path


def negotiate(version: Mapping[str, Any]) -> int:
    """Return the minor version of the API to use, from the engine's answer to ``/version``.

    Raises:
        CollectError: it names no range, or none that overlaps the known one.
    """
    shown = [version.get("MinAPIVersion"), version.get("ApiVersion")]
    found = [_API_VERSION.fullmatch(text) if isinstance(text, str) else None for text in shown]
    low, high = (None if match is None else int(match[1]) for match in found)
    if low is None or high is None or low > high:
        raise CollectError("the Docker engine does not say which versions of its API it has")
    usable = range(max(low, KNOWN_MINORS.start), min(high, KNOWN_MINORS[-1]) + 1)
    if not usable:
        raise CollectError(
            f"the Docker engine has versions 1.{low} to 1.{high} of its API, and 1.{KNOWN_MINORS.start} to"
            f" 1.{KNOWN_MINORS[-1]} are known here; update the older side"
        )
    return usable[-1]


def project(info: Mapping[str, Any]) -> list[SnapshotEntry]:
    """Return a record's entries from the engine's answer to ``/info``.

    Raises:
        CollectError: a counter is no u32, or the version no short printable text.
    """
    engine = {}
    for name, member in _COUNTERS.items():
        count = info.get(member)
        if type(count) is not int or not 0 <= count <= _U32_MAX:
            raise CollectError(f"the Docker engine gives no count of its containers in {member}")
        engine[name] = str(count)
    version = info.get("ServerVersion")
    if not isinstance(version, str) or _SERVER_VERSION.fullmatch(version) is None:
        raise CollectError("the Docker engine gives no version in ServerVersion that could be published")
    engine["version"] = version
    return [fact("engine", engine), fact("source", "docker-engine-api")]


def _ask(peer: Peer, target: str, deadline: Deadline) -> dict[str, Any]:
    answer = get(peer, target, deadline=deadline, max_body=MAX_BODY)
    if answer.status != OK:
        raise CollectError(
            f"the Docker engine answers {target} with status {answer.status} instead of {OK};"
            " is this an engine's socket?"
        )
    return json_object(answer, what=f"the Docker engine's {target}", max_bytes=MAX_BODY)


def _connect(path: str, deadline: Deadline) -> socket.socket:
    try:
        return connect_unix(path, deadline)
    except (FileNotFoundError, NotADirectoryError):
        raise CollectError(f"there is no Docker engine at {path!r}", UnavailableReason.NOT_ENABLED) from None
    except PermissionError:
        raise CollectError(
            f"this user may not open {path!r}; add it to the group docker, or give it an engine of its own"
        ) from None
    except ConnectionRefusedError:
        raise CollectError(f"nobody listens at {path!r}; start the Docker engine") from None
