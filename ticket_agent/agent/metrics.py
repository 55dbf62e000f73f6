"""What is measured about one agent, and the immutable picture of it that others may look at.

The agent's thread counts and takes the picture; it replaces the old one by a single assignment. Whoever shows
it, in whatever thread, never touches the agent or its journal.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.agent.operation import spec_of
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.actions import RECEIPT_ACTIONS, V1_ACTIONS
from ticket_agent.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.agent.cadence import Pace
    from ticket_agent.agent.loop import Agent
    from ticket_agent.agent.relay.relay import RelayFigures
    from ticket_agent.journal.record import Record
    from ticket_agent.journal.store import JournalStore

__all__ = ["BUCKETS_S", "OTHER_ACTION", "Durations", "Meter", "Snapshot"]

BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds, in seconds, of the classes that durations are counted in; a last class has no bound."""

OTHER_ACTION = "other"
"""Stands for every action that is not in the protocol's tables, so that labels stay few."""

_ACTIONS = frozenset((*RECEIPT_ACTIONS, *V1_ACTIONS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long something took: how often in each class of ``BUCKETS_S`` and beyond, and in sum."""

    counts: tuple[int, ...]
    sum_s: float


class _Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def frozen(self) -> Durations:
        return Durations(counts=tuple(self._counts), sum_s=self._sum_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The agent as it stood at the end of a pass; nobody changes it, its mappings included.

    Attributes:
        unix_ms: when it was taken.
        open_operations: how many are open, by action and state; 0 for what was there once and is gone.
        transitions: how often a state was durably reached, by action and state, since the process started.
        ended: how many operations ended, by action and outcome, since the process started.
        uncertain: how many operations have an outcome that is noted as unknown.
        oldest_uncertain_unix_ms: since when the outcome of one is unknown; None if there is none.
        transition_s: how long durable transitions took, by the state that was reached.
        fsync_s: how long fsyncs took, by ``file`` and ``directory``.
        gap_admissions: how many admissions the held gap covers; 0 if none is held.
        sessions: sessions with the hive that were opened since the process started.
        outages: rounds of the loop that could not use the hive, since the process started.
        lifecycle: what the hive said last about its lifecycle; None if it does not say.
        takes_results: whether the hive takes results, as far as known.
        pace: how the looks stand against the request logs.
        relay: how the relay stands; None if this agent relays nothing.
    """

    unix_ms: int
    passes: int
    open_operations: Mapping[tuple[str, str], int]
    transitions: Mapping[tuple[str, str], int]
    ended: Mapping[tuple[str, str], int]
    uncertain: int
    oldest_uncertain_unix_ms: int | None
    transition_s: Mapping[str, Durations]
    fsync_s: Mapping[str, Durations]
    gap_admissions: int
    quarantined: int
    unparsable: int
    connected: bool
    sessions: int
    outages: int
    poisoned: bool
    lifecycle: str | None
    takes_results: bool
    pace: Pace
    relay: RelayFigures | None = None


class Meter:
    """Counts what happens to the journal; belongs to the agent's thread.

    Args:
        clock: wall clock in Unix milliseconds.
        stopwatch: monotonic seconds of high resolution.
    """

    def __init__(
        self, *, clock: Callable[[], int], stopwatch: Callable[[], float] = time.perf_counter
    ) -> None:
        self.stopwatch = stopwatch
        self._clock = clock
        self._actions: dict[str, str] = {}
        self._open_seen: set[tuple[str, str]] = set()
        self._transitions: dict[tuple[str, str], int] = {}
        self._ended: dict[tuple[str, str], int] = {}
        self._transition_s = {state.value: _Histogram() for state in State}
        self._fsync_s = {"file": _Histogram(), "directory": _Histogram()}

    def synced(self, target: str, seconds: float) -> None:
        """Count one fsync of a ``file`` or a ``directory``."""
        self._fsync_s[target].add(seconds)

    def reached(self, record: Record, seconds: float) -> None:
        """Count one durable transition, which took ``seconds`` and led to the state of ``record``."""
        action = self._action_of(record)
        state = record.state.value
        self._transition_s[state].add(seconds)
        _raise(self._transitions, (action, state))
        if record.terminal:
            _raise(self._ended, (action, record.result.outcome if record.result is not None else "unknown"))
            self._actions.pop(record.key, None)
        else:
            # Most are open for less than a pass: 0 says more than a series that is not there.
            self._open_seen.add((action, state))

    def snapshot(self, agent: Agent, store: JournalStore) -> Snapshot:
        """Take the picture."""
        records = store.open_records()
        unknown_since = [
            record.uncertain.since_unix_ms
            for record in records
            if record.uncertain is not None and record.outcome_unknown
        ]
        held = agent.intake.held
        return Snapshot(
            unix_ms=self._clock(),
            passes=agent.totals.passes,
            open_operations=self._open_operations(records),
            transitions=dict(self._transitions),
            ended=dict(self._ended),
            uncertain=len(unknown_since),
            oldest_uncertain_unix_ms=min(unknown_since, default=None),
            transition_s={state: found.frozen() for state, found in self._transition_s.items()},
            fsync_s={target: found.frozen() for target, found in self._fsync_s.items()},
            gap_admissions=held.through - held.first + 1 if held is not None else 0,
            quarantined=len(store.quarantined),
            unparsable=len(agent.unparsable),
            connected=agent.connected,
            sessions=agent.session,
            outages=agent.totals.outages,
            poisoned=store.poisoned is not None,
            lifecycle=agent.gate.state.value if agent.gate.state is not None else None,
            takes_results=agent.gate.open,
            pace=agent.cadence.pace,
            relay=agent.relay.figures(agent.operations.values()) if agent.relay.enabled else None,
        )

    def _open_operations(self, records: tuple[Record, ...]) -> dict[tuple[str, str], int]:
        counts = dict.fromkeys(self._open_seen, 0)
        for record in records:
            _raise(counts, (self._action_of(record), record.state.value))
        self._open_seen.update(counts)
        return counts

    def _action_of(self, record: Record) -> str:
        action = self._actions.get(record.key)
        if action is None:
            try:
                named = spec_of(record).action
            except ProtocolError:
                named = OTHER_ACTION
            action = self._actions[record.key] = named if named in _ACTIONS else OTHER_ACTION
        return action


def _raise(counts: dict[tuple[str, str], int], labels: tuple[str, str]) -> None:
    counts[labels] = counts.get(labels, 0) + 1
