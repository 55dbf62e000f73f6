"""Reading the admission streams with as few commands as possible, and never half of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.namespace import (
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    Namespace,
)
from ticket_agent.protocol.retention import Retention, parse_retention

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.protocol.paths import TicketPaths

__all__ = ["Features", "Feed", "Look"]

CALLERS_PERIOD_S = 0.2
"""Shortest pause, in seconds, between two readings of the callers' log: root's own log carries the haste."""

MAX_LOOKS = 5
"""Attempts to read a log between two equal retention readings before the pass gives up and comes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What this root offers beside the six logs (root side: retention, current)."""

    retention: bool
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One consistent look at both request logs.

    Attributes:
        admitted: lines of ``spec.snapshot``.
        callers: lines of ``spec``.
        retention: offsets of every log that hold for exactly these lines; empty when the root offers none.
    """

    admitted: tuple[str, ...]
    callers: tuple[str, ...]
    retention: Mapping[str, Retention]


class Feed:
    """Looks at the request logs of one hive; tells when nothing changed since the last look."""

    def __init__(self, namespace: Namespace, paths: TicketPaths, *, monotonic: Callable[[], float]) -> None:
        self._namespace = namespace
        self._paths = paths
        self._monotonic = monotonic
        self._callers_due = 0.0
        self.callers_period_s = CALLERS_PERIOD_S
        """Shortest pause between two readings of the callers' log; shorter where that turns over faster."""
        self._features: Features | None = None
        self._features_session = 0
        self._last: Look | None = None
        self._last_session = 0

    def features(self) -> Features:
        """What the root of the current session offers; asked once per session."""
        if self._features is None or self._features_session != self._namespace.session:
            names = set(self._namespace.ls(self._paths.directory))
            self._features = Features(retention="retention" in names, current="current" in names)
            self._features_session = self._namespace.session
        return self._features

    def forget(self) -> None:
        """Make the next look a full one, even if nothing changed."""
        self._last = None

    @property
    def retention(self) -> Mapping[str, Retention]:
        """Offsets of every log as of the last look, also of one that found the request logs unchanged."""
        return self._last.retention if self._last is not None else {}

    @property
    def session(self) -> int:
        """Session in which the last look was completed; a reboot of the hive always ends a session."""
        return self._last_session

    def look(self) -> Look | None:
        """Read what changed; None when both logs are as they were at the last look.

        Raises:
            HiveError: a read failed, or the logs did not hold still; the look may simply be repeated.
        """
        for _ in range(MAX_LOOKS):
            by_offsets = self.features().retention
            session = self._namespace.session
            look = self._look_by_offsets() if by_offsets else self._look_by_content()
            if look is None or self._namespace.session != session:
                continue
            last = self._last if self._last_session == session else None
            self._last, self._last_session = look, session
            same = last is not None and (last.admitted, last.callers) == (look.admitted, look.callers)
            return None if same else look
        raise HiveUnreachableError(
            f"the admission log changed during each of {MAX_LOOKS} readings; the next pass reads it again"
        )

    def _look_by_content(self) -> Look:
        return Look(
            admitted=self._read(self._paths.spec_snapshot), callers=self._read(self._paths.spec), retention={}
        )

    def _look_by_offsets(self) -> Look | None:
        """Read what moved between two equal readings of the offsets; None when they moved meanwhile."""
        before = self._retention()
        last = self._last if self._last_session == self._namespace.session else None
        keep_callers = last is not None and (
            _same(before, last.retention, "spec") or self._monotonic() < self._callers_due
        )
        callers = last.callers if last and keep_callers else self._read_callers()
        if last is not None and _same(before, last.retention, "spec.snapshot"):
            admitted, after = last.admitted, before
        else:
            admitted, after = self._read(self._paths.spec_snapshot), self._retention()
            if not _same(before, after, "spec.snapshot"):
                return None
        if last is not None and keep_callers and "spec" in last.retention:
            # What was not read yet must still count as new at the next look.
            after = {**after, "spec": last.retention["spec"]}
        else:
            after = {**after, "spec": before["spec"]} if "spec" in before else after
        return Look(admitted=admitted, callers=callers, retention=after)

    def _read_callers(self) -> tuple[str, ...]:
        self._callers_due = self._monotonic() + self.callers_period_s
        return self._read(self._paths.spec)

    def _retention(self) -> dict[str, Retention]:
        try:
            return parse_retention(self._namespace.read(self._paths.retention))
        except ProtocolError as error:
            raise HiveViolationError(f"{self._paths.retention} is malformed: {error}") from error

    def _read(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(self._namespace.read(path))
        except HiveRefusedError as error:
            if error.absent:
                raise HiveRefusedError(
                    "CAT", f"{path} (does this hive offer host tickets?)", error.refusal
                ) from None
            raise


def _same(one: Mapping[str, Retention], other: Mapping[str, Retention], leaf: str) -> bool:
    left, right = one.get(leaf), other.get(leaf)
    return left is not None and right is not None and (left.base, left.next) == (right.base, right.next)
