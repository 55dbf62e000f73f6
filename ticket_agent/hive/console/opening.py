"""From a configuration to an attached session: credentials, lock, pacing, handshake."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ticket_agent.hive.console.checks import check_port, check_role
from ticket_agent.hive.console.connection import ClientConnection, ToSend
from ticket_agent.hive.console.handshake import Attached, FailureKind, HandshakeFailure
from ticket_agent.hive.console.link import Link, LinkError, LinkTimeoutError
from ticket_agent.hive.console.lock import ConsoleLock, lock_enabled, lock_path
from ticket_agent.hive.console.pacing import Pacing, retry_delay
from ticket_agent.hive.console.presenting import Credentials, read_credentials
from ticket_agent.protocol.namespace import (
    HiveAuthError,
    HiveBusyError,
    HiveError,
    HiveUnreachableError,
    HiveViolationError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ticket_agent.hive.console.connection import ClientEvent
    from ticket_agent.hive.credentials import Secret

__all__ = ["DEFAULT_PORT", "ConsoleConfig", "SessionOpener"]

DEFAULT_PORT: Final = 31337


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """How to reach a console; all times in seconds.

    Attributes:
        host: name or address.
        port: TCP port.
        token: ``env:NAME`` or ``file:/absolute/path``, for a console of this host also the token itself; None
            looks into the environment.
        role: role to attach as.
        ticket: capability token in the same forms; None attaches without one.
        allow_placeholder: accept well-known example tokens; for a lab only.
        use_lock: take the host-wide console lock.
        lock_dir: directory of the lock; None means the system's temporary directory.
        connect_s: deadline for the TCP connection.
        auth_s: deadline for the answer to AUTH; short, because a busy console never answers.
        command_s: deadline for ATTACH and for every command.
        quit_s: how long ``close`` waits for each of the console's two farewells.
        keepalive_s: idle time after which ``keepalive`` sends a PING.

    Raises:
        ConsoleUsageError: role or port cannot be.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str | None = field(default=None, repr=False)
    role: str = "queen"
    ticket: str | None = field(default=None, repr=False)
    allow_placeholder: bool = False
    use_lock: bool = True
    lock_dir: Path | None = None
    connect_s: float = 3.0
    auth_s: float = 2.0
    command_s: float = 5.0
    quit_s: float = 1.0
    keepalive_s: float = 15.0

    def __post_init__(self) -> None:
        check_role(self.role)
        check_port(self.port)

    @property
    def peer(self) -> str:
        """The console's name in messages."""
        return f"console {self.host}:{self.port}"


FAILURE_ERRORS: Final[Mapping[FailureKind, type[HiveError]]] = MappingProxyType(
    {
        FailureKind.SILENT_CLOSE: HiveAuthError,
        FailureKind.NO_ANSWER: HiveBusyError,
        FailureKind.AUTH_REFUSED: HiveAuthError,
        FailureKind.ATTACH_REFUSED: HiveAuthError,
        FailureKind.THROTTLED: HiveBusyError,
        FailureKind.UNAVAILABLE: HiveUnreachableError,
        FailureKind.VIOLATION: HiveViolationError,
    }
)


