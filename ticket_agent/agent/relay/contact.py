"""One peer's thread: it looks and sends, and knows nothing of the journal.

The agent's thread decides and journals; what may take as long as a peer's time-out happens here, so that no
peer delays another one or this hive. A contact is handed over and its reply is asked for later: neither
waits. There is one contact at a time for each peer.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.agent.relay.sighting import Log, Sighting
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.namespace import (
    AppendAnswer,
    HiveError,
    HiveUnreachableError,
    Namespace,
    Unknown,
)
from ticket_agent.protocol.retention import Retention, parse_retention

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.protocol.paths import TicketPaths

__all__ = ["Failed", "Look", "NotSent", "PeerLink", "Reply", "Send", "Sent", "look_at"]

MAX_LOOKS = 3
LINGER_S = 0.25
"""How long, in seconds, a session that others wait for is kept for a next contact."""


@dataclass(frozen=True, slots=True)
class Look:
    """Read the peer's logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Append one line to the peer's ``spec``, in the session of an earlier look only."""

    key: str
    line: str
    session: int


@dataclass(frozen=True, slots=True)
class Sent:
    """What the peer answered to a line, Unknown included."""

    key: str
    answer: AppendAnswer


@dataclass(frozen=True, slots=True)
class NotSent:
    """The line certainly never left: the session was over, or no connection was made."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A look that failed; it may simply be repeated."""

    why: str


Reply = Sighting | Sent | NotSent | Failed


class PeerLink:
    """Hands contacts to a peer's thread; belongs to the agent's thread.

    Args:
        name: the peer hive.
        connect: makes its namespace, at the first contact; used in the peer's thread only.
        paths: ticket logs of the peer.
        gives_way: end the session when there is nothing to do: a console has one client at a time, and it is
            the peer's own agent that should be it.
        settle_s: seconds after a lost answer during which the line may still be applied, by a gateway that
            holds it in its queue; 0 where a new session proves that the old one is over.
        max_line_bytes: longest line that the peer takes.
        look_s: longest pause, in seconds, between two looks while a result is awaited. A console is somebody
            else's while we do not look; a gateway bears more.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Namespace],
        *,
        paths: TicketPaths,
        gives_way: bool = True,
        settle_s: float = 0.0,
        max_line_bytes: int = 2048,
        look_s: float = 1.0,
    ) -> None:
        self.name = name
        self.settle_s = settle_s
        self.max_line_bytes = max_line_bytes
        self.look_s = look_s
        self._connect = connect
        self.paths = paths
        self.gives_way = gives_way
        self._jobs: queue.SimpleQueue[Look | Send | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._looks = 0
        self.busy = False
        """Whether a contact was handed over whose reply was not taken yet."""

    def start(self, job: Look | Send) -> None:
        """Hand a contact over; there must be none under way."""
        if self.busy:
            raise RuntimeError(f"a contact with {self.name} is under way")
        self.busy = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"relay-{self.name}", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def reply(self) -> Reply | None:
        """The reply to the contact under way, or None while there is none."""
        try:
            found = self._replies.get_nowait()
        except queue.Empty:
            return None
        self.busy = False
        return found

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread; one that waits for its peer is left behind and ends with the process."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join(timeout_s)

    def _serve(self) -> None:
        namespace: Namespace | None = None
        open_session = False
        while True:
            try:
                job = self._jobs.get(timeout=LINGER_S if open_session and self.gives_way else None)
            except queue.Empty:
                job, open_session = None, False
                if namespace is not None:
                    namespace.close()
                continue
            if job is None:
                if namespace is not None:
                    namespace.close()
                return
            try:
                namespace = namespace or self._connect()
                reply = self._do(namespace, job)
            except Exception as error:  # noqa: BLE001 - a thread that ends unheard would leave its contact open
                reply = _unexpected(job, error)
            open_session = True
            self._replies.put(reply)

    def _do(self, namespace: Namespace, job: Look | Send) -> Reply:
        if isinstance(job, Look):
            self._looks += 1
            try:
                return look_at(namespace, self.paths, number=self._looks)
            except HiveError as error:
                return Failed(str(error))
        try:
            return Sent(job.key, namespace.append(self.paths.spec, job.line, session=job.session))
        except HiveError as error:
            # What an append raises, it raises before anything is sent.
            return NotSent(job.key, str(error))


def look_at(namespace: Namespace, paths: TicketPaths, *, number: int) -> Sighting:
    """Read a hive's three logs in one session, with the offsets that hold for them.

    Raises:
        HiveError: a read failed, or the logs did not hold still.
    """
    for _ in range(MAX_LOOKS):
        names = set(namespace.ls(paths.directory))
        session = namespace.session
        before = _retention(namespace, paths, names)
        lines = {leaf: tuple(namespace.read(f"{paths.directory}/{leaf}")) for leaf in _LEAVES}
        after = _retention(namespace, paths, names)
        logs = {leaf: _log(lines[leaf], before.get(leaf), after.get(leaf)) for leaf in _LEAVES}
        moved = bool(after) and logs["spec"].base is None
        if namespace.session == session and not moved:
            return Sighting(session=session, logs=logs, number=number)
    raise HiveUnreachableError(f"the peer's logs did not hold still during {MAX_LOOKS} readings")


_LEAVES = ("spec", "status", "deadletter")


def _retention(namespace: Namespace, paths: TicketPaths, names: set[str]) -> dict[str, Retention]:
    if "retention" not in names:
        return {}
    try:
        return parse_retention(namespace.read(paths.retention))
    except ProtocolError as error:
        raise HiveUnreachableError(f"the peer's {paths.retention} is malformed: {error}") from error


def _log(lines: tuple[str, ...], before: Retention | None, after: Retention | None) -> Log:
    if before is None or after is None:
        return Log(lines=lines)
    read = {"read_from": after.base, "read_to": before.next}
    if (before.base, before.next) != (after.base, after.next):
        return Log(lines=lines, drops=True, **read)
    return Log(lines=lines, base=after.base, next=after.next, drops=True, **read)


def _unexpected(job: Look | Send, error: Exception) -> Reply:
    why = f"{type(error).__name__}: {error}"
    return Failed(why) if isinstance(job, Look) else Sent(job.key, Unknown(why))
