"""What a peer shows, and what that proves about a line that was sent to it. Pure.

A line that the peer shows, or any result of its ticket, has arrived. A line that it does not show has
certainly not arrived only if the peer still is in the life in which we looked before sending, and still
retains everything that it took since. A peer that dropped lines, or that showed nothing at all before and may
have rebooted since, proves nothing: then the line is never sent again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.result import V1_MAX_LINE_BYTES, build_result, parse_result
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ticket_agent.journal.outcome import JsonValue
    from ticket_agent.protocol.result import HostTicketResult
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["Arrival", "Log", "Sighting", "SightingIndex", "before_image"]

_LOGS = ("spec", "status", "deadletter")


class Arrival(Enum):
    """Whether a line reached the peer."""

    ARRIVED = auto()
    ABSENT = auto()
    """It certainly did not, and the connection that carried it is over."""
    UNPROVEN = auto()
    """It is not there, and nothing proves that it never was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One log of the peer.

    Attributes:
        lines: what it retains, oldest first.
        base: offset of its first retained byte; None when the peer offers no offsets, or when it did not hold
            still while it was read.
        next: offset behind its last byte; None likewise.
        drops: the peer drops old lines, and tells by offsets what it dropped.
        read_from: offset from which on ``lines`` certainly hold everything up to ``read_to``, also of a log
            that moved meanwhile; None when the peer offers no offsets.
        read_to: likewise.
    """

    lines: tuple[str, ...]
    base: int | None = None
    next: int | None = None
    drops: bool = False
    read_from: int | None = None
    read_to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One look at a peer, made in one session.

    Attributes:
        session: the session it was made in.
        logs: ``spec``, ``status`` and ``deadletter``.
        number: counts the looks of this process; a higher one was begun later.
    """

    session: int
    logs: Mapping[str, Log]
    number: int = 0


def before_image(sighting: Sighting) -> dict[str, JsonValue]:
    """What has to be remembered of a look made before sending: where each log ended, and with what."""
    return {
        name: {
            "lines": len(log.lines),
            "next": log.next,
            "drops": log.drops,
            "sha256": _digest(log.lines),
            "last_sha256": _digest(log.lines[-1:]),
            "last_bytes": len(log.lines[-1].encode()) + 1 if log.lines else 0,
        }
        for name, log in sighting.logs.items()
    }


@dataclass(slots=True)
class SightingIndex:
    """A sighting parsed once, for all the tickets that are looked for in it."""

    sighting: Sighting
    _specs: dict[tuple[str, str], list[HostTicketSpec]] = field(init=False)
    _results: dict[tuple[str, str], list[HostTicketResult]] = field(init=False)

    def __post_init__(self) -> None:
        self._specs, self._results = {}, {}
        for line in self.sighting.logs["spec"].lines:
            try:
                spec = parse_spec(line.encode(), source="raw")
            except ProtocolError:
                continue
            self._specs.setdefault(spec.key, []).append(spec)
        for name in ("status", "deadletter"):
            for line in self.sighting.logs[name].lines:
                try:
                    result = parse_result(line.encode())
                except ProtocolError:
                    continue
                self._results.setdefault(result.key, []).append(result)

    def result_of(self, going: HostTicketSpec) -> HostTicketResult | None:
        """The first terminal result of a relayed ticket that the peer shows."""
        return next((result for result in self._answers(going) if result.terminal), None)

    def answered(self, going: HostTicketSpec) -> bool:
        """Whether the peer shows any result of a relayed ticket: somebody there has taken it up."""
        return bool(self._answers(going))

    def shows(self, going: HostTicketSpec) -> bool:
        """Whether the peer shows the ticket itself or any result of it."""
        sent = going.encode()
        return any(spec.encode() == sent for spec in self._specs.get(going.key, ())) or bool(
            self._answers(going)
        )

    def _answers(self, going: HostTicketSpec) -> list[HostTicketResult]:
        """Results of the ticket.

        One without the hives' names is its own only if there was no room for them; else it answers another
        ticket of the same id and key.
        """
        hives = (going.source_hive, going.target_hive)
        return [
            result
            for result in self._results.get(going.key, ())
            if result.echoes(going)
            and (
                (result.source_hive, result.target_hive) == hives
                or (result.source_hive is None and not _names_hives(going, result.state))
            )
        ]

    def arrival(self, going: HostTicketSpec, before: Mapping[str, JsonValue]) -> tuple[Arrival, str]:
        """Tell whether a line that was sent after ``before`` was made has arrived, and why that is known."""
        if self.shows(going):
            return Arrival.ARRIVED, "the peer shows it"
        images = {name: image for name in _LOGS if isinstance(image := before.get(name), dict)}
        if "spec" not in images:
            return Arrival.UNPROVEN, "nothing is known of the peer from before it was sent"
        same = [_same_life(image, self.sighting.logs[name]) for name, image in images.items()]
        if False in same:
            return Arrival.UNPROVEN, "the peer restarted since, and what it took before is gone"
        if not _retains_since(images["spec"], self.sighting.logs["spec"]):
            return Arrival.UNPROVEN, "the peer has dropped lines that it took since"
        if True not in same:
            return Arrival.UNPROVEN, "the peer showed nothing before, so that a restart cannot be excluded"
        return Arrival.ABSENT, "the peer retains all that it took since, and it is not there"

    def restarted(self, before: Mapping[str, JsonValue]) -> bool:
        """Whether the peer certainly is in another life than before."""
        images = {name: image for name in _LOGS if isinstance(image := before.get(name), dict)}
        return any(_same_life(image, self.sighting.logs[name]) is False for name, image in images.items())


def _names_hives(going: HostTicketSpec, state: str) -> bool:
    """Whether the shortest result of a ticket that has room for its hives fits the line of a result."""
    try:
        line = build_result(going, state=state, message=None, max_line_bytes=V1_MAX_LINE_BYTES)
    except ProtocolError:
        return False
    return parse_result(line).source_hive is not None


def _same_life(image: Mapping[str, JsonValue], log: Log) -> bool | None:
    """Whether a log is the one it was before, by what stood at its end; None if nothing tells."""
    end, count = image.get("next"), image.get("lines")
    if not isinstance(count, int):
        return None
    if image.get("drops") is not True:
        if log.drops or not count:
            return None
        # A log without offsets drops no lines: whatever stood there still stands there.
        return _digest(log.lines[:count]) == image.get("sha256")
    if not isinstance(end, int) or log.next is None or log.base is None:
        return None
    if log.next < end:
        return False
    last = image.get("last_bytes")
    start = end - last if isinstance(last, int) else end
    if not count or log.base > start:
        return None
    return _digest(_at(log, start)) == image.get("last_sha256")


def _retains_since(image: Mapping[str, JsonValue], log: Log) -> bool:
    end = image.get("next")
    if image.get("drops") is not True:
        return not log.drops
    return isinstance(end, int) and log.base is not None and log.base <= end


def _at(log: Log, offset: int) -> Sequence[str]:
    position = log.base or 0
    for line in log.lines:
        if position == offset:
            return (line,)
        position += len(line.encode()) + 1
    return ()


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
