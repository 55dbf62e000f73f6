"""Which session of the hive an answer belongs to, by the gateway's account of its connections. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Evidence", "Sessions", "read_evidence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What tells one connection between gateway and hive from the next.

    A gateway's only way to the hive is one console. A hive that reboots ends that connection, and the next
    one is counted. The counters begin again with the gateway; the time of the last change then differs.

    Attributes:
        connects: connections made since the gateway started, None if it does not say.
        reconnects: how many of them replaced a lost one, None if it does not say.
        changed_ms: unix time of the last change of the connection, None if it does not say.
        target: the hive's address and kind, as the gateway names them.
        link: number of our own connection to the gateway where the rest leaves a restart open, else None.
    """

    connects: int | None
    reconnects: int | None
    changed_ms: int | None
    target: tuple[str, ...]
    link: int | None


def read_evidence(status: Mapping[str, Any], *, link: int) -> Evidence:
    """Take the evidence out of ``/v1/meta/status``; members that are missing or odd count as not said.

    Args:
        status: the document; empty if the gateway does not show it.
        link: number of our own connection to the gateway.
    """
    changed = _count(status.get("last_change_unix_ms"))
    connects = _count(status.get("connects"))
    return Evidence(
        connects=connects,
        reconnects=_count(status.get("reconnects")),
        changed_ms=changed,
        target=tuple(str(status.get(name))[:64] for name in ("backend_class", "target_host", "target_port")),
        link=None if connects is not None and changed is not None else link,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class Sessions:
    """Numbers the sessions: 0 before the first, one more whenever the evidence changes."""

    def __init__(self) -> None:
        self.current = 0
        self._evidence: Evidence | None = None

    def see(self, evidence: Evidence) -> bool:
        """Note the newest evidence; True if it begins a new session."""
        if evidence == self._evidence:
            return False
        self._evidence = evidence
        self.current += 1
        return True
