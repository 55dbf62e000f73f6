"""Which reads a gateway may answer from its cache, and how long one of them has to wait to be true. Pure.

A gateway keeps what CAT shows below ``/proc``, ``/host`` and ``/gpu`` for about two seconds. It forgets a
ticket log that was written through it, but not what else a write changes: a lease that was just granted can
be invisible for two seconds, and after a reboot the cache still tells of the hive's earlier life. So a cached
read waits until nothing older than the last change that we know of can be in the cache any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.lease import GrantControl, RenewBoundControl, RenewControl, parse_lease_control
from ticket_agent.protocol.paths import LEASE_ACTIVE, LEASE_CTL, lease_by_id

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Freshness"]

CACHED: Final = ("/proc/", "/host/", "/gpu/")
NEVER: Final = "/tickets/admission/"
SNAPSHOTS: Final = "snapshots"
SHORT: Final = "/tickets/current/"
SHORT_SHARE: Final = 0.125
"""A gateway keeps ``current`` for a quarter of a second, an eighth of the rest."""

MARGIN_S: Final = 0.02
MAX_REMEMBERED: Final = 1024


class Freshness:
    """Remembers reads that may have filled the cache and changes since; times are seconds of one clock.

    Args:
        cache_s: how long the gateway may keep an answer.
    """

    def __init__(self, cache_s: float) -> None:
        self._cache_s = cache_s
        self._lapses: dict[str, float] = {}
        self._stale: dict[str, float] = {}
        self._began = float("-inf")

    def life(self, path: str) -> float:
        """Seconds for which a CAT of ``path`` may be answered from the cache; 0 if never."""
        if not path.startswith(CACHED):
            return 0.0
        if _snapshot_directory(path) is not None:
            # Whatever provider and source are called: they are no part of a ticket node's path.
            return self._cache_s
        if NEVER in path:
            return 0.0
        return self._cache_s * SHORT_SHARE if SHORT in path else self._cache_s

    def wait(self, path: str, now: float) -> float:
        """Seconds until a CAT of ``path`` can only show what the last known change left; mostly 0."""
        life = self.life(path)
        if life == 0.0:
            return 0.0
        return max(0.0, self._began + life + MARGIN_S - now, self._stale.get(path, now) - now)

    def read(self, path: str, now: float) -> None:
        """Note a CAT that was just answered: until the cache forgets it, it may be shown again."""
        life = self.life(path)
        if life == 0.0:
            return
        self._stale.pop(path, None)
        self._lapses[path] = now + life + MARGIN_S
        if len(self._lapses) > MAX_REMEMBERED:
            self._lapses = {one: until for one, until in self._lapses.items() if until > now}

    def wrote(self, path: str, line: str, now: float) -> None:
        """Note an append that the hive took, or may have taken."""
        affected = _affected_by(path, line)
        for one, until in self._lapses.items():
            if until > now and affected(one):
                self._stale[one] = until
        self._stale = {one: until for one, until in self._stale.items() if until > now}

    def doubted(self, path: str, now: float) -> None:
        """Note that what was last shown of ``path`` may be older than something else that was read."""
        until = self._lapses.get(path, 0.0)
        if until > now:
            self._stale[path] = until

    def session_began(self, now: float) -> None:
        """Note that everything the cache holds may be of the hive's earlier life."""
        self._began = now
        self._lapses.clear()
        self._stale.clear()


def _affected_by(path: str, line: str) -> Callable[[str], bool]:
    """Which cached nodes an append changes without the gateway's forgetting them."""
    if path == LEASE_CTL:
        try:
            control = parse_lease_control(line)
        except ProtocolError:
            return lambda one: one.startswith(("/proc/lease/", "/gpu/"))
        if isinstance(control, GrantControl | RenewControl | RenewBoundControl):
            # The summary's number of active leases moves too, but nothing is concluded from it.
            nodes = {lease_by_id(control.id), LEASE_ACTIVE}
            return lambda one: one in nodes
        return lambda one: one.startswith("/proc/lease/")
    pair = _snapshot_directory(path)
    if pair is not None and path.endswith("/ctl"):
        # Only the end of a transfer changes what is shown. A record that lapses is no write at all.
        shown = (f"{pair}/snapshot", f"{pair}/status") if line == "end" else ()
        return lambda one: one in shown
    if path.rpartition("/")[0].endswith("/tickets"):
        return lambda one: SHORT in one
    return lambda one: True  # noqa: ARG005 - an unknown node may change anything


def _snapshot_directory(path: str) -> str | None:
    """The directory of the pair of provider and source whose node a path names."""
    directory = path.rpartition("/")[0]
    return directory if directory.split("/")[-3:-2] == [SNAPSHOTS] else None
