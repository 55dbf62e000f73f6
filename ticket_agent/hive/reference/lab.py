"""What the lab remembers about a hive: everything that was ever applied, kept outside rings and reboots."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["AdmissionView", "Effect", "LabBook"]


class Effect(NamedTuple):
    """One kind of applied mutation.

    Attributes:
        kind: ``grant``, ``renew``, ``renew-bound``, ``preempt``, ``quota``, ``spawn`` or ``kill``.
        subject: lease id; ``<subject>@<resource>`` of a quota; GPU id or role of a spawn;
            Worker id of a kill.
        admission: number of the admission that asked for it, None when no admission fits.
    """

    kind: str
    subject: str
    admission: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionView:
    """One admission since boot, as the lab sees it.

    Attributes:
        sequence: admission sequence.
        key: ``(id, idempotency_key)``.
        action: ticket action.
        worker_id: pinned Worker.
        outcome: None while open, then ``confirmed``, ``rejected`` or ``stale``.
        retired: no longer in the dedupe window.
        line: the admitted line.
    """

    sequence: int
    key: tuple[str, str]
    action: str
    worker_id: str
    outcome: str | None
    retired: bool
    line: str


class LabBook:
    """Counters and lists for assertions; nothing in here is ever dropped or reset."""

    def __init__(self) -> None:
        self.effects: Counter[Effect] = Counter()
        self.appended: Counter[str] = Counter()
        self.terminal: dict[tuple[str, str], list[str]] = {}

    def on_append(self, leaf: str, line: str) -> None:
        """Count a line that was appended to a ticket log."""
        del line
        self.appended[leaf] += 1

    def on_terminal(self, key: tuple[str, str], line: str) -> None:
        """Keep a terminal result line."""
        self.terminal.setdefault(key, []).append(line)

    def on_effect(self, kind: str, subject: str, admission: int | None) -> None:
        """Count an applied mutation."""
        self.effects[Effect(kind, subject, admission)] += 1
