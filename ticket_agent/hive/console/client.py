"""The TCP console as a namespace: one session, one command in flight, appends sent at most once."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.hive.console.acks import speaks_older_bounds
from ticket_agent.hive.console.checks import check_line, check_path
from ticket_agent.hive.console.connection import Answered, State
from ticket_agent.hive.console.link import LinkBrokenError, LinkError, NothingSentError
from ticket_agent.hive.console.opening import ConsoleConfig, SessionOpener
from ticket_agent.hive.console.replies import Command, Done, Ended, Err, Outcome, Verb, Violation
from ticket_agent.protocol.namespace import (
    Acked,
    AppendAnswer,
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    Refusal,
    RefusalKind,
    Refused,
    Unknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.hive.console.link import Link

__all__ = ["ConsoleConfig", "ConsoleNamespace"]

_READ_BACK: Final = "whether the line was appended is unknown, read back before anything else"


class ConsoleNamespace:
    """A namespace over the TCP console. For one thread.

    1. A session is opened when an operation needs one and kept until ``close`` or the first surprise.
    2. Reads are repeated once over a fresh session when the connection broke.
    3. An append is sent again only if it is certain that no byte of it had left this host.
    4. Credentials are read at each connect and appear in no message.
    """

    def __init__(
        self,
        config: ConsoleConfig,
        *,
        env: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._peer = config.peer
        self._command_s = config.command_s
        self._quit_s = config.quit_s
        self._keepalive_s = config.keepalive_s
        self._monotonic = monotonic
        self._opener = SessionOpener(
            config,
            env=os.environ if env is None else env,
            monotonic=monotonic,
            sleep=sleep,
            now_ms=now_ms,
        )
        self._link: Link | None = None
        self._session = 0
        self._served = False
        self._last_used = 0.0

    @property
    def session(self) -> int:
        """Number of the current session; 0 before the first, raised by every reconnect."""
        return self._session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def ls(self, path: str) -> list[str]:
        """Names below a directory.

        Raises:
            HiveError: one of its subclasses, as :class:`Namespace` documents.
        """
        return list(self._read(Command(Verb.LS, check_path(path))).lines)

    def read(self, path: str) -> list[str]:
        """All logical lines of a node; C1 groups are reassembled.

        Raises:
            HiveError: one of its subclasses, as :class:`Namespace` documents.
        """
        return list(self._read(Command(Verb.CAT, check_path(path))).lines)

    def tail(self, path: str) -> list[str]:
        """The newest retained lines of a log-like node, oldest first; C1 groups are reassembled.

        Raises:
            HiveError: one of its subclasses, as :class:`Namespace` documents.
        """
        return list(self._read(Command(Verb.TAIL, check_path(path))).lines)

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        """Append one line in one command; with ``session``, only while that session lasts.

        Raises:
            HiveError: nothing was sent. Whatever happens later is an answer.
        """
        command = Command(Verb.ECHO, check_path(path), check_line(line))
        try:
            outcome = self._exchange_once_sent(command, session)
        except LinkError as error:
            return Unknown(f"{self._peer}: the connection {error}; {_READ_BACK}")
        match outcome:
            case Done(detail):
                return Acked(detail)
            case Err(refusal):
                return Refused(self._explained(refusal))
            case Ended(why) | Violation(why):
                return Unknown(f"{self._peer}: {why}; {_READ_BACK}")

    def keepalive(self) -> None:
        """Send a PING if the session has been idle long enough; never raises for the peer's sake.

        A session that fails here is closed; the next operation opens a new one.
        """
        if self._link is None or self._monotonic() - self._last_used < self._keepalive_s:
            return
        try:
            self._exchange(Command(Verb.PING))
        except LinkError:
            return

    def close(self) -> None:
        """Say QUIT, wait shortly for the console's end, release the lock; never raises."""
        link, self._link = self._link, None
        try:
            if link is not None:
                self._farewell(link)
        finally:
            self._opener.release()

    def connect(self) -> None:
        """Open a session unless there is one; every other method does this by itself.

        Raises:
            HiveUnreachableError: no connection, or the target does not admit sessions now.
            HiveBusyError: another client owns the console, or attaches are throttled.
            HiveAuthError: the credential, role or ticket was refused, or too many were in the last minute.
            HiveViolationError: the peer is no Cohesix console.
        """
        if self._link is None:
            self._link = self._opener.open()
            self._session += 1
            self._served = False
            self._last_used = self._monotonic()

    def _read(self, command: Command) -> Done:
        try:
            outcome = self._exchange_with_retry(command)
        except LinkError as error:
            raise HiveUnreachableError(
                f"{self._peer}: the connection {error} during {command.verb} {command.path}; "
                "reading again is safe"
            ) from error
        match outcome:
            case Done():
                return outcome
            case Err(refusal):
                raise HiveRefusedError(command.verb, command.path or "", refusal)
            case Ended(why):
                raise HiveUnreachableError(f"{self._peer}: {why}; reading again is safe")
            case Violation(why):
                raise HiveViolationError(f"{self._peer}: {why}; the session was closed")

    def _exchange_with_retry(self, command: Command) -> Outcome:
        self.connect()
        try:
            outcome = self._exchange(command)
        except LinkBrokenError:
            pass
        else:
            if not isinstance(outcome, Ended):
                return outcome
        self.connect()
        return self._exchange(command)

    def _exchange_once_sent(self, command: Command, session: int | None) -> Outcome:
        self._connect_for(session)
        try:
            return self._exchange(command)
        except NothingSentError:
            self._connect_for(session)
        try:
            return self._exchange(command)
        except NothingSentError as error:
            raise HiveUnreachableError(
                f"{self._peer}: the connection {error}; nothing was sent, check that the hive is up"
            ) from error

    def _connect_for(self, session: int | None) -> None:
        if session is not None and (self._link is None or self._session != session):
            raise HiveUnreachableError(f"{self._peer}: session {session} is over; nothing was sent")
        self.connect()

    def _exchange(self, command: Command) -> Outcome:
        """Send one command and wait for its outcome; the session survives only an orderly one."""
        link = self._link
        if link is None:
            raise NothingSentError("is closed")
        orderly = False
        try:
            outcome = self._converse(link, command, self._command_s)
            surplus = link.surplus() is not None
            orderly = link.connection.state is State.IDLE
            if surplus and isinstance(outcome, Done) and command.verb is not Verb.ECHO:
                outcome = Violation(f"lines followed the END of {command.verb} {command.path or ''}")
        finally:
            if not orderly:
                self._drop()
        if orderly:
            self._served = True
            self._last_used = self._monotonic()
            self._opener.session_worked()
        return outcome

    def _converse(self, link: Link, command: Command, timeout_s: float) -> Outcome:
        surprise = link.surprise()
        if surprise is not None:
            raise NothingSentError(surprise)
        deadline = self._monotonic() + timeout_s
        link.send(link.connection.command(command), deadline)
        event = link.next_event(deadline)
        if isinstance(event, Answered):
            return event.outcome
        return Violation(f"{command.verb} got something else than an answer")

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
            if not self._served:
                self._opener.session_failed()

    def _farewell(self, link: Link) -> None:
        try:
            outcome = self._converse(link, Command(Verb.QUIT), self._quit_s)
            if isinstance(outcome, Done):
                link.finish(self._monotonic() + self._quit_s)
        except LinkError:
            pass
        finally:
            link.close()

    def _explained(self, refusal: Refusal) -> Refusal:
        if not speaks_older_bounds(refusal):
            return refusal
        return Refusal(
            kind=RefusalKind.GRAMMAR,
            text=f"{self._peer} speaks the older bounds and is incompatible; upgrade it ({refusal.text})",
        )
