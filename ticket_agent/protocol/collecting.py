"""What collectors of host snapshots are given and how they answer. A site's own ones use nothing but this.

A collector is a function: it takes a :class:`CollectContext`, looks, and returns entries. It is called anew
for each observation, in a thread of its own, and has to be done by the deadline; what comes later is thrown
away. It raises :class:`CollectError` for what it can explain; every other exception means ``source_failed``.

It shares the process with the publisher: it writes nothing to standard output, changes neither the directory
nor signals, and leaves no forked child behind, which would go on holding the source's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .json_strict import dumps
from .snapshot import DEFAULT_BOUNDS, SnapshotBounds, SnapshotEntry, UnavailableReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["CollectContext", "CollectError", "Collector", "Deadline", "fact"]


class CollectError(Exception):
    """A collector has nothing to show.

    Attributes:
        reason: what the published record says.
        detail: one line for the operator of this host; it is never published.
    """

    def __init__(self, detail: str, reason: UnavailableReason = UnavailableReason.SOURCE_FAILED) -> None:
        super().__init__(detail)
        self.detail = detail
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock that an observation must be complete by.

    Attributes:
        at: in seconds of ``clock``.
        clock: monotonic, in seconds.
    """

    at: float
    clock: Callable[[], float]

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float]) -> Deadline:
        """The moment ``seconds`` from now."""
        return cls(clock() + seconds, clock)

    def passed(self) -> bool:
        """Whether it is over."""
        return self.clock() >= self.at

    def left_s(self) -> float:
        """Seconds that remain, more than 0: a time-out for one call.

        Raises:
            CollectError: ``timed_out``, when none does.
        """
        left = self.at - self.clock()
        if left <= 0:
            raise CollectError("the deadline of the observation passed", UnavailableReason.TIMED_OUT)
        return left


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectContext:
    """What a collector may use.

    Attributes:
        deadline: by when it must be done.
        bounds: what the record may hold; a projection that would not fit has to be made smaller, openly.
        environ: the publisher's environment; read settings from here, never from ``os.environ``.
    """

    deadline: Deadline
    bounds: SnapshotBounds = DEFAULT_BOUNDS
    environ: Mapping[str, str] = field(default_factory=dict)


class Collector(Protocol):
    """The signature of a collector."""

    def __call__(self, context: CollectContext, /) -> Iterable[SnapshotEntry]:
        """Look once.

        Raises:
            CollectError: there is nothing to show, and why.
        """


def fact(path: str, value: object) -> SnapshotEntry:
    """One entry whose value is ``value`` as compact JSON, members in the order they have.

    Raises:
        JsonError: it has no JSON form.
    """
    return SnapshotEntry(path, dumps(value).decode("utf-8"))
