"""The two result streams of a hive: what is visible there, and publication that is never blindly repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.namespace import Acked, Namespace, Refusal, Refused, Unknown

if TYPE_CHECKING:
    from ticket_agent.protocol.paths import TicketPaths
    from ticket_agent.protocol.result import HostTicketResult
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["Publication", "ResultStreams"]


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of one result line.

    Attributes:
        visible: the exact line is in the stream, or the hive acknowledged it.
        refusal: the hive's definite ERR, if that was the answer.
        why: in words, for the log.
    """

    visible: bool
    refusal: Refusal | None = None
    why: str = ""


class ResultStreams:
    """Results as the hive shows them, read once per session.

    A session that was lost may have carried an append whose answer we never saw. So every new session reads
    both streams again before anything is published in it; that is what makes a repeated append safe.
    """

    def __init__(self, namespace: Namespace, paths: TicketPaths) -> None:
        self._namespace = namespace
        self._paths = paths
        self._session = 0
        self._lines: set[tuple[str, bytes]] = set()
        self._terminal: dict[tuple[str, str], list[tuple[str, HostTicketResult]]] = {}
        self._seen: dict[tuple[str, str], list[HostTicketResult]] = {}
        self.malformed = 0
        """Lines of the last reading that are no results; they are skipped, never trusted."""

    def refresh(self, *, force: bool = False) -> None:
        """Read both streams again if the session changed (or if forced).

        Raises:
            HiveError: a read failed.
        """
        if not force and self._session == self._namespace.session and self._session != 0:
            return
        found: list[tuple[str, str]] = []
        for path in (self._paths.status, self._paths.deadletter):
            found.extend((path, line) for line in self._namespace.read(path))
        self._lines, self._terminal, self._seen, self.malformed = set(), {}, {}, 0
        for path, line in found:
            self._remember(path, line)
        self._session = self._namespace.session

    def terminal(self, key: tuple[str, str]) -> list[tuple[str, HostTicketResult]]:
        """Visible terminal results of a ticket (path and result), oldest first, as of the last refresh."""
        return list(self._terminal.get(key, ()))

    def shows(self, spec: HostTicketSpec) -> bool:
        """Whether any result of this very admission, of whatever state, was visible at the last refresh."""
        return any(result.echoes(spec) for result in self._seen.get(spec.key, ()))

    def publish(self, path: str, line: str) -> Publication:
        """Make a line visible: read back first where an earlier answer may have been lost, then append once.

        Raises:
            HiveError: the streams cannot be read, or nothing was sent because the session of that reading
                is over.
        """
        self.refresh()
        canonical = _canonical(line)
        if canonical is not None and (path, canonical) in self._lines:
            return Publication(visible=True, why="already visible")
        # A hive that rebooted since the reading must not get it: there it could answer another admission.
        match self._namespace.append(path, line, session=self._session):
            case Acked():
                return Publication(visible=True, why="acknowledged")
            case Refused(refusal):
                return Publication(visible=False, refusal=refusal, why=refusal.text)
            case Unknown(why):
                self._session = 0
                return Publication(visible=False, why=f"the answer was lost: {why}")

    def _remember(self, path: str, line: str) -> None:
        from ticket_agent.protocol.result import parse_result  # noqa: PLC0415 - pulls in pydantic

        try:
            result = parse_result(line.encode("utf-8"))
        except ProtocolError:
            self.malformed += 1
            return
        self._lines.add((path, result.encode()))
        self._seen.setdefault(result.key, []).append(result)
        if result.terminal:
            self._terminal.setdefault((result.id, result.idempotency_key), []).append((path, result))


def _canonical(line: str) -> bytes | None:
    from ticket_agent.protocol.result import parse_result  # noqa: PLC0415 - pulls in pydantic

    try:
        return parse_result(line.encode("utf-8")).encode()
    except ProtocolError:
        return None
