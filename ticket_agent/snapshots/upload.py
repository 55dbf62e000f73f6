"""Sending one record to a receiver's ``ctl`` node: in time, in one session, in pieces that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.namespace import Acked, RefusalKind, Refused
from ticket_agent.protocol.snapshot_transfer import CHUNK_CHARACTERS, transfer_lines
from ticket_agent.snapshots.publish_errors import PublishError, UnverifiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.protocol.namespace import Namespace, Refusal

__all__ = ["BeginTooSlowError", "StepRefusedError", "Upload"]

MIN_CHUNK_CHARACTERS: Final = 120
"""Shorter pieces are not tried: a console that takes less takes no ticket either."""
SLACK_S: Final = 0.25
"""How much longer than allowed for a transfer's beginning may take."""
BEGIN_TRIES: Final = 3
"""How often a transfer is begun whose beginning takes longer than was allowed for."""


class StepRefusedError(PublishError):
    """A step was refused.

    Attributes:
        line: the step.
        refusal: how.
    """

    code = "snapshot-refused"

    def __init__(self, line: str, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.line = line
        self.refusal = refusal


class BeginTooSlowError(PublishError):
    """The receiver may have begun to count long after the record's life was told."""

    code = "snapshot-late"


class Upload:
    """Uploads over one namespace; used by one thread. Remembers which pieces the console takes.

    Args:
        namespace: the hive.
        monotonic: in seconds.
        alive: called before each command.
    """

    def __init__(
        self, namespace: Namespace, *, monotonic: Callable[[], float], alive: Callable[[], None]
    ) -> None:
        self._namespace = namespace
        self._monotonic = monotonic
        self._alive = alive
        self._chunk_characters = CHUNK_CHARACTERS
        self._allowed_s = 0.0
        self.sent = 0
        """Characters of all appends so far."""

    def send(self, ctl: str, encoded: Callable[[float], bytes], check: Callable[[], object]) -> bytes:
        """Send a record; return its bytes as they were sent.

        Args:
            ctl: the node.
            encoded: the record as it is to be sent now, with so many seconds less to live. Called for each
                transfer: the receiver counts from its beginning.
            check: called before each further step; raises when the record's life is over.

        Raises:
            StepRefusedError: the receiver refused a step.
            BeginTooSlowError: beginning took longer each time.
            UnverifiedError: the answer to a step before the end was lost. (That the answer to the end was,
                is not told: its status has to be looked at in any case.)
            HiveError: the hive could not be reached, or the session ended; the transfer is incomplete.
        """
        tries = BEGIN_TRIES
        while True:
            data = encoded(self._allowed_s)
            lines = transfer_lines(data, chunk_characters=self._chunk_characters)
            if self._begin(ctl, next(lines)):
                try:
                    self._rest(ctl, lines, check)
                except StepRefusedError as error:
                    if not self._smaller(error):
                        raise
                else:
                    return data
                continue
            tries -= 1
            if tries == 0:
                raise BeginTooSlowError("the hive takes longer each time for the beginning of the transfer")

    def _begin(self, ctl: str, line: str) -> bool:
        """Begin the transfer; whether that took no longer than the record allows for.

        The next one allows for what this one took, and a half more; a quick one makes it forget that.
        """
        began_s = self._monotonic()
        self._append(ctl, line, None)
        took_s, allowed_s = self._monotonic() - began_s, self._allowed_s
        self._allowed_s = 0.0 if took_s <= SLACK_S else took_s * 1.5
        return took_s <= allowed_s + SLACK_S

    def _rest(self, ctl: str, lines: Iterator[str], check: Callable[[], object]) -> None:
        """Send the lines after the first in its session."""
        session = self._namespace.session
        for line in lines:
            check()
            self._append(ctl, line, session)

    def _append(self, ctl: str, line: str, session: int | None) -> None:
        self._alive()
        self.sent += len(line)
        answer = self._namespace.append(ctl, line, session=session)
        if isinstance(answer, Refused):
            raise StepRefusedError(line, answer.refusal)
        if not isinstance(answer, Acked) and line != "end":
            raise UnverifiedError(
                f"the answer to a step of the transfer to {ctl} was lost ({answer.why}); the record was not"
                " completed; publish anew (--watch does)"
            )

    def _smaller(self, error: StepRefusedError) -> bool:
        """Take smaller pieces if it was the length that was refused, and there are any."""
        long = error.refusal.kind in {RefusalKind.LIMIT, RefusalKind.GRAMMAR}
        if not long or not error.line.startswith("b64:"):
            return False
        if self._chunk_characters // 2 < MIN_CHUNK_CHARACTERS:
            return False
        self._chunk_characters //= 2
        return True
