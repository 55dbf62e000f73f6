"""The publisher's loop: looks that are due begin, what comes back is published, what fails is tried again.

Looks run beside each other; records are published one at a time, by this loop alone. A provider that fails,
hangs or is refused is put off for itself. Only what concerns all of them stops all of them for a while: a
hive that cannot be reached, a full disk, a clock that went back.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from ticket_agent.protocol.collecting import CollectContext, Deadline
from ticket_agent.protocol.namespace import HiveError, HiveRefusedError
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.snapshots.looking import too_late
from ticket_agent.snapshots.publish_errors import (
    CursorError,
    CursorFullError,
    PublishError,
    ReceiverAheadError,
    SourceClockError,
    TransferRefusedError,
    UnverifiedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.snapshots.cadence import Cadence
    from ticket_agent.snapshots.looking import Look, Seen
    from ticket_agent.snapshots.publisher import Publication, SnapshotPublisher

__all__ = ["Figures", "Looking", "Notes", "Watch"]

MOST_WAIT_S: Final = 1.0
"""Longest time without a turn of the loop, in seconds, so that signs of life and stops are not late."""
STUCK_AGAIN_S: Final = 10.0
"""How often it is published again that a collector does not come back."""


class Looking(Protocol):
    """What the loop needs of :class:`ticket_agent.snapshots.lookouts.Lookouts`."""

    def idle(self, provider: str) -> bool:
        """See there."""

    def start(self, look: Look, context: CollectContext) -> None:
        """See there."""

    def overdue(self, now_s: float) -> list[Look]:
        """See there."""

    def next_deadline_s(self) -> float | None:
        """See there."""

    def stuck(self) -> dict[str, Look]:
        """See there."""

    def wait(self, timeout_s: float) -> list[Seen]:
        """See there."""


class Notes(Protocol):
    """Where the loop tells what happens."""

    def published(self, publication: Publication) -> None:
        """A record is visible."""

    def failed(self, provider: str, error: Exception, retry_s: float) -> None:
        """A provider could not be published."""

    def held(self, error: Exception, retry_s: float) -> None:
        """Nothing can be published for a while."""


@dataclass(slots=True)
class Figures:
    """What was done since the process started.

    Attributes:
        published: records that became visible, by provider and reason (empty: available).
        failed: records that did not, by provider and the error's code.
        held: times that everything had to wait, by the error's code.
        last: the newest publication of each provider, and in ``last_unix_ms`` when it was made.
        healthy: nothing has failed since the last publication.
    """

    published: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    last: dict[str, Publication] = field(default_factory=dict)
    last_unix_ms: dict[str, int] = field(default_factory=dict)
    healthy: bool = True


class Watch:
    """One source's loop.

    Args:
        publisher: publishes one observation.
        looking: the collectors at work.
        cadence: when who is due; its providers are the ones that are published.
        clock: wall clock in Unix milliseconds.
        monotonic: in seconds.
        environ: settings of the collectors.
        notes: who is told.
    """

    def __init__(
        self,
        publisher: SnapshotPublisher,
        looking: Looking,
        cadence: Cadence,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        environ: Mapping[str, str],
        notes: Notes,
    ) -> None:
        self._publisher = publisher
        self._looking = looking
        self._cadence = cadence
        self._clock = clock
        self._monotonic = monotonic
        self._environ = environ
        self._notes = notes
        self._told_stuck_s: dict[str, float] = {}
        self._compared = False
        self.figures = Figures()

    def turn(self, most_s: float = MOST_WAIT_S) -> None:
        """One turn of the loop: begin what is due, wait for something to come back, publish it.

        Args:
            most_s: longest wait, in seconds.

        Raises:
            CursorError: numbers cannot be reserved any more; publishing has to end.
            ReceiverAheadError: somebody else publishes for this source; publishing has to end.
        """
        self._compare()
        self._begin_due()
        for seen in self._looking.wait(self._pause_s(most_s)):
            if seen.reason is UnavailableReason.TIMED_OUT:
                # Where a record lives no longer than a look may last, this one's life is over.
                self._withdraw(seen)
            else:
                self._publish(seen)
        now = self._monotonic()
        for look in self._looking.overdue(now):
            self._told_stuck_s[look.provider] = now
            self._withdraw(too_late(look))

    def _compare(self) -> None:
        """Once, before the first look; what goes wrong is told when a provider is published."""
        if self._compared:
            return
        self._compared = True
        with suppress(HiveError):
            for provider in self.providers:
                with suppress(TransferRefusedError, UnverifiedError):
                    self._publisher.compare(provider)

    def _begin_due(self) -> None:
        for provider in self._cadence.due(self._monotonic()):
            if not self._looking.idle(provider):
                self._tell_stuck(provider)
                continue
            self._told_stuck_s.pop(provider, None)
            look = self._look(provider)
            if look is None:
                return
            context = CollectContext(
                deadline=Deadline(look.deadline_s, self._monotonic),
                bounds=self._publisher.enrolment.bounds,
                environ=self._environ,
            )
            self._looking.start(look, context)

    def _look(self, provider: str) -> Look | None:
        try:
            return self._publisher.begin_look(provider)
        except SourceClockError as error:
            self._hold(error)
            return None

    def _tell_stuck(self, provider: str) -> None:
        """A withdrawal does not lapse, but a receiver that was restarted has forgotten it."""
        told = self._told_stuck_s.get(provider)
        now = self._monotonic()
        if told is None or now < told + STUCK_AGAIN_S:
            return
        look = self._looking.stuck().get(provider)
        if look is not None:
            self._told_stuck_s[provider] = now
            self._withdraw(too_late(look))

    def _withdraw(self, seen: Seen) -> None:
        """Publish that a look came to nothing, as of now: it began longer ago than a record may live."""
        look = self._look(seen.look.provider)
        if look is not None:
            self._publish(replace(seen, look=look))

    def _pause_s(self, most_s: float) -> float:
        now = self._monotonic()
        waiting = [name for name in self.providers if self._looking.idle(name)]
        ends = [now + most_s]
        if waiting:
            ends.append(self._cadence.next_s(waiting))
        deadline = self._looking.next_deadline_s()
        if deadline is not None:
            ends.append(deadline)
        return max(0.0, min(ends) - now)

    @property
    def providers(self) -> tuple[str, ...]:
        """Who is published."""
        return self._cadence.providers

    def _publish(self, seen: Seen) -> None:
        provider = seen.look.provider
        if self._cadence.held(self._monotonic()):
            # It is still due then, and looked at anew.
            return
        try:
            publication = self._publisher.publish(seen)
        except CursorFullError as error:
            self._hold(error, provider)
        except (CursorError, ReceiverAheadError):
            raise
        except (PublishError, HiveRefusedError) as error:
            self._put_off(provider, error)
        except HiveError as error:
            self._hold(error, provider)
        else:
            self._cadence.published(provider, self._monotonic())
            self.figures.published[provider, publication.reason or ""] += 1
            self.figures.last[provider] = publication
            self.figures.last_unix_ms[provider] = self._clock()
            self.figures.healthy = True
            self._notes.published(publication)

    def _put_off(self, provider: str, error: Exception) -> None:
        self.figures.failed[provider, _code(error)] += 1
        self.figures.healthy = False
        self._notes.failed(provider, error, self._cadence.failed(provider, self._monotonic()))

    def _hold(self, error: Exception, provider: str | None = None) -> None:
        if provider is not None:
            self.figures.failed[provider, _code(error)] += 1
        self.figures.held[_code(error)] += 1
        self.figures.healthy = False
        self._notes.held(error, self._cadence.hold(self._monotonic()))


def _code(error: Exception) -> str:
    return str(getattr(error, "code", "error"))