class SessionOpener:
    """Opens one session after another, never faster and never more often than a console bears."""

    def __init__(
        self,
        config: ConsoleConfig,
        *,
        env: Mapping[str, str],
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._env = env
        self._monotonic = monotonic
        self._sleep = sleep
        self._now_ms = now_ms
        self._pacing = Pacing()
        self._lock = ConsoleLock(lock_path(config.host, config.port, directory=config.lock_dir))
        self._proven: Secret | None = None

    def open(self) -> Link:
        """Return a connection whose session is attached.

        Raises:
            HiveUnreachableError: no connection, or the target does not admit sessions now.
            HiveBusyError: another client owns the console, or attaches are throttled.
            HiveAuthError: the credential, role or ticket was refused, or too many were in the last minute.
            HiveViolationError: the peer is no Cohesix console.
        """
        self._refuse_while_rationed()
        presented = self._credentials()
        if self._config.use_lock and lock_enabled(self._env):
            self._lock.acquire()
        wait_s = self._pacing.wait(self._monotonic())
        if wait_s > 0:
            self._sleep(wait_s)
        retries = 0
        while isinstance(attempt := self._attempt(presented), HandshakeFailure):
            delay = retry_delay(attempt, retries)
            if delay is None or self._pacing.blocked(self._monotonic()) is not None:
                self._pacing.failed(self._monotonic(), delay_s=attempt.delay_s)
                raise self._error_of(attempt, presented.token)
            self._sleep(delay)
            retries += 1
        return attempt

    def session_worked(self) -> None:
        """Note that the session answered a command: reconnecting after it need not wait."""
        self._pacing.worked()

    def session_failed(self) -> None:
        """Note that a session broke before it answered any command."""
        self._pacing.failed(self._monotonic())

    def release(self) -> None:
        """Release the console lock."""
        self._lock.release()

    def _refuse_while_rationed(self) -> None:
        now = self._monotonic()
        if (blocked_s := self._pacing.blocked(now)) is not None:
            raise HiveAuthError(
                f"{self._config.peer}: too many refused attempts within a minute; "
                f"check token, role and ticket, the next attempt is possible in {blocked_s:.0f} s"
            )
        if (throttled_s := self._pacing.throttled(now)) is not None:
            raise HiveBusyError(
                f"{self._config.peer}: attaches are throttled after earlier refusals; "
                f"the next attempt is possible in {throttled_s:.0f} s"
            )

    def _credentials(self) -> Credentials:
        config = self._config
        return read_credentials(
            token=config.token,
            ticket=config.ticket,
            role=config.role,
            host=config.host,
            allow_placeholder=config.allow_placeholder,
            env=self._env,
            now_ms=self._now_ms(),
        )

    def _attempt(self, presented: Credentials) -> Link | HandshakeFailure:
        config = self._config
        connection = ClientConnection(token=presented.token, role=config.role, ticket=presented.ticket)
        try:
            link = Link.open(
                config.host,
                config.port,
                connection=connection,
                timeout_s=config.connect_s,
                monotonic=self._monotonic,
            )
        except (OSError, ValueError) as error:
            # Resolving a malformed host name is a ValueError; to an operator both are the same mistake.
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            why = f"cannot connect: {reason}; check host, port and that the hive is up"
            return HandshakeFailure(kind=FailureKind.UNAVAILABLE, why=why)
        attached = False
        try:
            failure = self._shake_hands(link)
            attached = failure is None
        finally:
            if not attached:
                link.close()
        if connection.authenticated:
            self._proven = presented.token
        if failure is None:
            return link
        # A silent close cannot be the fault of a token that was accepted before, so it does not count then.
        if failure.kind is not FailureKind.SILENT_CLOSE or presented.token != self._proven:
            self._pacing.refused(failure.kind, self._monotonic())
        return failure

    def _shake_hands(self, link: Link) -> HandshakeFailure | None:
        deadline = self._monotonic() + self._config.auth_s
        ending: ClientEvent | None
        try:
            link.send(link.connection.start(), deadline)
            while True:
                match link.next_event(deadline):
                    case ToSend(data):
                        deadline = self._monotonic() + self._config.command_s
                        link.send(data, deadline)
                    case Attached():
                        return None
                    case ending:
                        break
        except LinkTimeoutError:
            ending = link.connection.expired()
        except LinkError:
            ending = link.connection.ended()
        if isinstance(ending, HandshakeFailure):
            return ending
        why = "the console spoke before the handshake began; check that this is a Cohesix console"
        return HandshakeFailure(kind=FailureKind.VIOLATION, why=why)

    def _error_of(self, failure: HandshakeFailure, token: Secret) -> HiveError:
        if failure.kind is FailureKind.SILENT_CLOSE and token == self._proven:
            return HiveBusyError(
                f"{self._config.peer}: closed before AUTH with a token that worked before; "
                "another client probably holds the only console"
            )
        return FAILURE_ERRORS[failure.kind](f"{self._config.peer}: {failure.why}")
